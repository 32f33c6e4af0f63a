// gpu_ag_gemm: sizes with tails of every kind, all tiles and movers, and random calls.
#pragma once
#include "tests/gpu_suite.cuh"

namespace {

struct Shapes : Suite {
  void shapes() {
    const int64_t w = rank.world;
    const Problem tails[] = {
        {128 * w, 256, 64},     {128 * w, 256, 128},   {1 * w, 8, 8},          {1 * w, 1, 8},         {65 * w, 40, 72},
        {127 * w, 257, 200},    {129 * w, 255, 264},   {300 * w, 520, 456, 8}, {257 * w, 129, 1032},  {640 * w, 776, 328},
        {384 * w, 512, 320},    {1000 * w, 1000, 1000}, {0, 64, 64},           {64 * w, 0, 64},       {64 * w, 64, 0},
        {2 * w, 4096, 512, 16}, {512 * w, 64, 4104},     {w - 1, 64, 64},       {128 * w + 1, 264, 136}, {1000, 136, 264},
    };
    const Problem few[] = {{1 * w, 1, 8}, {127 * w, 257, 200}, {300 * w, 520, 456, 8}};  // under a sanitizer
    uint64_t seed = 1;
    for (const int mover : {MK_MOVER_SM, MK_MOVER_CE})
      for (const int tile_n : {256, 128, 64})
        for (const int cluster : {1, 2}) {
          if ((mover == MK_MOVER_CE && !copies) || (tile_n == 64 && cluster == 2)) continue;
          const mk_ag_gemm_config c = config(mover, tile_n, cluster);
          if (quick)
            for (const Problem& p : few) one<__nv_bfloat16>(p, c, ++seed);
          else
            for (const Problem& p : tails) one<__nv_bfloat16>(p, c, ++seed);
          if (!quick) one<__nv_bfloat16>({2048, 2048, 2048}, c, ++seed, true);
          one<__half>({300 * w, 520, 456, 8}, c, ++seed, true);
        }
    for (const int tile_n : {128, 64})
      for (const int parts : {2, 3, 6}) {
        mk_ag_gemm_config split = config(MK_MOVER_SM, tile_n, 1);
        split.split_k = parts;
        if (!fits({130 * w, 520, 456}, split)) continue;
        one<__nv_bfloat16>({130 * w, 520, 456}, split, ++seed);
        one<__nv_bfloat16>({8 * w, 257, 1032}, split, ++seed);
        one<__nv_bfloat16>({5 * w, 136, 4104}, split, ++seed);  // less than one warp's rows of sums
      }
    mk_ag_gemm_config one_step = config(MK_MOVER_SM, 128, 1);  // more parts than a consumer group has threads
    one_step.split_k = 130;
    if (!quick && fits({64 * w, 128, 64 * 130}, one_step)) one<__nv_bfloat16>({64 * w, 128, 64 * 130}, one_step, ++seed);
    for (const int64_t rows : {8, 16, 40, 64})  // merged tiles, up to 128 rows in all
      for (const int64_t n : {4096, 1000, 129}) one<__nv_bfloat16>({rows * w, n, 1032}, config(MK_MOVER_AUTO, 0, 0), ++seed);
    narrow(seed);
    if (mode == "all") one<__nv_bfloat16>({8192, 1024, 8192}, config(MK_MOVER_SM, 0, 0), ++seed, true);
    if (mode == "all" && copies) one<__nv_bfloat16>({8192, 1024, 8192}, config(MK_MOVER_AUTO, 0, 0), ++seed, true);
  }

