// What the checks of gpu_ag_gemm share: a rank, its operator, and how an answer is judged.
#pragma once
#include <algorithm>
#include <functional>
#include <string>

#include "include/mkernel.h"
#include "include/mknet.h"
#include "tests/fuzz.h"
#include "tests/gpu_operands.cuh"
#include "tests/options.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace {

using test::cuda;
using test::Operands;
using test::Problem;

constexpr int kFuzzCalls = 200;

struct Suite {
  test::Rank rank;
  std::string mode;
  std::string folder;  // of the plans
  int nodes = 1, chunks = 1;
  uint64_t seed = 1;  // of fuzz
  std::string link;   // between nodes
  bool quick = false;
  mk_context* context = nullptr;
  mk_ag_gemm* op = nullptr;
  cudaStream_t stream = nullptr;
  mk_error error = {};
  int passed = 0, failed = 0;
  bool copies = false;  // the copy engine can serve these ranks

  void verdict(bool good, const std::string& what, const std::string& detail = "") {
    ++(good ? passed : failed);
    if (!good || (rank.rank == 0 && !detail.empty()))
      printf("[%d] %s %s%s%s\n", rank.rank, good ? "ok  " : "FAIL", what.c_str(), detail.empty() ? "" : ": ", detail.c_str());
    fflush(stdout);
  }
  void must(int code, const char* what) {
    if (code == MK_OK) return;
    printf("[%d] FAIL %s: %s\n", rank.rank, what, error.text);
    fflush(nullptr);
    rank.shared->failed = 1;
    _exit(1);
  }
  mk_ag_gemm_config config(int mover, int tile_n, int cluster) const {
    mk_ag_gemm_config c;
    MK_INIT(&c);
    c.mover = mover, c.tile_n = tile_n, c.cluster = cluster;
    c.split_k = tile_n == 0 ? 0 : 1;
    if (mover == MK_MOVER_CE) c.row_block = 512, c.k_block = 1024;
    return c;
  }
  std::string name(const Problem& p, const mk_ag_gemm_config& c) const {
    char text[160];
    snprintf(text, sizeof text, "%lldx%lldx%lld+%lld %s n%d c%d", (long long)p.m, (long long)p.n, (long long)p.k,
             (long long)p.extra, c.mover == MK_MOVER_CE ? "ce" : c.mover == MK_MOVER_SM ? "sm" : "auto", c.tile_n, c.cluster);
    return text;
  }

  // False if this GPU (or this share of it) has too few SMs.
  bool fits(const Problem& p, mk_ag_gemm_config c) {
    Operands<__nv_bfloat16> o(p, rank.rank, rank.world, 1);
    const mk_ag_gemm_args a = o.args();
    return mk_ag_gemm_choose(op, &a, &c, &error) == MK_OK;
  }

  template <typename T>
  bool right(Operands<T>& o, const std::string& what, bool say = false) {
    cuda(cudaStreamSynchronize(stream), what.c_str());
    const int status = mk_ag_gemm_status(op, nullptr, &error);
    if (status != MK_OK) {
      // An abort is sticky: nothing after it can be right. The other ranks learn it in the same call.
      printf("[%d] FAIL %s: %s\n", rank.rank, what.c_str(), error.text);
      fflush(nullptr);
      rank.shared->failed = 1;
      _exit(1);
    }
    const test::Difference d = o.difference();
    const unsigned long long guard = o.guard_written();
    char text[160];
    snprintf(text, sizeof text, "relative error %.2e, worst tile %.2e, words outside written %llu", d.relative, d.worst, guard);
    // A single rounded value is off by half a unit at most, many of them by less on average.
    const double tolerance = std::is_same<T, __half>::value ? 5e-4 : o.p.m * o.p.n < 4096 ? 4e-3 : 3e-3;
    const bool good = (o.p.m == 0 || o.p.n == 0 || d.within(tolerance)) && guard == 0;
    verdict(good, what, good && !say ? "" : text);
    return good;
  }

  template <typename T>
  bool one(const Problem& p, const mk_ag_gemm_config& c, uint64_t seed, bool say = false) {
    Operands<T> o(p, rank.rank, rank.world, seed);
    o.poison();
    const mk_ag_gemm_args a = o.args();
    rank.meet();  // the ranks' checks take different times; waits are short here
    must(mk_ag_gemm_launch(op, &a, &c, stream, &error), name(p, c).c_str());
    return right(o, name(p, c), say);
  }
};

}  // namespace
