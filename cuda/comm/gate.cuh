// Gate of a compute segment: the producer warp asks it before each K step of a tile whose A rows come from a peer.
#pragma once
#include "comm/wait.cuh"
#include "kernels/tile_order.h"

namespace mk {

struct Gate {
  const uint64_t* stamps = nullptr;  // of the tile's row block, one per K block
  int32_t k_blocks = 0;
  int32_t k_shift = 0;
  int32_t ready = 0;                 // K steps before this one are known to have arrived, from the last wait on
  int64_t waited = 0;                // clock cycles this warp has spent here

  __device__ __forceinline__ void start(const uint64_t* flags, const StampGrid& grid, int32_t m_tile) {
    stamps = flags + stamp_index(grid, m_tile >> grid.row_shift, 0);
    k_blocks = grid.k_blocks;
    k_shift = grid.k_shift;
    ready = 0;
  }

  // The whole warp, converged: returns when the data of `k_step` has arrived (or the job was aborted), and notes how
  // many further steps have. Each lane looks at one K block. After it any lane may issue TMA loads of that data.
  __device__ __forceinline__ void wait(const WaitContext& w, uint64_t epoch, int32_t k_step) {
    const int lane = threadIdx.x % 32;
    const int32_t block = k_step >> k_shift;
    const bool mine = block + lane < k_blocks;
    const uint64_t* flag = stamps + block + (mine ? lane : 0);
    const int64_t start_clock = clock64();
    WaitClock clock;
    uint32_t arrived;
#pragma unroll 1
    for (;;) {
      const uint64_t seen = ptx::load_acquire_system(flag);
      arrived = __ballot_sync(0xFFFFFFFFu, !mine || seen >= epoch);
      if (arrived & 1) break;
      bool over = false;
      if (lane == 0) over = clock.expired(w, kRoleProducer, flag, seen, epoch);
      if (__any_sync(0xFFFFFFFFu, over)) {
        arrived = 0xFFFFFFFFu;
        break;
      }
    }
    __syncwarp();
    ptx::fence_async_global();
    const int run = arrived == 0xFFFFFFFFu ? 32 : __ffs(~arrived) - 1;
    ready = (block + run) << k_shift;
    waited += clock64() - start_clock;
  }

  // The same for all steps from `first` to `end`.
  __device__ __forceinline__ void wait_all(const WaitContext& w, uint64_t epoch, int32_t first, int32_t end) {
    for (ready = first; ready < end;) wait(w, epoch, ready);
  }
};

}  // namespace mk
