// What a rank sends to other nodes.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "net/fifo.h"

namespace mk {

// Where a producer is in the FIFO.
struct FifoPlace {
  uint64_t next;   // position
  uint64_t freed;  // places at positions below are known to be free: the proxy's word, when it was read last
};

// True if the next place is not known to be free.
__host__ __device__ inline bool may_be_full(const FifoPlace& at, uint64_t capacity) {
  return static_cast<int64_t>(at.freed + capacity - at.next) <= 0;
}

struct SendSpace {
  mknet_fifo* fifo;        // host memory, mapped; null: no other nodes
  mknet_command* slots;    // its slots, and how many: reading that from its head would be a way over the link to the host
  uint64_t capacity;
  FifoPlace* place;        // own memory
  uint64_t source;         // of the own shard, in `region`
  uint64_t source_pitch;   // bytes from row to row
  uint64_t landing;        // heap offsets
  uint64_t flags;
  uint64_t stamps;         // where this rank keeps a run of words with the epoch
  uint64_t row_bytes;      // of the landing buffer; also its pitch
  uint32_t region;
};

}  // namespace mk