  // Tiles of 64 rows: all rows of a rank, merged or not, one and many tiles for each CTA, K of odd and even steps and their parts.
  void narrow(uint64_t seed) {
    const int64_t w = rank.world;
    const Problem few[] = {{5 * w, 1, 8}, {64 * w, 129, 200}, {8 * w, 72, 456, 8}};
    const Problem more[] = {
        {1, 64, 64}, {7, 4096, 1032}, {8, 53248, 64}, {64, 8200, 1096, 8}, {63 * w, 1000, 4104}, {64 * w, 256, 64}, {16 * w, 30, 128},
        {w - 1, 64, 192}, {8 * w, 4096, 8192},
    };
    for (const int mover : {MK_MOVER_SM, MK_MOVER_CE})
      for (const int tile_n : {32, 64}) {
        if (mover == MK_MOVER_CE && !copies) continue;
        for (const Problem& p : few) one<__nv_bfloat16>(p, config(mover, tile_n, 1), ++seed);
        one<__half>({40 * w, 520, 456, 8}, config(mover, tile_n, 1), ++seed, true);
        if (quick) continue;
        for (const Problem& p : more) one<__nv_bfloat16>(p, config(mover, tile_n, 1), ++seed);
        for (const int parts : {2, 3, 5}) {
          mk_ag_gemm_config split = config(mover, tile_n, 1);
          split.split_k = parts;
          if (!fits({9 * w, 130, 1032}, split)) continue;
          one<__nv_bfloat16>({9 * w, 130, 1032}, split, ++seed);   // 17 K steps, 9 stages
          one<__nv_bfloat16>({16 * w, 136, 4104}, split, ++seed);
        }
      }
  }

  // Sizes at which others' kernels have gone wrong: reference of public faults, classes A, B and F.
  void granularity() {
    const int64_t w = rank.world;
    uint64_t seed = 4000;
    const auto all_tiles = [&](const Problem& p) {
      for (const int tile_n : {256, 128, 64, 32})
        if (tile_n > 32 || p.m <= 64 * w) one<__nv_bfloat16>(p, config(MK_MOVER_SM, tile_n, std::max(1, tile_n / 128)), ++seed);
    };
    for (const int64_t rows : {192, 48}) {
      for (int64_t k = 64; k <= 576; k += 64) all_tiles({rows * w, 136, k});  // numbers of K steps, odd and even
      for (const int64_t k : {8, 72, 520}) all_tiles({rows * w, 136, k});     // and their tails
    }
    for (const int64_t m : {1, 8, 16, 32, 63, 64, 65}) all_tiles({m * w, 64, 64});
    for (const int64_t n : {8, 16, 24}) all_tiles({128 * w, n, 128});
    for (int64_t m = 0; m <= 257; m += 3) one<__nv_bfloat16>({m, 72, 72}, config(MK_MOVER_AUTO, 0, 0), ++seed);
    one<__nv_bfloat16>({128 * w, 53248, 64}, config(MK_MOVER_AUTO, 0, 0), ++seed);  // many tiles in N
    if (rank.world > 1) return;
    // Tiles that TMA can store and tiles that it cannot by turns, with little of K between them.
    for (int call = 0; call < 5; ++call)
      for (const int tile_n : {128, 256}) one<__nv_bfloat16>({33000, 257, 64}, config(MK_MOVER_SM, tile_n, 1), ++seed);
    one<__nv_bfloat16>({512, 1024, 147456}, config(MK_MOVER_AUTO, 0, 0), ++seed);   // a long K
    one<__nv_bfloat16>({33000, 64, 65536}, config(MK_MOVER_AUTO, 0, 0), ++seed);    // A of more than 2^31 elements
    one<__nv_bfloat16>({50000, 43008, 64}, config(MK_MOVER_AUTO, 0, 0), ++seed);    // C of more than 2^31 elements
  }

  // Random shapes and settings, one call each, all on one operator. A failure names the call: the same seed makes it again.
  void fuzz(int calls) {
    int gpus = 0, sms = 0;
    cuda(cudaGetDeviceCount(&gpus), "counting GPUs");
    cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, rank.rank % gpus), "counting SMs");
    test::Fuzz draws(seed, rank.world, copies, sms / ((rank.world + gpus - 1) / gpus));
    for (int call = 0; call < calls; ++call) {
      const test::Draw d = draws.next();
      const Problem p{d.m, d.n, d.k, d.extra};
      const bool good = d.half ? one<__half>(p, d.config, seed + call) : one<__nv_bfloat16>(p, d.config, seed + call);
      if (!good) printf("[%d] that was call %d of seed %llu\n", rank.rank, call, static_cast<unsigned long long>(seed));
    }
  }
};

}  // namespace
