// The kernels' index arithmetic, run on the CPU: every tile and block exactly once, and no overflow at sizes that no
// GPU holds.
#include <algorithm>
#include <climits>
#include <set>
#include <tuple>
#include <vector>

#include "host/ag_gemm_config.h"
#include "kernels/gemm_tile.h"
#include "kernels/tile_order.h"
#include "tests/check.h"

using namespace mk;

TEST(every_tile_once) {
  for (const int m : {1, 2, 5, 16, 33})
    for (const int n : {1, 3, 4, 17})
      for (const int group : {1, 2, 8, 64}) {
        const TileGrid g = tile_grid(n, group);
        const Divisor last = last_group(g, m);
        std::set<std::tuple<int, int>> seen;
        for (int64_t i = 0; i < int64_t{m} * n; ++i) {
          const TileUnit u = tile_unit(g, m, last, static_cast<uint32_t>(i));
          CHECK(u.m_unit >= 0 && u.m_unit < m && u.n_tile >= 0 && u.n_tile < n);
          seen.insert({u.m_unit, u.n_tile});
        }
        CHECK(static_cast<int64_t>(seen.size()) == int64_t{m} * n);
      }
}

// Divisors at and around powers of two, up to 2^31, and of dividends at and around their multiples.
TEST(quotients_are_exact) {
  std::vector<uint32_t> numbers = {1, 2, 3, 5, 6, 7, 10, 12, 100, 641, 65535, 6700417, 0x7FFFFFFF};
  for (int bit = 2; bit < 31; ++bit)
    for (const int off : {-1, 0, 1}) numbers.push_back((1u << bit) + off);
  numbers.push_back(1u << 31);
  for (const uint32_t by : numbers) {
    const Divisor d = divisor(by);
    for (const uint32_t n : numbers)
      for (const int64_t dividend : {int64_t{0}, int64_t{n}, int64_t{n} - 1, int64_t{by} * 3 - 1, int64_t{by} * 3, int64_t{n} / by * by})
        if (dividend >= 0 && dividend < kMaxCount) CHECK(quotient(static_cast<uint32_t>(dividend), d) == dividend / by);
  }
}

TEST(last_tile_of_the_largest_grid) {
  const int m_units = 1 << 18;
  const TileGrid g = tile_grid((1 << 13) - 1, 16);  // just under 2^31 units
  CHECK(int64_t{m_units} * g.n_tiles < kMaxCount);
  const TileUnit u = tile_unit(g, m_units, last_group(g, m_units), static_cast<uint32_t>(int64_t{m_units} * g.n_tiles - 1));
  CHECK(u.m_unit == (1 << 18) - 1 && u.n_tile == (1 << 13) - 2);
}

TEST(every_pushed_block_once) {
  for (const int rows : {1, 3, 32})
    for (const int steps : {1, 5, 128})
      for (const int group : {1, 2, 7, 40}) {
        std::set<std::pair<int, int>> seen;
        for (uint32_t i = 0; i < static_cast<uint32_t>(rows * steps); ++i) {
          const PushBlock b = push_block(rows, steps, group, i);
          CHECK(b.row_block >= 0 && b.row_block < rows && b.k_step >= 0 && b.k_step < steps);
          seen.insert({b.row_block, b.k_step});
        }
        CHECK(static_cast<int>(seen.size()) == rows * steps);
      }
}

TEST(a_group_of_blocks_advances_k_together) {
  for (uint32_t i = 0; i < 8; ++i) CHECK(push_block(16, 4, 8, i).k_step == 0);
  CHECK(push_block(16, 4, 8, 8).k_step == 1 && push_block(16, 4, 8, 8).row_block == 0);
  CHECK(push_block(16, 4, 8, 32).row_block == 8);
}

TEST(stamp_indices_pass_32_bits) {
  const StampGrid g = stamp_grid(int64_t{1} << 24, 0, 0);
  CHECK(stamp_index(g, stamp_rows(g, int64_t{1} << 28) - 1, g.k_blocks - 1) == stamp_rows(g, int64_t{1} << 28) * g.k_blocks - 1);
  CHECK(stamp_index(g, int64_t{1} << 20, 0) > (int64_t{1} << 34));
}

TEST(one_stamp_stands_for_all_rows_and_steps) {
  const StampGrid g = one_stamp();
  const int32_t last_tile = ((int64_t{1} << 31) - 1) / 128, last_step = ((int64_t{1} << 31) - 1) / 64;
  CHECK((last_tile >> g.row_shift) == 0 && (last_step >> g.k_shift) == 0);
  CHECK((int64_t{32} << g.k_shift) < INT32_MAX && (1 << g.k_shift) > last_step);  // what a gate computes
}

TEST(copies_cover_the_shard_once_and_the_last_ends_small) {
  for (const bool last : {false, true})
    for (const int rows : {1, 2, 9})
      for (const int columns : {1, 2, 3, 16, 100}) {
        const StampGrid g = {columns, 0, 0};
        std::set<std::pair<int, int>> seen;
        const std::vector<CopyChunk> chunks = ag_gemm_copies(g, rows * 128 - 5, last);
        int count = 0;
        for (const CopyChunk& c : chunks)
          for (int k = c.k_block; k < c.k_block + c.k_blocks; ++k, ++count) seen.insert({c.row_block, k});
        CHECK(count == rows * columns && static_cast<int>(seen.size()) == count);
        if (last) {
          CHECK(chunks.back().k_blocks == 1);
        } else {
          CHECK(static_cast<int>(chunks.size()) == rows);
        }
      }
  CHECK(ag_gemm_copies({16, 0, 0}, 0, true).empty() && ag_gemm_copies({16, 0, 0}, 0, false).empty());
}

TEST(shared_memory_regions_do_not_overlap) {
  using T = GemmTile<128, 256, 2>;
  static_assert(T::kStagesAt < T::kStoreAt && T::kStoreAt + 2 * T::kStoreBuffers * T::kStoreBytes == T::kFullAt);
  static_assert(T::kFullAt + 8 * T::kStages == T::kEmptyAt && T::kEmptyAt + 8 * T::kStages == T::kPushedAt);
  CHECK(T::kSharedBytes <= 232448);
}
