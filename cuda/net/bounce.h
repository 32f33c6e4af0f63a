// Device memory that no NIC knows goes through pinned host memory.
//
// Sending    A write's bytes are copied into a slot of the stage; the NIC sends from there when they are whole. Writes
//            behind it on the same lane wait, so the order of a lane stays.
// Receiving  Peers write into a mirror of the heap, at the same offsets. When a command is whole its rows are copied to
//            the device, then its flag is raised there, both in the order in which the device executes copies. So what a
//            reader of the flag allows to be overwritten has left the mirror, too.
//
// Used by the thread that drives the NICs; memory is made by the one that registers.
#pragma once
#include <vector>

#include "net/memory.h"
#include "net/nic.h"

namespace mk::net {

class Bounce {
 public:
  static constexpr uint64_t kSlot = 1 << 20;  // the largest piece
  static constexpr uint32_t kSlots = 32;
  static constexpr uint64_t kStaged = 3;      // low bits of the ids of staged writes; the rest is the slot

  explicit Bounce(const Device& device) : device_(device) {}
  ~Bounce();
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;

  Region make_stage();                  // for kStage; the same again after the first time
  Region make_mirror(uint64_t bytes);   // for kHeap
  bool has_stage() const { return stage_ != nullptr; }
  bool has_mirror() const { return mirror_ != nullptr; }

  // Starts the copies of bounced writes as far as there are slots, and puts their slots in the place of their sources.
  // Returns how many of the first writes can be posted now.
  size_t prepare(std::vector<Write>& waiting, const std::vector<Region>& regions, bool* begun);
  // A staged write is complete; the id that it had before.
  uint64_t release(uint64_t slot);

  // Copies rows that came from the mirror to the same place of the heap.
  void land(char* heap, uint64_t at, uint32_t rows, uint64_t bytes, uint64_t stride);

  // Forgets what was under way; no NIC sends any more, and the device has come to its end.
  void reset();

 private:
  struct Slot {
    uint64_t id = 0;  // of its write; 0: free
    uint64_t ticket = 0;
    bool copied = false;
  };
  char* make(uint64_t bytes, const char* what);
  void free_memory(char* base, uint64_t bytes) noexcept;
  bool copied(Slot& s) { return s.copied || (s.copied = device_.done(s.ticket)); }

  const Device device_;
  char* stage_ = nullptr;
  char* mirror_ = nullptr;
  uint64_t mirror_bytes_ = 0;
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
  bool used_ = false;  // copies were started
};

}  // namespace mk::net
