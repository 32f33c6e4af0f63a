// Symmetric heap: one block of device memory per rank, mapped by those ranks of the host that are to reach it, carved up in
// the same order and therefore at the same offsets on every rank.
#pragma once
#include <cstdint>
#include <vector>

#include "host/driver.h"
#include "include/mkernel.h"

namespace mk {

// Offsets only, so that it can be tested without a GPU. Nothing is given back before the heap dies.
class OffsetAllocator {
 public:
  static constexpr uint64_t kAlignment = 1024;
  explicit OffsetAllocator(uint64_t capacity) : capacity_(capacity) {}
  uint64_t allocate(uint64_t bytes, const char* what);  // throws Error
  uint64_t used() const { return used_; }

 private:
  uint64_t capacity_;
  uint64_t used_ = 0;
};

// What kind of memory the heap is. NICs reach memory of cuMemCreate only if it was made for that, which not every driver
// can; without it they go through pinned memory.
CUmemAllocationProp heap_properties(const Driver& driver, int device, bool nics);

class SymmetricHeap {
 public:
  // Collective. Zeroes the memory; when it returns, the blocks of the ranks of `mapped` (the own one among them; the
  // same for each of them) are mapped, zeroed and proved writable by all of those. `nics`: NICs shall reach it, if the
  // driver can have that.
  SymmetricHeap(const Driver& driver, uint64_t bytes, int device, int rank, const std::vector<bool>& mapped, bool nics,
                mk_allgather allgather, void* user);
  ~SymmetricHeap();
  SymmetricHeap(const SymmetricHeap&) = delete;
  SymmetricHeap& operator=(const SymmetricHeap&) = delete;

  // Null for ranks that are not mapped.
  char* base(int rank) const { return reinterpret_cast<char*>(blocks_[rank].address); }
  uint64_t bytes() const { return bytes_; }
  OffsetAllocator& offsets() { return offsets_; }

 private:
  struct Block {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    bool mapped = false;
  };
  void map(Block& block, int device);
  void probe(int rank, const std::vector<bool>& mapped, mk_allgather allgather, void* user);
  void unmap_all();

  const Driver& driver_;
  uint64_t bytes_ = 0;
  std::vector<Block> blocks_;
  OffsetAllocator offsets_;
};

}  // namespace mk
