// Split of K over CTAs, for problems with fewer tiles than SMs. The parts of a tile run at the same time on different
// CTAs; all but the first leave their fp32 sums in global memory and raise a flag, the first adds them in the order of
// the parts, so that the bits are the same on every run. The host gives every part its own CTA, so no part waits for
// one that has not started.
#pragma once
#include "comm/wait.cuh"
#include "kernels/gemm_tile.h"
#include "kernels/split_k.h"

namespace mk {

struct SplitPart {
  uint32_t tile;
  int32_t part;
  int32_t first_step;
  int32_t end_step;
};

__device__ __forceinline__ SplitPart split_part(const SplitK& k, int32_t k_steps, uint32_t unit) {
  SplitPart s;
  s.tile = unit / static_cast<uint32_t>(k.parts);
  s.part = static_cast<int32_t>(unit % static_cast<uint32_t>(k.parts));
  s.first_step = s.part * k.steps;
  s.end_step = min(k_steps, s.first_step + k.steps);
  return s;
}

__device__ __forceinline__ int64_t split_slot(const SplitK& k, const SplitPart& s, int32_t part, int32_t group) {
  return (int64_t{s.tile} * (k.parts - 1) + part - 1) * kConsumerGroups + group;
}

// One consumer warpgroup of a part other than the first: hands its sums over.
template <int Sums>
__device__ __forceinline__ void split_give(const SplitK& k, const SplitPart& s, int32_t group, uint32_t barrier,
                                           const float (&sum)[Sums], uint64_t epoch) {
  const int32_t thread = threadIdx.x % kWarpgroup;
  const int64_t slot = split_slot(k, s, s.part, group);
  float4* to = k.sums + slot * (Sums / 4) * kWarpgroup + thread;
#pragma unroll
  for (int i = 0; i < Sums / 4; ++i)
    to[i * kWarpgroup] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  ptx::named_barrier(barrier, kWarpgroup);
  // The barrier hands the other threads' stores to thread 0, whose release covers them.
  if (thread == 0) ptx::store_release_system(k.flags + slot, epoch);
}

// One consumer warpgroup of the first part: adds the others' sums.
template <int Sums>
__device__ __forceinline__ void split_take(const SplitK& k, const SplitPart& s, int32_t group, uint32_t barrier,
                                           float (&sum)[Sums], uint64_t epoch, const WaitContext& w) {
  const int32_t thread = threadIdx.x % kWarpgroup;
  for (int32_t part = 1; part < k.parts; ++part) {
    const int64_t slot = split_slot(k, s, part, group);
    if (thread == 0) wait_flag(w, kRoleSum, k.flags + slot, epoch);
    ptx::named_barrier(barrier, kWarpgroup);
    const float4* from = k.sums + slot * (Sums / 4) * kWarpgroup + thread;
#pragma unroll
    for (int i = 0; i < Sums / 4; ++i) {
      const float4 v = from[i * kWarpgroup];
      sum[4 * i] += v.x, sum[4 * i + 1] += v.y, sum[4 * i + 2] += v.z, sum[4 * i + 3] += v.w;
    }
  }
}

}  // namespace mk
