// What a rank pushes into its peers' landing buffers when SMs move the bytes.
#pragma once
#include "comm/control.h"

namespace mk {

struct PushPlan {
  const char* source;        // own shard
  int64_t source_pitch;      // bytes between rows
  int64_t landing_at;        // heap offset of the landing buffer, stamps likewise
  int64_t stamps_at;
  int64_t landing_pitch;     // bytes between rows, same for source shards of all ranks
  int64_t landing_bytes;     // of one shard
  int32_t rows;              // of the shard
  int64_t row_bytes;         // of K columns; a multiple of 16
  int32_t group;             // row blocks pushed together
  int32_t ctas;              // CTAs that push, and warps in each; 0: another mover
  int32_t warps;
  char* heap[kMaxRanks];
};

}  // namespace mk
