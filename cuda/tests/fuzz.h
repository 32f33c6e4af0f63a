// Random calls of ag_gemm: shapes with tails and settings of every kind, from a seed, so the same on all ranks.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "include/mkernel.h"

namespace test {

struct Draw {
  int64_t m, n, k, extra;  // extra: added to each leading dimension
  bool half;               // f16, else bf16
  mk_ag_gemm_config config;
};

class Fuzz {
 public:
  // `copies`: the copy engine can serve these ranks. `most_ctas`: of one rank; fewer where ranks share a GPU.
  Fuzz(uint64_t seed, int world, bool copies, int most_ctas = 132)
      : state_(seed * 0xD1B54A32D192ED03ull), world_(world), copies_(copies), most_ctas_(most_ctas) {}

  Draw next() {
    Draw d = {};
    d.m = one_in(4) ? size(1024) * world_ : size(1024 * world_);
    d.n = size(1500);
    d.k = 8 * size(200);
    d.extra = one_in(2) ? 0 : 8 * below(4);
    d.half = one_in(4);
    mk_ag_gemm_config& c = d.config;
    MK_INIT(&c);
    c.mover = static_cast<int32_t>(below(copies_ ? 3 : 2));
    const bool narrow = d.m <= 64 * world_ && one_in(2);  // tiles of 64 rows
    c.tile_n = narrow ? pick({32, 64}) : pick({0, 64, 128, 256});
    c.cluster = c.tile_n == 32 || c.tile_n == 64 ? pick({0, 1}) : pick({0, 1, 2});
    c.ctas = one_in(2) ? 0 : std::min(most_ctas_, 2 + static_cast<int32_t>(below(130)));
    c.raster_group = one_in(2) ? 0 : 1 + static_cast<int32_t>(below(24));
    c.split_k = one_in(2) ? 0 : 1;
    if (c.mover == MK_MOVER_SM) {
      c.push_ctas = one_in(2) ? 0 : 1 + static_cast<int32_t>(below(132));
      c.push_group = one_in(2) ? 0 : 1 + static_cast<int32_t>(below(16));
    } else if (c.mover == MK_MOVER_CE) {
      c.row_block = one_in(2) ? 0 : 128 << below(6);
      c.k_block = one_in(2) ? 0 : 64 << below(7);
    }
    return d;
  }

 private:
  uint64_t draw() {
    uint64_t x = state_ += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(draw() % static_cast<uint64_t>(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  int32_t pick(std::initializer_list<int32_t> from) { return from.begin()[below(static_cast<int64_t>(from.size()))]; }
  // 1 to `most`: two of three times as many small ones as large ones; one in four lies at a multiple of 64 or next to it.
  int64_t size(int64_t most) {
    const double exponent = static_cast<double>(below(1 << 20)) / (1 << 20);
    int64_t n = one_in(3) ? 1 + below(most) : static_cast<int64_t>(std::exp2(exponent * std::log2(static_cast<double>(most) + 1)));
    if (one_in(4)) n = (n + 63) / 64 * 64 + below(3) - 1;
    return std::clamp<int64_t>(n, 1, most);
  }

  uint64_t state_;
  int64_t world_;
  bool copies_;
  int32_t most_ctas_;
};

}  // namespace test
