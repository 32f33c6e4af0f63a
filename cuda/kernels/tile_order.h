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

// A divisor that the host prepares: a division by it is a multiplication and a shift. On a GPU a division is some 25 instructions,
// and before the first load of a kernel each instruction counts, because none of them is in a cache yet.
struct Divisor {
  uint32_t by;
  uint32_t magic, shift;
};

// `by` from 1 to 2^31. With s = ceil(log2 by): magic = floor(2^32 * (2^s - by) / by) + 1 (Granlund and Montgomery).
inline Divisor divisor(uint32_t by) {
  uint32_t s = 0;
  while ((uint64_t{1} << s) < by) ++s;
  return {by, static_cast<uint32_t>((((uint64_t{1} << s) - by) << 32) / by + 1), s};
}

// n / d, for n below 2^31.
MK_BOTH uint32_t quotient(uint32_t n, const Divisor& d) {
  return (static_cast<uint32_t>((uint64_t{n} * d.magic) >> 32) + n) >> d.shift;
}

// Order of the tiles of a launch's segments. A segment is `m_units` x `n_tiles` units, each the work of one cluster.
struct TileGrid {
  int32_t n_tiles;
  Divisor group;      // units of M that are walked together before N moves on, so that both operands stay in L2
  Divisor per_group;  // units of such a group
};

inline TileGrid tile_grid(int32_t n_tiles, int32_t group) {
  const uint32_t per_group = static_cast<uint32_t>(group) * static_cast<uint32_t>(n_tiles);
  return {n_tiles, divisor(static_cast<uint32_t>(group)), divisor(per_group > 0 ? per_group : 1)};
}

// Units of M in a segment's last group.
inline Divisor last_group(const TileGrid& g, int64_t m_units) {
  const uint32_t rest = static_cast<uint32_t>(m_units % g.group.by);
  return rest == 0 ? g.group : divisor(rest);
}

struct TileUnit {
  int32_t m_unit;
  int32_t n_tile;
};

// Unit `index` < m_units * n_tiles <= kMaxCount of a segment; `last`: of last_group.
MK_BOTH TileUnit tile_unit(const TileGrid& g, uint32_t m_units, const Divisor& last, uint32_t index) {
  const uint32_t group = quotient(index, g.per_group);
  const uint32_t first = group * g.group.by, in_group = index - group * g.per_group.by;
  const bool whole = m_units - first >= g.group.by;
  const Divisor rows = {whole ? g.group.by : last.by, whole ? g.group.magic : last.magic, whole ? g.group.shift : last.shift};
  const uint32_t n_tile = quotient(in_group, rows);
  return {static_cast<int32_t>(first + in_group - n_tile * rows.by), static_cast<int32_t>(n_tile)};
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
