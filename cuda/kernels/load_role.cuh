// The loading warp: A and B of each tile by TMA into the ring, rows of peers once the gate lets them pass.
#pragma once
#include "comm/gate.cuh"
#include "comm/record.cuh"
#include "kernels/gemm_core.cuh"
#include "kernels/split_k.cuh"
#include "kernels/tile_walk.cuh"
#include "ptx/elect.cuh"

namespace mk {
namespace {

// Where the loads of a tile begin, and in which tensor its rows of A are.
struct TileSource {
  const CUtensorMap* a;
  int row;    // of A
  int b_row;  // of B
};

template <class Tile, class Params>
__device__ __forceinline__ TileSource tile_source(const Params& p, const TileCursor<Tile>& tile) {
  const Segment& segment = p.segments[tile.segment];
  const int32_t b_row = tile.n_tile * Tile::kTileN;
  if constexpr (Params::kWaits) {
    if (segment.own_row < 0) return {&p.landing, segment.row + tile.m_tile * kTileM, b_row};
  }
  return {&p.a, segment.own_row + tile.m_tile * kTileM, b_row};
}

// The first stages of a CTA's first tile: as many as the ring holds, or none where they have to wait for something.
struct FirstTile {
  TileSource from = {};
  int32_t step = 0, stages = 0;
};

// The loading warp, while another one makes the mbarriers.
template <class Tile, class Params>
__device__ __forceinline__ FirstTile first_tile(const Params& p) {
  FirstTile f;
  const UnitRange<Tile> units(p);
  if (units.first >= units.end) return f;
  if constexpr (Params::kWaits) {
    if (p.merged) return f;
  }
  TileCursor<Tile> tile;
  const SplitPart part = split_part(p, units.first);
  tile.move_to(p, part.tile, 0);
  f.step = part.first_step;
  f.from = tile_source(p, tile);
  if (p.segments[tile.segment].flag == kNoFlag)
    f.stages = min(Tile::kStages, (part.end_step - part.first_step + Tile::kStageSteps - 1) / Tile::kStageSteps);
  return f;
}

// The loading warp, before it takes up its role: fills the ring, and returns how many stages it has asked for. This stands where a
// CTA starts, because each jump to code that is in no cache yet costs hundreds of cycles; those to the roles are then under the loads.
template <class Tile, class Params>
__device__ __forceinline__ int32_t first_loads(const Params& p, const GemmShared<Tile>& s, const FirstTile& first) {
  if (ptx::elect_one()) {
    RingPosition<Tile> at;
    const auto load_a = [&](char* to, uint64_t* full, int column) { ptx::tma_load(to, first.from.a, full, column, first.from.row, 0); };
#pragma unroll 1
    for (; at.stage < first.stages; ++at.stage)
      gemm_load_stage<Tile>(s, at, load_a, p.a_bytes, &p.b, first.from.b_row, first.step + at.stage * Tile::kStageSteps, 0);
  }
  __syncwarp();
  return first.stages;
}

// `loaded`: stages of the first tile that are on their way.
template <class Tile, class Params, class Lane>
__device__ __forceinline__ void producer_role(const Params& p, const GemmShared<Tile>& s, int32_t loaded, Lane& record) {
  const int lane = threadIdx.x % 32;
  const uint32_t cta = cta_in_cluster<Tile>();
  const uint64_t epoch = current_epoch(p);
  const UnitRange<Tile> units(p);
  TileCursor<Tile> tile;
  RingPosition<Tile> at = {loaded % Tile::kStages, static_cast<uint32_t>(loaded) / Tile::kStages};  // of the lane that loads
  Gate gate;
  for (uint32_t unit = units.first; unit < units.end; unit += units.stride) {
    record.begin(MK_EVENT_LOAD);
    const SplitPart part = split_part(p, unit);
    tile.move_to(p, part.tile, cta);
    bool gated = false;
    if constexpr (Params::kWaits) {
      const Segment& segment = p.segments[tile.segment];
      // The second CTA of a cluster may have no rows where a segment ends.
      gated = segment.flag != kNoFlag && tile.m_tile * kTileM < segment.rows;
      if (gated)
        gate.start(p.flags[p.wait.rank] + segment.flag, segment.field ? p.gate : one_stamp(), tile.m_tile);
    }
    const TileSource from = tile_source(p, tile);
    for (int32_t step = part.first_step + loaded * Tile::kStageSteps; step < part.end_step;) {
      if constexpr (Params::kWaits) {
        const int32_t last = min(step + Tile::kStageSteps, part.end_step) - 1;
        while (gated && last >= gate.ready) {
          record.begin(MK_EVENT_WAIT);
          gate.wait(p.wait, epoch, max(step, gate.ready));
          record.end(MK_EVENT_WAIT, tile.segment);
        }
      }
      // All whole stages that have arrived at once.
      int32_t end = part.end_step;
      if (gated && gate.ready < end) end = step + (gate.ready - step) / Tile::kStageSteps * Tile::kStageSteps;
      if (ptx::elect_one()) {
        const auto load_a = [&](char* to, uint64_t* full, int column) { ptx::tma_load(to, from.a, full, column, from.row, 0); };
        for (int32_t next = step; next < end; next += Tile::kStageSteps) {
          gemm_load_stage<Tile>(s, at, load_a, p.a_bytes, &p.b, from.b_row, next, cta);
          at.advance();
        }
      }
      __syncwarp();
      step = end;
    }
    loaded = 0;
    record.end(MK_EVENT_LOAD, unit);
  }
  if (ptx::elect_one()) gemm_drain<Tile>(s, at);
  note_waited(p, kRoleProducer, lane == 0, gate.waited);
}

// The loading warp of a rank without columns: it reads no rows, but the end of its call says that they may be overwritten, which must
// not be before they have come.
template <class Params>
__device__ __forceinline__ void await_rows(const Params& p) {
  const uint64_t epoch = current_epoch(p);
  Gate gate;
  for (int32_t i = 0; i < p.segment_count; ++i) {
    const Segment& segment = p.segments[i];
    if (segment.flag == kNoFlag) continue;
    for (int32_t m_tile = blockIdx.x; m_tile * kTileM < segment.rows; m_tile += gridDim.x) {
      gate.start(p.flags[p.wait.rank] + segment.flag, segment.field ? p.gate : one_stamp(), m_tile);
      gate.wait_all(p.wait, epoch, 0, p.k_steps);
    }
  }
  note_waited(p, kRoleProducer, threadIdx.x == 0, gate.waited);
}

// Bytes of B that a merged tile asks into L2 while it waits for the peers' rows.
constexpr int kPrefetchBytes = 24 * 128 * kRowBytes;

// The producer of merged tiles: each K step takes the rows of all segments.
template <class Tile, class Params, class Lane>
__device__ __forceinline__ void merged_producer_role(const Params& p, const GemmShared<Tile>& s, Lane& record) {
  const int lane = threadIdx.x % 32;
  const uint64_t epoch = current_epoch(p);
  const UnitRange<Tile> units(p);
  RingPosition<Tile> at;  // of the lane that loads
  Gate gate;
  for (uint32_t unit = units.first; unit < units.end; unit += units.stride) {
    record.begin(MK_EVENT_LOAD);
    const SplitPart part = split_part(p, unit);
    const int b_row = static_cast<int>(part.tile) * Tile::kTileN;
    constexpr int kPrefetchSteps = kPrefetchBytes / Tile::kBBytes;
#pragma unroll 1
    for (int32_t step = part.first_step + lane; step < min(part.end_step, part.first_step + kPrefetchSteps); step += 32)
      ptx::tma_prefetch(&p.b, step * kStepK, b_row, 0);
    for (int32_t i = 0; i < p.segment_count; ++i) {
      const Segment& segment = p.segments[i];
      if (segment.flag == kNoFlag) continue;
      gate.start(p.flags[p.wait.rank] + segment.flag, segment.field ? p.gate : one_stamp(), 0);
      record.begin(MK_EVENT_WAIT);
      gate.wait_all(p.wait, epoch, part.first_step, part.end_step);
      record.end(MK_EVENT_WAIT, i);
    }
    if (ptx::elect_one()) {
      const auto load_a = [&](char* to, uint64_t* full, int column) {
        for (int32_t i = 0; i < p.segment_count; ++i) {
          const Segment& segment = p.segments[i];
          const bool own = segment.own_row >= 0;
          ptx::tma_load(to + segment.row * kRowBytes, own ? &p.a : &p.landing, full, column,
                        own ? segment.own_row : segment.row, 0);
        }
      };
      for (int32_t step = part.first_step; step < part.end_step; step += Tile::kStageSteps) {
        gemm_load_stage<Tile>(s, at, load_a, p.a_bytes, &p.b, b_row, step, 0);
        at.advance();
      }
    }
    __syncwarp();
    record.end(MK_EVENT_LOAD, unit);
  }
  if (ptx::elect_one()) gemm_drain<Tile>(s, at);
  note_waited(p, kRoleProducer, lane == 0, gate.waited);
}

}  // namespace
}  // namespace mk
