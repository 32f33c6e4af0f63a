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

// The tiles of one segment: `m_units` x `n_tiles` units, each the work of one cluster.
struct TileGrid {
  int32_t m_units;
  int32_t n_tiles;
  int32_t group;  // units of M that are walked together before N moves on, so that both operands stay in L2
};

struct TileUnit {
  int32_t m_unit;
  int32_t n_tile;
};

MK_BOTH int64_t tile_units(const TileGrid& g) { return int64_t{g.m_units} * g.n_tiles; }

// `index` < tile_units(g) <= kMaxCount.
MK_BOTH TileUnit tile_unit(const TileGrid& g, uint32_t index) {
  const uint32_t m_units = g.m_units, n_tiles = g.n_tiles, group = g.group;
  const uint32_t per_group = group * n_tiles;
  const uint32_t first = index / per_group * group;
  const uint32_t rows = m_units - first < group ? m_units - first : group;
  const uint32_t in_group = index % per_group;
  return {static_cast<int32_t>(first + in_group % rows), static_cast<int32_t>(in_group / rows)};
}

// How a field of flags is cut in this launch: one stamp per block of (128 << row_shift) rows and (64 << k_shift) columns,
// counted from the region's first row and column, in row-block-major order, so the producer reads the flags of
// successive K steps together.
struct StampGrid {
  int32_t k_blocks;
  int32_t row_shift;
  int32_t k_shift;
};

// A plain flag: one stamp for all rows (128 << 24 of them) and columns (64 << 25; K steps past it still fit in 32 bits).
MK_BOTH StampGrid one_stamp() { return {1, 24, 25}; }

MK_BOTH StampGrid stamp_grid(int64_t k, int32_t row_shift, int32_t k_shift) {
  return {static_cast<int32_t>(ceil_div(k, int64_t{64} << k_shift)), row_shift, k_shift};
}

MK_BOTH int64_t stamp_rows(const StampGrid& g, int64_t rows) { return ceil_div(rows, int64_t{128} << g.row_shift); }

MK_BOTH int64_t stamp_index(const StampGrid& g, int64_t row_block, int64_t k_block) { return row_block * g.k_blocks + k_block; }

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
