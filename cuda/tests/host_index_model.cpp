// The kernels' index arithmetic, run on the CPU: every tile and block exactly once, and no overflow at sizes that no
// GPU holds.
#include <algorithm>
#include <set>
#include <tuple>

#include "host/ag_gemm_config.h"
#include "kernels/gemm_tile.h"
#include "kernels/tile_order.h"
#include "tests/check.h"

using namespace mk;

TEST(every_tile_once_and_own_shard_first) {
  for (const int shards : {1, 2, 3, 8})
    for (const int m : {1, 2, 5, 16, 33})
      for (const int n : {1, 3, 4, 17})
        for (const int group : {1, 2, 8, 64}) {
          const TileGrid g = {shards, m, n, group};
          std::set<std::tuple<int, int, int>> seen;
          int last_step = 0;
          for (int64_t i = 0; i < tile_units(g); ++i) {
            const TileUnit u = tile_unit(g, static_cast<uint32_t>(i));
            CHECK(u.step >= last_step && u.step < shards && u.m_unit >= 0 && u.m_unit < m && u.n_tile >= 0 && u.n_tile < n);
            last_step = u.step;
            seen.insert({u.step, u.m_unit, u.n_tile});
          }
          CHECK(static_cast<int64_t>(seen.size()) == tile_units(g));
        }
}

TEST(last_tile_of_the_largest_grid) {
  const TileGrid g = {16, 1 << 14, (1 << 13) - 1, 16};  // just under 2^31 units
  CHECK(tile_units(g) < kMaxCount);
  const TileUnit u = tile_unit(g, static_cast<uint32_t>(tile_units(g) - 1));
  CHECK(u.step == 15 && u.m_unit == (1 << 14) - 1 && u.n_tile == (1 << 13) - 2);
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

TEST(senders_and_receivers_agree_on_landing_places) {
  for (int world = 2; world <= 16; ++world)
    for (int owner = 0; owner < world; ++owner) {
      std::set<int> places;
      for (int step = 1; step < world; ++step) {
        const int source = rank_before(owner, step, world);
        CHECK(rank_after(source, step, world) == owner);
        const int place = landing_index(owner, source);
        CHECK(place >= 0 && place < world - 1);
        places.insert(place);
      }
      CHECK(static_cast<int>(places.size()) == world - 1);
    }
}

TEST(flags_lie_inside_what_was_allocated) {
  mk_ag_gemm_desc d;
  MK_INIT(&d);
  d.max_m = 32768, d.max_k = 16384;
  for (const int world : {2, 8, 16}) {
    const AgGemmCapacity c = ag_gemm_capacity(d, world);
    for (const int row_shift : {0, 2, 5})
      for (const int k_shift : {0, 3, 7}) {
        const StampGrid g = stamp_grid(d.max_m / world, d.max_k, row_shift, k_shift);
        CHECK(stamp_index(g, world - 2, g.row_blocks - 1, g.k_blocks - 1) < c.stamps);
      }
    CHECK(c.landing_bytes == (world - 1) * (d.max_m / world) * d.max_k * 2);
  }
}

TEST(flag_and_landing_offsets_pass_32_bits) {
  const StampGrid g = stamp_grid(int64_t{1} << 24, int64_t{1} << 20, 0, 0);
  CHECK(stamp_index(g, 14, g.row_blocks - 1, g.k_blocks - 1) == int64_t{15} * g.row_blocks * g.k_blocks - 1);
  CHECK(stamp_index(g, 14, 0, 0) > (int64_t{1} << 34));
  mk_ag_gemm_desc d;
  MK_INIT(&d);
  d.max_m = 1 << 20, d.max_k = 1 << 16;
  CHECK(ag_gemm_capacity(d, 2).landing_bytes == int64_t{1} << 36);
}

TEST(copies_cover_the_shard_once_and_end_small) {
  for (const int rows : {1, 2, 9})
    for (const int columns : {1, 2, 3, 16, 100}) {
      const StampGrid g = {rows, columns, 0, 0};
      std::set<std::pair<int, int>> seen;
      int count = 0, last = 0;
      for (const CopyChunk& c : ag_gemm_copies(g)) {
        last = c.k_blocks;
        for (int k = c.k_block; k < c.k_block + c.k_blocks; ++k, ++count) seen.insert({c.row_block, k});
      }
      CHECK(count == rows * columns && static_cast<int>(seen.size()) == count);
      CHECK(last == 1);
    }
}

TEST(shared_memory_regions_do_not_overlap) {
  using T = GemmTile<256, 2>;
  static_assert(T::kStagesAt < T::kStoreAt && T::kStoreAt + 2 * T::kStoreBuffers * T::kStoreBytes == T::kFullAt);
  static_assert(T::kFullAt + 8 * T::kStages == T::kEmptyAt && T::kEmptyAt + 8 * T::kStages == T::kPushedAt);
  CHECK(T::kSharedBytes <= 232448);
}
