// The index model of the kernels: order of tiles, order of pushed blocks, flags. Plain integer functions that the
// host tests run at sizes no GPU holds. Counts of tiles and of blocks are 32-bit, because 64-bit division is a call on
// the GPU: the host refuses shapes that pass kMaxCount. Offsets are 64-bit.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define MK_BOTH __host__ __device__ __forceinline__
#else
#define MK_BOTH inline
#endif

namespace mk {

constexpr int64_t kMaxCount = int64_t{1} << 31;

MK_BOTH int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Row-sharded A: `shards` blocks of rows, the own one first, then those of rank-1, rank-2, ... (their senders push
// to rank+1, rank+2, ... in that order). A unit is the work of one cluster: `m_units` x `n_tiles` of them per shard.
struct TileGrid {
  int32_t shards;
  int32_t m_units;
  int32_t n_tiles;
  int32_t group;  // units of M that are walked together before N moves on, so that both operands stay in L2
};

struct TileUnit {
  int32_t step;  // distance of the shard's owner: 0 is the own shard
  int32_t m_unit;
  int32_t n_tile;
};

MK_BOTH int64_t tile_units(const TileGrid& g) { return int64_t{g.shards} * g.m_units * g.n_tiles; }

// `index` < tile_units(g) <= kMaxCount.
MK_BOTH TileUnit tile_unit(const TileGrid& g, uint32_t index) {
  const uint32_t m_units = g.m_units, n_tiles = g.n_tiles, group = g.group;
  const uint32_t per_shard = m_units * n_tiles;
  const uint32_t step = index / per_shard;
  const uint32_t in_shard = index - step * per_shard;
  const uint32_t per_group = group * n_tiles;
  const uint32_t first = in_shard / per_group * group;
  const uint32_t rows = m_units - first < group ? m_units - first : group;
  const uint32_t in_group = in_shard % per_group;
  return {static_cast<int32_t>(step), static_cast<int32_t>(first + in_group % rows),
          static_cast<int32_t>(in_group / rows)};
}

// The rank `step` before / after `rank` in the ring of `world`.
MK_BOTH int32_t rank_before(int32_t rank, int32_t step, int32_t world) { return (rank - step + world) % world; }
MK_BOTH int32_t rank_after(int32_t rank, int32_t step, int32_t world) { return (rank + step) % world; }

// Place of `source`'s shard among the landing shards of `owner`, who keeps none for itself.
MK_BOTH int32_t landing_index(int32_t owner, int32_t source) { return source < owner ? source : source - 1; }

// Stamps (flags with one writer) of a landing shard: one per block of (128 << row_shift) rows and
// (64 << k_shift) columns, in row-block-major order, so the producer reads the flags of successive K steps together.
struct StampGrid {
  int32_t row_blocks;
  int32_t k_blocks;
  int32_t row_shift;
  int32_t k_shift;
};

MK_BOTH StampGrid stamp_grid(int64_t shard_rows, int64_t k, int32_t row_shift, int32_t k_shift) {
  return {static_cast<int32_t>(ceil_div(shard_rows, int64_t{128} << row_shift)),
          static_cast<int32_t>(ceil_div(k, int64_t{64} << k_shift)), row_shift, k_shift};
}

MK_BOTH int64_t stamp_index(const StampGrid& g, int32_t landing, int32_t row_block, int32_t k_block) {
  return (int64_t{landing} * g.row_blocks + row_block) * g.k_blocks + k_block;
}

// Order in which blocks of 128 rows x 64 columns are pushed to one peer: groups of `group` row blocks, each group
// K step by K step, so that all tiles of one wave of the receiver advance together.
struct PushBlock {
  int32_t row_block;
  int32_t k_step;
};

MK_BOTH PushBlock push_block(uint32_t row_blocks, uint32_t k_steps, uint32_t group, uint32_t index) {
  const uint32_t per_group = group * k_steps;
  const uint32_t first = index / per_group * group;
  const uint32_t rows = row_blocks - first < group ? row_blocks - first : group;
  const uint32_t in_group = index % per_group;
  return {static_cast<int32_t>(first + in_group % rows), static_cast<int32_t>(in_group / rows)};
}

}  // namespace mk
