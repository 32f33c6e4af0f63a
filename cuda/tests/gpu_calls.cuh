// gpu_ag_gemm: calls behind one another, several operators, graphs, timelines, ranks without work.
#pragma once
#include <chrono>

#include "tests/gpu_shapes.cuh"
#include "tests/rate.h"

namespace {

struct Calls : Shapes {
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

  // The status waits for nothing, not even for what runs on the default stream.
  void status_waits_for_nothing() {
    test::spin<<<1, 1>>>(30000000);
    const bool at_once = mk_ag_gemm_status(op, nullptr, &error) == MK_OK && cudaStreamQuery(nullptr) == cudaErrorNotReady;
    cuda(cudaDeviceSynchronize(), "status");
    verdict(at_once, "the status waits for nothing");
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
    const double rate = test::copied_gbs(o.rows * 8192 * 2, rank.world, ms);
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

  // The call of a rank without columns is not over before its peers' rows have come, because its end lets them be overwritten.
  void empty_waits(int mover) {
    Operands<__nv_bfloat16> o({512 * rank.world, rank.rank == 0 ? 0 : 264, 136}, rank.rank, rank.world, 305);
    const mk_ag_gemm_args a = o.args();
    const mk_ag_gemm_config c = config(mover, 256, 1);
    o.poison();
    rank.meet();
    bool early = false;
    if (rank.rank == 0) {
      must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "no columns, first");
      // Long enough for a call that waits for nothing, and far from the bound of waits. The peers start only then.
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
      while (!early && std::chrono::steady_clock::now() < end) early = cudaStreamQuery(stream) == cudaSuccess;
    }
    rank.meet();
    if (rank.rank != 0) must(mk_ag_gemm_launch(op, &a, &c, stream, &error), "no columns, second");
    right(o, "no columns on rank 0, peers later, " + name(o.p, c));
    verdict(!early, "the call of a rank without columns waits for its peers' rows");
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
};

}  // namespace
