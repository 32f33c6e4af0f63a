// Mover `sm`: one thread of each computing CTA carries blocks of 128 rows x 64 columns of the own shard through a
// buffer in shared memory into the peers' landing buffers, by TMA both ways, and stamps each block. No SM is given up
// and the load on the SMs is even.
#pragma once
#include "comm/push.h"
#include "comm/record.cuh"
#include "comm/schedule.h"
#include "comm/wait.cuh"
#include "kernels/gemm_tile.h"
#include "kernels/tile_order.h"
#include "ptx/tma.cuh"

namespace mk {

struct PushBuffer {
  char* data;        // kPushBytes, aligned as a stage
  uint64_t* loaded;  // mbarrier of one arrival
};

// What the push role needs besides the list of copies.
struct PushSpace {
  uint64_t* const* flags;         // of every rank
  const CUtensorMap* own;         // own shard in blocks
  const CUtensorMap* landing;     // own landing buffer in blocks
  const CUtensorMap* destination; // of each copy: its rows of the peer's landing buffer, so that blocks end with them
};

// The whole role. Returns the clock cycles it waited.
template <class Lane>
__device__ __forceinline__ int64_t push_role(const WaitContext& w, const PushPlan& p, const StampGrid& grid,
                                             const Copy* copies, int32_t count, const PushSpace& space,
                                             const PushBuffer& buffer, uint64_t epoch, Lane& lane) {
  const uint64_t* own_flags = space.flags[w.rank];
  uint32_t parity = 0;
  int64_t waited = 0;
  for (int32_t i = 0; i < count; ++i) {
    const Copy& c = copies[i];
    // The readers of the call before must be done with these rows before they are written again.
    lane.begin(MK_EVENT_CREDIT);
    const int64_t start = clock64();
    wait_for(w, kRolePush, own_flags, c.free, epoch);
    waited += clock64() - start;
    lane.end(MK_EVENT_CREDIT, i);
    lane.begin(MK_EVENT_PUSH);
    ptx::fence_async_global();
    if (aborted(w)) return waited;
    const uint32_t row_blocks = static_cast<uint32_t>(stamp_rows(grid, c.rows));
    const uint32_t blocks = row_blocks * static_cast<uint32_t>(grid.k_blocks);
    uint64_t* stamps = space.flags[c.peer] + c.raise;
    for (uint32_t index = blockIdx.x; index < blocks; index += p.ctas) {
      const PushBlock b = push_block(row_blocks, grid.k_blocks, p.group, index);
      const int32_t row = b.row_block * kTileM, column = b.k_step * kStepK;
      const bool own = c.own_row >= 0;
      if (!own && c.arrived != kNoFlag) {
        const int64_t at = c.arrived_field ? stamp_index(grid, b.row_block, b.k_step) : 0;
        const int64_t from = clock64();
        wait_flag(w, kRolePush, own_flags + c.arrived + at, epoch);
        waited += clock64() - from;
        ptx::fence_async_global();
      }
      ptx::mbarrier_arrive_expect(buffer.loaded, kPushBytes);
      ptx::tma_load(buffer.data, own ? space.own : space.landing, buffer.loaded, column, (own ? c.own_row : c.row) + row, 0);
      ptx::mbarrier_wait(buffer.loaded, parity);
      parity ^= 1;
      ptx::tma_store(&space.destination[i], buffer.data, column, row, 0);
      ptx::tma_store_commit();
      ptx::tma_store_wait_all();  // written, not only read: the flag says that the data is there
      ptx::store_release_system(stamps + stamp_index(grid, b.row_block, b.k_step), epoch);
    }
    lane.end(MK_EVENT_PUSH, i);
  }
  return waited;
}

}  // namespace mk
