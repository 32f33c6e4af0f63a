// Mover `sm`: one thread of each computing CTA carries blocks of 128 rows x 64 columns of the own shard through a
// buffer in shared memory into the peers' landing buffers, by TMA both ways, and stamps each block. No SM is given up
// and the load on the SMs is even.
#pragma once
#include "comm/push.h"
#include "comm/wait.cuh"
#include "kernels/gemm_tile.h"
#include "kernels/tile_order.h"
#include "ptx/tma.cuh"

namespace mk {

struct PushBuffer {
  char* data;        // kPushBytes, aligned as a stage
  uint64_t* loaded;  // mbarrier of one arrival
};

// The whole role: `own` maps the shard to be sent, `landing[peer]` the place it goes to.
__device__ __forceinline__ void push_role(const WaitContext& w, const PushPlan& p, const StampGrid& grid,
                                          const CUtensorMap* own, const CUtensorMap* landing, char* const* heap,
                                          const PushBuffer& buffer, uint64_t epoch) {
  const uint32_t blocks = static_cast<uint32_t>(grid.row_blocks) * static_cast<uint32_t>(grid.k_blocks);
  uint32_t parity = 0;
  for (int32_t step = 1; step < w.world; ++step) {
    const int32_t peer = rank_after(w.rank, step, w.world);
    const int32_t place = landing_index(peer, w.rank);
    // The peer's previous call must have read this landing buffer before it is written again.
    wait_flag(w, kRoleCredit, peer, &w.control[w.rank]->credit[peer].value, epoch - 1);
    ptx::fence_async_global();
    if (aborted(w)) return;
    uint64_t* stamps = reinterpret_cast<uint64_t*>(heap[peer] + p.stamps_at);
    for (uint32_t index = blockIdx.x; index < blocks; index += p.ctas) {
      const PushBlock b = push_block(grid.row_blocks, grid.k_blocks, p.group, index);
      const int32_t row = b.row_block * kTileM, column = b.k_step * kStepK;
      ptx::mbarrier_arrive_expect(buffer.loaded, kPushBytes);
      ptx::tma_load(buffer.data, own, buffer.loaded, column, row, 0);
      ptx::mbarrier_wait(buffer.loaded, parity);
      parity ^= 1;
      ptx::tma_store(&landing[peer], buffer.data, column, row, 0);
      ptx::tma_store_commit();
      ptx::tma_store_wait_all();  // written, not only read: the flag says that the data is there
      ptx::store_release_system(stamps + stamp_index(grid, place, b.row_block, b.k_step), epoch);
    }
  }
}

}  // namespace mk
