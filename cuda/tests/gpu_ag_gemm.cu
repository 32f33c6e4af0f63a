// ag_gemm on real GPUs: every answer against an fp32 reference, repeats against the first answer bit by bit, faults.
// Usage: gpu_ag_gemm [ranks] [all | quick | dead | brief | fuzz] [chunks] [nodes] [seed] [cx7 | efa]. One process per rank,
// rank r on GPU r modulo their number (more ranks than GPUs need MPS). `quick` is for sanitizers, `brief` a few of each; `dead`
// kills the last rank before the others' first call; `fuzz` makes random calls from the seed. More than one node is emulated,
// with a link per rank that keeps the order of what it carries (cx7) or with two that do not (efa). Ends with "N passed, N
// failed". Plans are read from the folder of the program (tests/plans.h).
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
      for (const int tile_n : {256, 128})
        for (const int cluster : {1, 2}) {
          if (mover == MK_MOVER_CE && !copies) continue;
          const mk_ag_gemm_config c = config(mover, tile_n, cluster);
          if (quick)
            for (const Problem& p : few) one<__nv_bfloat16>(p, c, ++seed);
          else
            for (const Problem& p : tails) one<__nv_bfloat16>(p, c, ++seed);
          if (!quick) one<__nv_bfloat16>({2048, 2048, 2048}, c, ++seed, true);
          one<__half>({300 * w, 520, 456, 8}, c, ++seed, true);
        }
    for (const int parts : {2, 3, 6}) {
      mk_ag_gemm_config split = config(MK_MOVER_SM, 128, 1);
      split.split_k = parts;
      if (!fits({130 * w, 520, 456}, split)) continue;
      one<__nv_bfloat16>({130 * w, 520, 456}, split, ++seed);
      one<__nv_bfloat16>({8 * w, 257, 1032}, split, ++seed);
      one<__nv_bfloat16>({5 * w, 136, 4104}, split, ++seed);  // less than one warp's rows of sums
    }
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
      for (const int tile_n : {256, 128}) one<__nv_bfloat16>(p, config(MK_MOVER_SM, tile_n, tile_n / 128), ++seed);
      for (const int tile_n : {64, 32})
        if (p.m <= 64 * w) one<__nv_bfloat16>(p, config(MK_MOVER_SM, tile_n, 1), ++seed);
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

  // The caller may overwrite its shard as soon as its own call is over, in stream order: peers must have got it by then.
  void input_reused(int mover) {
    Operands<__nv_bfloat16> o({1024 * rank.world, 264, 1032}, rank.rank, rank.world, 310);
    const mk_ag_gemm_args a = o.args();
    const mk_ag_gemm_config c = config(mover, 256, 1);
    o.poison();
    rank.meet();
    if (rank.rank == 0) test::spin<<<1, 1, 0, stream>>>(3000000);  // its peers' rows wait for this rank, or it for theirs
    must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "input reused");
    cuda(cudaMemsetAsync(o.a, 0xFF, o.rows * o.lda * 2, stream), "input reused");
    right(o, "input overwritten right after the call, " + name(o.p, c));
  }

  // Two operators on one context, by turns and without a host step in between.
  void two_operators() {
    mk_ag_gemm_desc d;
    MK_INIT(&d);
    const std::vector<char> plan = test::read_plan(folder, rank.rank);
    d.plan = plan.data(), d.plan_bytes = plan.size(), d.max_m = 2048, d.max_k = 512;
    mk_ag_gemm* second;
    must(mk_ag_gemm_create(context, &d, &second, &error), "second operator");
    Operands<__nv_bfloat16> x({256 * rank.world, 264, 136}, rank.rank, rank.world, 320), y({128 * rank.world, 136, 264}, rank.rank, rank.world, 321);
    x.poison(), y.poison();
    const mk_ag_gemm_args ax = x.args(), ay = y.args();
    const mk_ag_gemm_config c = config(MK_MOVER_SM, 256, 1);
    rank.meet();
    for (int i = 0; i < 10; ++i) {
      must(mk_ag_gemm_launch(op, &ax, &c, stream, &error), "two operators");
      must(mk_ag_gemm_launch(second, &ay, &c, stream, &error), "two operators");
    }
    right(x, "two operators by turns, the first");
    verdict(mk_ag_gemm_status(second, nullptr, &error) == MK_OK && y.difference().within(3e-3), "two operators by turns, the second");
    must(mk_ag_gemm_destroy(second, &error), "second operator");
  }

  // Copies between GPUs that go through the host are right, too, and eight times as slow.
  void copies_are_direct() {
    Operands<__nv_bfloat16> o({8192, 512, 8192}, rank.rank, rank.world, 290);
    const mk_ag_gemm_args a = o.args();
    const mk_ag_gemm_config c = config(MK_MOVER_CE, 256, 1);
    cudaEvent_t start, end;
    cuda(cudaEventCreate(&start), "event"), cuda(cudaEventCreate(&end), "event");
    float ms = 0;
    for (int call = 0; call < 3; ++call) {
      o.poison();
      rank.meet();
      cuda(cudaEventRecord(start, stream), "event");
      must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "copies");
      cuda(cudaEventRecord(end, stream), "event");
      right(o, "copies between GPUs");
      cuda(cudaEventElapsedTime(&ms, start, end), "event");
    }
    cudaEventDestroy(start), cudaEventDestroy(end);
    const double rate = double(o.rows) * 8192 * 2 * 1e-6 / ms;
    verdict(rate > 100, "copies between GPUs are direct", std::to_string(rate) + " GB/s");
  }

  // Ranks without columns have nothing to compute, and still send their rows and give their credits.
  void empty_on_some(int mover) {
    for (const int empty : {0, rank.world - 1}) {
      for (int call = 0; call < 3; ++call) {
        Operands<__nv_bfloat16> o({512 * rank.world, rank.rank == empty ? 0 : 264, 136}, rank.rank, rank.world, 300 + call);
        o.poison();
        const mk_ag_gemm_args a = o.args();
        const mk_ag_gemm_config c = config(mover, 256, 1);
        rank.meet();
        must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "no columns on a rank");
        right(o, "no columns on rank " + std::to_string(empty) + ", " + name(o.p, c));
      }
    }
  }

  // Many calls with three alternating inputs and no host step in between; every answer must have the bits of the
  // first answer to its input. One rank is held up at random before some calls.
  void repeats(int mover, int calls) {
    constexpr int kInputs = 3;
    const Problem p = quick ? Problem{200 * rank.world, 264, 136} : Problem{512 * rank.world, 768, 1024};
    const mk_ag_gemm_config c = config(mover, 256, 1 + (calls % 2));
    Operands<__nv_bfloat16>* o[kInputs];
    __nv_bfloat16* first[kInputs];
    unsigned long long* count;
    cuda(cudaMalloc(&count, 8), "count");
    cuda(cudaMemset(count, 0, 8), "count");
    const int64_t words = p.m * ((p.n + 7) / 8 * 8);
    bool good = true;
    for (int i = 0; i < kInputs; ++i) {
      o[i] = new Operands<__nv_bfloat16>(p, rank.rank, rank.world, 500 + i);
      o[i]->poison();
      const mk_ag_gemm_args a = o[i]->args();
      rank.meet();
      must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "repeats");
      good = right(*o[i], "repeats, first " + name(p, c)) && good;
      cuda(cudaMalloc(&first[i], words * 2), "copy of the first answer");
      cuda(cudaMemcpy(first[i], o[i]->c, words * 2, cudaMemcpyDeviceToDevice), "copy of the first answer");
    }
    rank.meet();
    uint32_t random = 12345 + rank.rank * 7;
    for (int call = 0; call < calls; ++call) {
      Operands<__nv_bfloat16>& x = *o[call % kInputs];
      random = random * 1664525 + 1013904223;
      if (random % 4 == 0) test::spin<<<1, 1, 0, stream>>>((random >> 8) % 300000);
      cuda(cudaMemsetAsync(x.c, 0xFF, words * 2, stream), "poison");
      const mk_ag_gemm_args a = x.args();
      must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "repeats");
      test::count_different<<<64, 256, 0, stream>>>(count, reinterpret_cast<uint16_t*>(x.c), x.ldc,
                                                    reinterpret_cast<uint16_t*>(first[call % kInputs]), x.ldc, 0, p.m, p.n);
    }
    cuda(cudaStreamSynchronize(stream), "repeats");
    unsigned long long different = 0;
    cuda(cudaMemcpy(&different, count, 8, cudaMemcpyDeviceToHost), "count");
    good = mk_ag_gemm_status(op, nullptr, &error) == MK_OK && different == 0 && good;
    verdict(good, "repeats " + name(p, c),
            std::to_string(calls) + " calls, words that differ from the first answer: " + std::to_string(different));
    for (int i = 0; i < kInputs; ++i) {
      delete o[i];
      cudaFree(first[i]);
    }
    cudaFree(count);
  }

  // Captured once, replayed with other contents of A each time.
  void graph(int mover) {
    const Problem p = quick ? Problem{200 * rank.world, 264, 136} : Problem{256 * rank.world, 512, 1024};
    const mk_ag_gemm_config c = config(mover, 256, 1);
    Operands<__nv_bfloat16> o(p, rank.rank, rank.world, 900);
    const mk_ag_gemm_args a = o.args();
    cudaGraph_t captured;
    cudaGraphExec_t exec;
    cudaStream_t other;  // replayed on another stream than it was captured on, with calls of other sizes in between
    cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "stream");
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "capture");
    cuda(cudaStreamEndCapture(stream, &captured), "capture");
    cuda(cudaGraphInstantiate(&exec, captured, 0), "capture");
    bool good = true;
    for (int i = 0; i < 5 && good; ++i) {
      o.set_a(901 + i);
      cudaFree(o.reference);
      o.reference = nullptr;
      o.poison();
      rank.meet();
      cuda(cudaGraphLaunch(exec, other), "replay");
      cuda(cudaStreamSynchronize(other), "replay");
      good = right(o, "graph replay " + name(p, c));
      one<__nv_bfloat16>({96 * rank.world, 40, 72 + 8 * i}, config(MK_MOVER_SM, 128, 1), 905 + i);
    }
    cudaStreamDestroy(other);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(captured);
  }

  // A call that is recorded is as right as others, and its events say that every tile was loaded, multiplied and stored.
  void recorded(int mover) {
    constexpr int64_t kRowTiles = 4, kColumnTiles = 3;
    Operands<__nv_bfloat16> o({kRowTiles * 128 * rank.world, kColumnTiles * 256, 1024}, rank.rank, rank.world, 940);
    const mk_ag_gemm_args a = o.args();
    const mk_ag_gemm_config c = config(mover, 256, 1);
    o.poison();
    rank.meet();
    std::vector<mk_timeline_event> events(1 << 20);
    uint64_t count = 0, lost = 0;
    must(mk_ag_gemm_timeline(op, &a, &c, stream, events.data(), events.size(), &count, &lost, &error), "a call that is recorded");
    right(o, "recorded, " + name(o.p, c));
    int64_t seen[MK_EVENT_KINDS] = {};
    bool ordered = count <= events.size();
    for (uint64_t i = 0; ordered && i < count; ++i) {
      const mk_timeline_event& e = events[i];
      ordered = e.kind < MK_EVENT_KINDS && e.start >= 0 && e.start <= e.end && e.end < 1'000'000'000;
      if (ordered) ++seen[e.kind];
    }
    // The own rows are one segment, whatever the chunks; each chunk of another rank is one.
    const int64_t own = kRowTiles * 128, chunk = (own + chunks - 1) / chunks, peers = int64_t{rank.world - 1} * chunks;
    const auto blocks = [](int64_t rows, int64_t block) { return (rows + block - 1) / block * kColumnTiles; };
    const int64_t tiles = blocks(own, 128) + peers * blocks(chunk, 128), stores = blocks(own, 64) + peers * blocks(chunk, 64);
    char text[160];
    snprintf(text, sizeof text, "loads %lld, waits %lld, multiplies %lld, stores %lld, credits %lld, pushes %lld, lost %llu", (long long)seen[0],
             (long long)seen[1], (long long)seen[2], (long long)seen[3], (long long)seen[4], (long long)seen[5], (unsigned long long)lost);
    verdict(ordered && lost == 0 && seen[MK_EVENT_LOAD] == tiles && seen[MK_EVENT_MULTIPLY] == 2 * tiles && seen[MK_EVENT_STORE] == stores &&
                (seen[MK_EVENT_PUSH] > 0) == (mover == MK_MOVER_SM && rank.world > nodes) && seen[MK_EVENT_PUSH] == seen[MK_EVENT_CREDIT],
            "timeline, " + name(o.p, c), text);
  }

  // Faults that a test must catch: a tile that was not written, and flags that never come.
  void faults(int rounds) {
    const Problem p = quick ? Problem{256 * rank.world, 256, 128} : Problem{512 * rank.world, 512, 512};
    const mk_ag_gemm_config c = config(MK_MOVER_SM, 256, 1);
    {
      Operands<__nv_bfloat16> o(p, rank.rank, rank.world, 950);
      o.poison();
      const mk_ag_gemm_args a = o.args();
      rank.meet();
      must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "dropped tile");
      right(o, "before dropping a tile");
      for (const int value : {0xFF, 0x00}) {  // not written; zeros
        cuda(cudaMemset2D(o.c + 128 * o.ldc + 64, o.ldc * 2, value, 64 * 2, 128), "dropped tile");
        verdict(!o.difference().within(3e-3), "a dropped tile is caught");
      }
    }
    if (rank.world == 1) return;
    int reported = 0, right_again = 0;
    for (int round = 0; round < rounds; ++round) {
      Operands<__nv_bfloat16> o(p, rank.rank, rank.world, 960 + round);
      mk_ag_gemm_args a = o.args();
      // The last rank announces only half of its rows, or, where one flag stands for all of a chunk, does not call at all:
      // its peers must give up, and every rank must learn it.
      const bool last = rank.rank == rank.world - 1, calls = !last || nodes < rank.world;
      if (last) a.m = p.m / 2;
      mk_ag_gemm_config fault = config(round % 2 && copies ? MK_MOVER_CE : MK_MOVER_SM, 256, 1 + round / 2 % 2);
      fault.row_block = fault.mover == MK_MOVER_CE ? 128 : 0;
      rank.meet();
      if (calls) must(mk_ag_gemm_launch(op, &a, &fault, stream, &error), "dropped flag");
      cuda(cudaStreamSynchronize(stream), "dropped flag");
      rank.meet();
      mk_wait_record record;
      MK_INIT(&record);
      if (mk_ag_gemm_status(op, &record, &error) == MK_ERROR_ABORTED) ++reported;
      if (round == 0 && rank.rank == 0) printf("[0] ok   message of a dropped flag: %s\n", error.text);
      // Queued launches wait for nothing.
      must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "after an abort");
      cuda(cudaStreamSynchronize(stream), "after an abort");
      must(mk_ag_gemm_reset(op, &error), "reset");
      o.poison();
      a.m = p.m;
      must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "after a reset");
      if (right(o, "after a reset")) ++right_again;
    }
    verdict(reported == rounds && right_again == rounds, "dropped flags",
            std::to_string(reported) + " reported, " + std::to_string(right_again) + " right after reset, of " +
                std::to_string(rounds));
  }

  // A call behind a barrier that a rank does not come to waits for nothing once the barrier is given up.
  void barrier_ends_calls() {
    if (rank.world == 1 || nodes > 1) return;  // between nodes ranks meet on the host
    Operands<__nv_bfloat16> o({512 * rank.world, 512, 512}, rank.rank, rank.world, 970);
    const mk_ag_gemm_args a = o.args();
    const mk_ag_gemm_config c = config(MK_MOVER_SM, 256, 1);
    rank.meet();
    if (rank.rank == 0) {
      must(mk_barrier(context, stream, &error), "a barrier alone");
      must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "behind a barrier");
      cuda(cudaStreamSynchronize(stream), "behind a barrier");
      mk_wait_record record;
      MK_INIT(&record);
      verdict(mk_ag_gemm_status(op, &record, &error) == MK_ERROR_ABORTED && record.valid == 1 && record.role == MK_WAIT_BARRIER &&
                  record.block != 0 && record.block < static_cast<uint32_t>(rank.world),
              "a call behind a barrier that was given up", error.text);
    }
    rank.meet();
    must(mk_ag_gemm_reset(op, &error), "reset after a barrier");
    o.poison();
    rank.meet();
    must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "after a barrier that was given up");
    right(o, "after a barrier that was given up");
  }

  // The caller aborts while the others' flags are awaited: the call ends long before the wait's bound.
  void caller_aborts() {
    Operands<__nv_bfloat16> o({512 * rank.world, 512, 512}, rank.rank, rank.world, 980);
    const mk_ag_gemm_args a = o.args();
    const mk_ag_gemm_config c = config(MK_MOVER_SM, 256, 1);
    rank.meet();
    const bool waits = rank.rank == 0;
    if (waits) {
      must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "abort");
      must(mk_ag_gemm_abort(op, &error), "abort");
      cuda(cudaStreamSynchronize(stream), "abort");
      mk_wait_record record;
      MK_INIT(&record);
      verdict(mk_ag_gemm_status(op, &record, &error) == MK_ERROR_ABORTED && record.valid == 0, "an abort by the caller", error.text);
    }
    rank.meet();
    must(mk_ag_gemm_reset(op, &error), "reset after an abort");
    o.poison();
    rank.meet();
    must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "after an abort by the caller");
    right(o, "after an abort by the caller");
    mk_ag_gemm_waits waits_seen;
    MK_INIT(&waits_seen);
    must(mk_ag_gemm_waited(op, &waits_seen, &error), "waiting times");
    verdict(waits_seen.ctas > 0 && waits_seen.life > 0 && waits_seen.mean[MK_WAIT_PRODUCER] < waits_seen.life, "waiting times");
  }

  // The last rank dies before its call: the others must come back within the bound and say for whom they waited.
  int dead_peer() {
    Operands<__nv_bfloat16> o({512 * rank.world, 512, 512}, rank.rank, rank.world, 970);
    const mk_ag_gemm_args a = o.args();
    const mk_ag_gemm_config c = config(MK_MOVER_SM, 256, 1);
    rank.meet();
    if (rank.rank == rank.world - 1) _exit(0);
    timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "dead peer");
    cuda(cudaStreamSynchronize(stream), "dead peer");
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double seconds = double(end.tv_sec - start.tv_sec) + 1e-9 * double(end.tv_nsec - start.tv_nsec);
    const int status = mk_ag_gemm_status(op, nullptr, &error);
    verdict(status == MK_ERROR_ABORTED && seconds < 2.5, "dead peer", std::to_string(seconds) + " s, " + error.text);
    printf("[%d] %d passed, %d failed\n", rank.rank, passed, failed);
    fflush(nullptr);
    _exit(failed == 0 ? 0 : 1);  // the collective end would wait for the dead
  }

  void refusals() {
    Operands<__nv_bfloat16> o({128 * rank.world, 128, 128}, rank.rank, rank.world, 1);
    const auto refused = [&](const char* what, const std::function<void(mk_ag_gemm_args&)>& spoil) {
      mk_ag_gemm_args a = o.args();
      spoil(a);
      verdict(mk_ag_gemm_launch(op, &a, nullptr, stream, &error) == MK_ERROR_ARGUMENT && error.text[0] != 0, what);
    };
    refused("null pointer", [](mk_ag_gemm_args& a) { a.a = nullptr; });
    refused("misaligned pointer", [](mk_ag_gemm_args& a) { a.b = static_cast<const char*>(a.b) + 2; });
    refused("k not a multiple of 8", [](mk_ag_gemm_args& a) { a.k = 100; });
    refused("pitch not a multiple of 8", [](mk_ag_gemm_args& a) { a.ldb = 129; });
    refused("pitch too small", [](mk_ag_gemm_args& a) { a.ldc = 64; });
    refused("larger than the operator", [](mk_ag_gemm_args& a) { a.m = int64_t{1} << 30; a.k = int64_t{1} << 20; a.lda = a.ldb = a.k; });
    refused("another version", [](mk_ag_gemm_args& a) { a.version = 99; });
  }

  int run() {
    int devices = 1;
    cuda(cudaGetDeviceCount(&devices), "devices");
    const int device = rank.rank % devices;
    // The copy engine serves ranks with a GPU each, which pass nothing on.
    copies = rank.world > 1 && rank.world <= devices && (nodes == 1 || rank.world == nodes);
    cuda(cudaSetDevice(device), "device");
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    mk_context_desc d;
    MK_INIT(&d);
    d.rank = rank.rank, d.world = rank.world, d.device = device, d.share_gpus = 1;
    const std::vector<int32_t> node_ranks(nodes, rank.world / nodes);
    d.nodes = nodes, d.node_ranks = node_ranks.data(), d.network = nodes > 1 ? MK_NETWORK_EMU : MK_NETWORK_NONE;
    d.net_bandwidth = 50e9, d.net_latency_ns = 2000;
    mknet_desc unordered;
    MKNET_INIT(&unordered);
    unordered.backend = "emu";
    unordered.emu.bandwidth = 25e9, unordered.emu.latency_ns = 8000, unordered.emu.jitter_ns = 16000, unordered.emu.nics = 2;
    unordered.emu.unordered = 1, unordered.emu.seed = seed;
    if (nodes > 1 && link == "efa") d.network = MK_NETWORK_NIC, d.net = &unordered;
    d.timeout_ns = quick ? 20'000'000'000ull : copies || rank.world == 1 ? 250'000'000ull : 2'000'000'000ull;
    d.allgather = test::Rank::allgather, d.user = &rank;
    mk_ag_gemm_desc od;
    MK_INIT(&od);
    const std::vector<char> plan = test::read_plan(folder, rank.rank);
    od.plan = plan.data(), od.plan_bytes = plan.size();
    od.max_m = std::max(8192, 1024 * rank.world), od.max_k = 8192;
    must(mk_ag_gemm_heap_bytes(&od, &d.heap_bytes, &error), "size of the heap");
    d.heap_bytes += 16 << 20;  // for a second, small operator
    // A kernel that is loaded at its first launch takes the driver's lock until the calls before it are over, and the proxy
    // of emulated nodes needs the driver to move what these calls wait for.
    cudaFuncAttributes loaded;
    cuda(cudaFuncGetAttributes(&loaded, test::spin), "loading");
    cuda(cudaFuncGetAttributes(&loaded, test::count_different), "loading");
    must(mk_context_create(&d, &context, &error), "context");
    must(mk_ag_gemm_create(context, &od, &op, &error), "operator");
    if (mode == "dead") return dead_peer();
    if (mode == "fuzz") {
      fuzz(kFuzzCalls);
    } else {
      suite();
    }
    must(mk_ag_gemm_destroy(op, &error), "destroy");
    must(mk_context_destroy(context, &error), "destroy");
    printf("[%d] %d passed, %d failed\n", rank.rank, passed, failed);
    return failed == 0 ? 0 : 1;
  }

  void suite() {
    // The first call in a fresh process is the fused kernel.
    shapes();
    refusals();
    if (mode == "all") granularity();
    for (const int mover : {MK_MOVER_SM, MK_MOVER_CE})
      if (rank.world > 1 && (mover == MK_MOVER_SM || copies)) input_reused(mover);
    if (!quick) two_operators();
    if (rank.world > 1) empty_on_some(MK_MOVER_SM);
    if (copies) empty_on_some(MK_MOVER_CE);
    if (copies && nodes == 1 && !quick) copies_are_direct();
    repeats(MK_MOVER_SM, quick ? 4 : 100);
    if (copies) repeats(MK_MOVER_CE, quick ? 4 : 101);
    if (mode == "all") repeats(MK_MOVER_SM, 101);
    graph(MK_MOVER_SM);
    if (copies) graph(MK_MOVER_CE);
    recorded(MK_MOVER_SM);
    if (copies) recorded(MK_MOVER_CE);
    faults(quick ? 0 : copies && mode == "all" ? 50 : 4);
    barrier_ends_calls();
    if (rank.world > 1) caller_aborts();
  }
};

}  // namespace

int main(int argc, char** argv) {
  test::Options options;
  if (!test::parse_options({argv + 1, argv + argc}, &options)) {
    fputs(test::kUsage, stderr);
    return 2;
  }
  const std::string program = argv[0];
  const size_t slash = program.rfind('/');
  const int world = options.ranks;
  const std::string folder = test::plan_folder(slash == std::string::npos ? "." : program.substr(0, slash), options.nodes,
                                               world / options.nodes, options.chunks);
  const auto body = [&](const test::Rank& r) {
    Suite suite;
    suite.rank = r, suite.mode = options.mode, suite.quick = options.mode == "quick", suite.folder = folder;
    suite.nodes = options.nodes, suite.chunks = options.chunks, suite.seed = options.seed, suite.link = options.link;
    return suite.run();
  };
  if (world == 1) {
    // In this process, so that a sanitizer sees it.
    test::Shared* shared = new test::Shared{};
    return body(test::Rank{0, 1, shared});
  }
  const int failures = test::run_ranks(world, body);
  printf("gpu_ag_gemm on %d ranks: %d passed, %d failed\n", world, world - failures, failures);
  return failures == 0 ? 0 : 1;
}
