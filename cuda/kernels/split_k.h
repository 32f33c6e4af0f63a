// Split of K over CTAs: what the host decides (kernels/split_k.cuh).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/tile_order.h"

namespace mk {

constexpr int kSplitTileN = 128;  // the widest tiles whose K is split

struct SplitK {
  Divisor parts;      // 1: no split
  int32_t steps;      // K steps of a part; the last may have fewer
  float4* sums;       // [tile][part, without the owner][group][quad of a thread's sums][thread]
  uint64_t* flags;    // [tile][part, without the owner][group], stamped with the epoch
};

}  // namespace mk
