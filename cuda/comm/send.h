// What a rank sends to other nodes.
#pragma once
#include <cstdint>

#include "net/fifo.h"

namespace mk {

struct SendSpace {
  mknet_fifo* fifo;        // host memory, mapped; null: no other nodes
  uint64_t* next;          // own memory: the next position
  uint64_t source;         // of the own shard, in `region`
  uint64_t source_pitch;   // bytes from row to row
  uint64_t landing;        // heap offsets
  uint64_t flags;
  uint64_t stamps;         // where this rank keeps a run of words with the epoch
  uint64_t row_bytes;      // of the landing buffer; also its pitch
  uint32_t region;
};

}  // namespace mk
