// A consumer warpgroup: multiplies its part of each tile, adds up what others have of it, and stores it while the next one is
// multiplied.
#pragma once
#include "comm/record.cuh"
#include "kernels/gemm_core.cuh"
#include "kernels/split_k.cuh"
#include "kernels/tile_walk.cuh"

namespace mk {
namespace {

template <class Tile, typename T, class Params, class Lane>
__device__ __forceinline__ void consumer_role(const Params& p, const GemmShared<Tile>& s, int group, Lane& record) {
  const uint32_t cta = cta_in_cluster<Tile>();
  const UnitRange<Tile> units(p);
  // The push role of this CTA has the second pair of store buffers. Tiles of one pass would begin with the first each time.
  bool one_buffer = Tile::kStorePasses == 1;
  bool split = false;
  if constexpr (Params::kWaits) {
    one_buffer |= static_cast<int32_t>(blockIdx.x) < p.push.ctas;
    split = Tile::kTileN <= kSplitTileN && p.split.parts.by > 1;
  }
  // Read before the CTA can leave; on its way under the first product.
  const uint64_t epoch = split ? current_epoch(p) : 0;
  TileCursor<Tile> tile;
  RingPosition<Tile> at;
  float sum[Tile::kTileN / 2];
  TileOutput<Tile> out;
  const PlainOutput plain = {p.c_base, p.c_pitch, p.n};
  uint32_t unit = units.first;
  const auto store_box = [&](int pass) {
    if (out.rows == out.kNothing) return;
    if (pass == 0) record.begin(MK_EVENT_STORE);
    gemm_store_box<Tile>(s, group, pass, one_buffer, out, &p.c, plain);
    if (pass == Tile::kStorePasses - 1) record.end(MK_EVENT_STORE, unit - units.stride);
  };
  for (; unit < units.end; unit += units.stride) {
    const SplitPart part = split_part(p, unit);
    record.begin(MK_EVENT_MULTIPLY);
    int32_t row = Tile::kNarrow ? 0 : group * kGroupM;  // first row of C
    int32_t column, rows;                               // and how many rows from there on are this group's or later's
    bool merged = false;
    if constexpr (Params::kWaits) merged = p.merged;
    if (merged) {
      column = static_cast<int32_t>(part.tile) * Tile::kTileN;
      rows = p.m - row;
    } else {
      tile.move_to(p, part.tile, cta);
      const Segment& segment = p.segments[tile.segment];
      row += tile.m_tile * kTileM;
      rows = segment.rows - row;
      row += segment.row;
      column = tile.n_tile * Tile::kTileN;
    }
    const int32_t steps = part.end_step - part.first_step;
    gemm_multiply<Tile, T>(s, at, group, (steps + Tile::kStageSteps - 1) / Tile::kStageSteps, sum, store_box);
    record.end(MK_EVENT_MULTIPLY, unit);
    out.rows = out.kNothing;
    if (rows <= 0) continue;
    if constexpr (Tile::kNarrow) {
      if (group == 1) {
        gemm_give_sums<Tile>(s, sum, has_rows(rows), unit != units.first);
        continue;
      }
      gemm_take_sums<Tile>(s, sum, has_rows(rows), unit + units.stride < units.end);
    }
    if constexpr (Tile::kTileN <= kSplitTileN && Params::kWaits) {
      if (split) {
        const uint32_t barrier = kBarrierEpilogue + group;
        if (!split_adds(p.split, part, group)) {
          record.begin(MK_EVENT_STORE);
          split_give(p.split, part, group, rows, barrier, sum, epoch);
          record.end(MK_EVENT_STORE, unit);
          continue;
        }
        split_take(p.split, part, group, rows, barrier, sum, epoch, p.wait);
      }
    }
    if constexpr (Tile::kNarrow) {
      record.begin(MK_EVENT_STORE);
      T* c = static_cast<T*>(p.c_base) + row * p.c_pitch + column;
      gemm_store_direct<Tile, T>(sum, c, p.c_pitch, rows, p.n - column);
      record.end(MK_EVENT_STORE, unit);
    } else {
      // A TMA store ends at the last row and, where it is a multiple of 16 bytes, column of C, but not at a segment's last row.
      const bool by_tma = (rows >= kGroupM || row + rows == p.m) && (p.n % 8 == 0 || p.n - column >= Tile::kTileN);
      gemm_pack<Tile, T>(out, sum);
      out.column = column, out.row = row, out.rows = by_tma ? out.kByTma : min(rows, kGroupM);
    }
  }
  if (out.rows != out.kNothing) {
    record.begin(MK_EVENT_STORE);
    gemm_store_last<Tile>(s, group, out, &p.c, plain);
    record.end(MK_EVENT_STORE, unit - units.stride);
  }
  if (threadIdx.x % kWarpgroup == 0) ptx::tma_store_wait_all();
}

}  // namespace
}  // namespace mk
