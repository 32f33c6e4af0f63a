// An ag_gemm operator: what it owns, and how a call's parameters are made.
#pragma once
#include <cuda_runtime.h>

#include <vector>

#include "host/ag_gemm_config.h"
#include "host/ag_gemm_plan.h"
#include "host/context.h"
#include "kernels/ag_gemm.h"

struct mk_ag_gemm {
  mk_context* context = nullptr;
  mk::AgGemmPlan plan;
  mk_ag_gemm_desc capacity = {};       // its plan pointer is the caller's
  std::vector<uint64_t> flag_words;    // first word of each of the plan's flags
  uint64_t control_at = 0, flags_at = 0, sum_flags_at = 0, landing_at = 0;  // heap offsets
  mk::WaitRecord* record = nullptr;
  struct Pinned {
    uint64_t one = 1;        // what mk_ag_gemm_abort copies
    uint64_t seen[2] = {};   // the abort words that mk_ag_gemm_status reads
  };
  Pinned* pinned = nullptr;
  int64_t* waited = nullptr;
  float4* sums = nullptr;  // of the parts of split tiles
  int resident[mk::kAgGemmTileCount] = {};  // CTAs that fit on the GPU, by kernel
  int last_ctas = 0, last_push_ctas = 0, last_copies = 0, last_sends = 0, last_launches = 0;  // of the last call
  cudaStream_t copy = nullptr;
  cudaStream_t aborting = nullptr;  // of abort words, set and read
  cudaEvent_t fork = nullptr;
  cudaEvent_t join = nullptr;

  ~mk_ag_gemm() {
    if (copy != nullptr) cudaStreamDestroy(copy);
    if (aborting != nullptr) cudaStreamDestroy(aborting);
    if (fork != nullptr) cudaEventDestroy(fork);
    if (join != nullptr) cudaEventDestroy(join);
    if (waited != nullptr) cudaFree(waited);
    if (sums != nullptr) cudaFree(sums);
    if (pinned != nullptr) cudaFreeHost(pinned);
    mk::free_wait_record(record);
  }
  mk::AgGemmMachine machine() const {
    return {context->world, context->sms, context->sharers, plan.chunks(), plan.passes_on()};
  }
  std::vector<char*> abort_words() const {
    std::vector<char*> words;
    for (int r = 0; r < context->world; ++r)
      if (context->heap->base(r) != nullptr) words.push_back(context->heap->base(r) + control_at + offsetof(mk::Control, abort));
    return words;
  }
  uint64_t flag_bytes() const { return flag_words.back() * sizeof(uint64_t); }
};

namespace mk {

// What the kernel is given for one call; throws Error where a plan has more than it takes.
AgGemmParams make_params(const mk_ag_gemm& op, const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, const Schedule& schedule);

// Checks, completes and launches a call; with `timeline`, by the kernel that records.
void launch(mk_ag_gemm& op, const mk_ag_gemm_args& args, const mk_ag_gemm_config& wanted, cudaStream_t stream, const Timeline* timeline);

// What the copies of a call wait for, each credit once.
CopyCredits copy_credits(const mk_ag_gemm& op, const AgGemmParams& params, const Schedule& schedule);

// Mover `ce`: submits the copies of the plan to the operator's copy stream, in chunks, each followed by its flags.
void copy_shards(mk_ag_gemm& op, const AgGemmParams& params, const mk_ag_gemm_args& args, const mk_ag_gemm_config& config,
                 const Schedule& schedule);

}  // namespace mk
