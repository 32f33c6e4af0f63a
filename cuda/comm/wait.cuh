// Bounded waits on flags. A wait ends when the flag has reached the wanted value, when the abort word is set, or when
// the time is over; the last writes the record and sets the abort word of every rank, so the whole job leaves.
//
// After an abort a wait returns at once and its caller goes on without the data: every role finishes its ordinary
// schedule, so no barrier inside a CTA or cluster is left half-way; only the results are undefined.
#pragma once
#include "comm/control.h"
#include "comm/schedule.h"
#include "ptx/fence.cuh"
#include "ptx/memory.cuh"

namespace mk {

__device__ __forceinline__ bool aborted(const WaitContext& w) {
  return ptx::load_relaxed_system(&w.control[w.rank]->abort.value) != 0 ||
         (w.barrier_abort != nullptr && ptx::load_relaxed_system(w.barrier_abort) != 0);
}

// One thread calls it, once its time is over.
static __device__ __forceinline__ void give_up(const WaitContext& w, Role role, const uint64_t* flag, uint64_t seen,
                                               uint64_t wanted) {
  if (ptx::compare_swap_system(&w.control[w.rank]->record.value, 0, 1) == 0) {
    volatile WaitRecord* r = w.record;
    r->rank = static_cast<uint32_t>(w.rank);
    r->cta = blockIdx.x;
    r->role = role;
    r->flag = static_cast<uint64_t>(reinterpret_cast<const char*>(flag) - w.heap);
    r->seen = seen;
    r->wanted = wanted;
    ptx::fence_system();
    r->valid = 1;
  }
#pragma unroll 1
  for (int r = 0; r < w.world; ++r)
    if (w.control[r] != nullptr) ptx::store_release_system(&w.control[r]->abort.value, 1);
}

// Clock of one wait: looks at the abort word and the timer only every so often.
struct WaitClock {
  uint64_t deadline = 0;
  uint32_t tries = 0;

  // True when the wait must end without its flag. One thread calls it between polls.
  __device__ __forceinline__ bool expired(const WaitContext& w, Role role, const uint64_t* flag, uint64_t seen,
                                          uint64_t wanted) {
    if (++tries % 64 != 0) return false;
    if (aborted(w)) return true;
    const uint64_t now = ptx::global_timer();
    if (deadline == 0) deadline = now + w.timeout_ns;
    if (now < deadline) {
      __nanosleep(64);
      return false;
    }
    give_up(w, role, flag, seen, wanted);
    return true;
  }
};

// One thread waits until *flag >= wanted. Acquires: what the writer did before it wrote the flag is visible to generic
// accesses afterwards (TMA needs ptx::fence_async_global too).
__device__ __forceinline__ void wait_flag(const WaitContext& w, Role role, const uint64_t* flag, uint64_t wanted) {
  WaitClock clock;
  uint64_t seen;
#pragma unroll 1
  while ((seen = ptx::load_acquire_system(flag)) < wanted) {
    if (clock.expired(w, role, flag, seen, wanted)) break;
  }
}

// The same for a flag of the plan.
__device__ __forceinline__ void wait_for(const WaitContext& w, Role role, const uint64_t* flags, const FlagWait& f,
                                         uint64_t epoch) {
  if (f.flag != kNoFlag && epoch > f.lag) wait_flag(w, role, flags + f.flag, (epoch - f.lag) * f.count);
}

}  // namespace mk
