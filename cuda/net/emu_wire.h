// What emulated NICs of different processes share: the ring of immediates that arrived at a NIC, in a memfd. Any number
// of senders, one receiver; the protocol is the FIFO's (fifo.h).
#pragma once
#include <cstdint>

#include "net/blob.h"

namespace mk::net {

// Memory of a peer that emu reaches: in this process, or mapped from the peer's memfd.
struct Shared {
  char* base = nullptr;
  uint64_t bytes = 0;
  bool mapped = false;  // by us
  uint64_t map_shift = 0;

  void unmap();
  // Uses a mapping that the caller made.
  void use(void* base);
};

// Where the memory is, as endpoint data; and the other side of it. `pid` is the owner's process; `direct`: in this process
// memory is used where it is.
void put_shared(BlobWriter& w, const char* base, uint64_t bytes, int fd, uint64_t fd_offset);
Shared open_shared(BlobReader& r, int pid, bool direct, const char* what);

int new_memfd(const char* name, uint64_t bytes);

class Arrivals {
 public:
  // Creates the ring.
  explicit Arrivals(uint32_t capacity);
  // Uses a peer's ring.
  Arrivals(const Shared& shared, uint64_t nonce);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  bool push(uint32_t imm);  // false: full
  bool take(uint32_t* imm);
  void close_politely();    // peers that find the process gone then know that nothing is wrong
  bool closed() const;
  uint64_t nonce() const;
  void put(BlobWriter& w) const;

 private:
  struct Head;
  struct Slot;
  Slot* slot(uint64_t position) const;

  Head* head_ = nullptr;
  uint64_t bytes_ = 0;
  int fd_ = -1;
  uint64_t next_ = 0;
  Shared shared_;
};

}  // namespace mk::net
