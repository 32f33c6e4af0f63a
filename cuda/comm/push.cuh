// Mover `sm`: warps that copy blocks of 128 rows x 64 columns of the own shard into the peers' landing buffers with
// 16-byte loads and stores, and stamp each block. They run beside the producer warp of computing CTAs, so no SM is
// given up, and the load on the SMs is even.
#pragma once
#include "comm/push_plan.h"
#include "comm/wait.cuh"
#include "kernels/gemm_tile.h"
#include "kernels/tile_order.h"

namespace mk {

// One warp copies one block; rows and columns past the end are left out.
__device__ __forceinline__ void push_one(const char* from, int64_t from_pitch, char* to, int64_t to_pitch, int32_t rows,
                                         int32_t bytes) {
  constexpr int kLanesPerRow = kRowBytes / 16;
  constexpr int kRowsPerPass = 32 / kLanesPerRow;
  constexpr int kInFlight = 4;
  static_assert(kTileM % (kRowsPerPass * kInFlight) == 0);
  const int lane = threadIdx.x % 32;
  const int column = lane % kLanesPerRow * 16;
  const int first = lane / kLanesPerRow;
  if (column >= bytes) return;
  from += first * from_pitch + column;
  to += first * to_pitch + column;
  for (int row = first; row < rows; row += kRowsPerPass * kInFlight) {
    uint4 value[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      if (row + i * kRowsPerPass < rows) value[i] = ptx::load_stream(from + i * kRowsPerPass * from_pitch);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      if (row + i * kRowsPerPass < rows) ptx::store_stream(to + i * kRowsPerPass * to_pitch, value[i]);
    from += kRowsPerPass * kInFlight * from_pitch;
    to += kRowsPerPass * kInFlight * to_pitch;
  }
}

// The whole role of one push warp, `worker` of `workers`.
__device__ __forceinline__ void push_role(const WaitContext& w, const PushPlan& p, const StampGrid& grid,
                                          uint64_t epoch, uint32_t worker, uint32_t workers) {
  const int lane = threadIdx.x % 32;
  const uint32_t blocks = static_cast<uint32_t>(grid.row_blocks) * static_cast<uint32_t>(grid.k_blocks);
  for (int32_t step = 1; step < w.world; ++step) {
    const int32_t peer = rank_after(w.rank, step, w.world);
    const int32_t place = landing_index(peer, w.rank);
    // The peer's previous call must have read this landing buffer before it is written again.
    if (lane == 0) wait_flag(w, kRoleCredit, peer, &w.control[w.rank]->credit[peer].value, epoch - 1);
    __syncwarp();
    if (aborted(w)) return;
    char* landing = p.heap[peer] + p.landing_at + place * p.landing_bytes;
    uint64_t* stamps = reinterpret_cast<uint64_t*>(p.heap[peer] + p.stamps_at);
    for (uint32_t index = worker; index < blocks; index += workers) {
      const PushBlock b = push_block(grid.row_blocks, grid.k_blocks, p.group, index);
      const int64_t row = int64_t{b.row_block} * kTileM;
      const int64_t column = int64_t{b.k_step} * kRowBytes;
      const int32_t rows = min(p.rows - static_cast<int32_t>(row), kTileM);
      const int32_t bytes = static_cast<int32_t>(min(p.row_bytes - column, int64_t{kRowBytes}));
      push_one(p.source + row * p.source_pitch + column, p.source_pitch, landing + row * p.landing_pitch + column,
               p.landing_pitch, rows, bytes);
      __syncwarp();
      // The barrier hands the other lanes' stores to lane 0, whose release covers them.
      if (lane == 0) ptx::store_release_system(stamps + stamp_index(grid, place, b.row_block, b.k_step), epoch);
    }
  }
}

}  // namespace mk
