// How the roles of a CTA walk their tiles: the order of kernels/tile_order.h over the segments of the plan.
#pragma once
#include "comm/wait.cuh"
#include "kernels/ag_gemm.h"
#include "kernels/gemm_tile.h"
#include "kernels/tile_order.h"
#include "ptx/fence.cuh"

namespace mk {
namespace {

// Number of the call in flight; 0 where nobody waits. The epoch word stands still until all CTAs have left: a role asks before its own
// can.
template <class Params>
__device__ __forceinline__ uint64_t current_epoch(const Params& p) {
  if constexpr (Params::kWaits) return p.wait.control[p.wait.rank]->epoch.value + 1;
  return 0;
}

// The units of work of this CTA's cluster (parts of tiles): first, first + stride, ... < end.
template <class Tile>
struct UnitRange {
  uint32_t first = blockIdx.x / Tile::kCluster;
  uint32_t stride = gridDim.x / Tile::kCluster;
  uint32_t end;
  __device__ __forceinline__ explicit UnitRange(const AgGemmProduct& p) : end(p.units) {}
};

// The tile of a unit. Units are asked for in rising order, so the segment is found by going on from the last one.
template <class Tile>
struct TileCursor {
  int32_t segment = 0;
  uint32_t start = 0;  // first unit of the segment
  int32_t m_tile = 0;  // inside the segment
  int32_t n_tile = 0;

  template <class Params>
  __device__ __forceinline__ void move_to(const Params& p, uint32_t tile, uint32_t cta) {
    while (tile >= p.segments[segment].end) start = p.segments[segment++].end;
    const uint32_t m_units = static_cast<uint32_t>(p.segments[segment].rows + kTileM * Tile::kCluster - 1) / (kTileM * Tile::kCluster);
    const TileUnit u = tile_unit(p.tiles, m_units, p.segments[segment].last_group, tile - start);
    m_tile = u.m_unit * Tile::kCluster + static_cast<int32_t>(cta);
    n_tile = u.n_tile;
  }
};

template <class Tile>
__device__ __forceinline__ uint32_t cta_in_cluster() {
  return Tile::kCluster == 1 ? 0 : ptx::cluster_cta_rank();
}

// What mk_ag_gemm_waited reports.
__device__ __forceinline__ void note_waited(const AgGemmProduct& p, Role role, bool mine, int64_t cycles) {
  if (mine) p.waited[static_cast<int64_t>(blockIdx.x) * kRoles + role] = cycles;
}

}  // namespace
}  // namespace mk
