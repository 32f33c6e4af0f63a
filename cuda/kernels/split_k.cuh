// Split of K over CTAs, for problems with fewer tiles than SMs. The parts of a tile run at the same time on different
// CTAs. One of them, the owner, adds up a consumer group's rows; the others leave their fp32 sums of these rows in global
// memory and raise a flag. Sums are added in the order of the parts, so that the bits are the same on every run. The host
// gives every part its own CTA, so no part waits for one that has not started.
#pragma once
#include "comm/wait.cuh"
#include "kernels/gemm_core.cuh"
#include "kernels/split_k.h"

namespace mk {

struct SplitPart {
  uint32_t tile;
  int32_t part;
  int32_t first_step;
  int32_t end_step;
};

template <class Params>
__device__ __forceinline__ SplitPart split_part(const Params& p, uint32_t unit) {
  if constexpr (Params::kWaits) {
    const SplitK& k = p.split;
    const uint32_t tile = quotient(unit, k.parts);
    const int32_t part = static_cast<int32_t>(unit - tile * k.parts.by);
    return {tile, part, part * k.steps, min(p.k_steps, (part + 1) * k.steps)};
  } else {
    return {unit, 0, 0, p.k_steps};
  }
}

// The part that adds up a consumer group's rows: the groups of a tile are spread over its parts.
__device__ __forceinline__ int32_t split_owner(const SplitK& k, int32_t group) { return group % static_cast<int32_t>(k.parts.by); }

__device__ __forceinline__ bool split_adds(const SplitK& k, const SplitPart& s, int32_t group) {
  return s.part == split_owner(k, group);
}

// Where a part other than the owner leaves its sums.
__device__ __forceinline__ int64_t split_slot(const SplitK& k, const SplitPart& s, int32_t part, int32_t group) {
  const int32_t given = part < split_owner(k, group) ? part : part - 1;
  return (int64_t{s.tile} * (k.parts.by - 1) + given) * kConsumerGroups + group;
}

// One consumer warpgroup of a part that is not the owner: hands its sums over.
template <int Sums>
__device__ __forceinline__ void split_give(const SplitK& k, const SplitPart& s, int32_t group, int32_t rows, uint32_t barrier,
                                           const float (&sum)[Sums], uint64_t epoch) {
  const int32_t thread = threadIdx.x % kWarpgroup;
  const int64_t slot = split_slot(k, s, s.part, group);
  float4* to = k.sums + slot * (Sums / 4) * kWarpgroup + thread;
  if (has_rows(rows)) {
#pragma unroll
    for (int i = 0; i < Sums / 4; ++i)
      to[i * kWarpgroup] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  }
  ptx::named_barrier(barrier, kWarpgroup);
  // The barrier hands the other threads' stores to thread 0, whose release covers them.
  if (thread == 0) ptx::store_release_gpu(k.flags + slot, epoch);
}

// One consumer warpgroup of the owner: adds the others' sums, once all of them are there. In the order of the parts: that the
// second is added to the first, or the first to the second, is the same.
template <int Sums>
__device__ __forceinline__ void split_take(const SplitK& k, const SplitPart& s, int32_t group, int32_t rows, uint32_t barrier,
                                           float (&sum)[Sums], uint64_t epoch, const WaitContext& w) {
  const int32_t thread = threadIdx.x % kWarpgroup;
#pragma unroll 1
  for (int32_t part = thread; part < static_cast<int32_t>(k.parts.by); part += kWarpgroup)
    if (part != s.part) wait_flag(w, kRoleSum, k.flags + split_slot(k, s, part, group), epoch);
  ptx::named_barrier(barrier, kWarpgroup);
  if (!has_rows(rows)) return;
#pragma unroll 1
  for (int32_t part = 0; part < static_cast<int32_t>(k.parts.by); ++part) {
    if (part == s.part) continue;
    const float4* from = k.sums + split_slot(k, s, part, group) * (Sums / 4) * kWarpgroup + thread;
#pragma unroll
    for (int i = 0; i < Sums / 4; ++i) {
      const float4 v = from[i * kWarpgroup];
      sum[4 * i] += v.x, sum[4 * i + 1] += v.y, sum[4 * i + 2] += v.z, sum[4 * i + 3] += v.w;
    }
  }
}

}  // namespace mk
