// gpu_ag_gemm: flags that never come, aborts, and what is refused before a launch.
#pragma once
#include "tests/gpu_calls.cuh"

namespace {

struct Faults : Calls {
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
};

}  // namespace
