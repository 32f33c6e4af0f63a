#include "comm/send.cuh"
#include "kernels/measure_trip.h"

namespace mk {
namespace {

__global__ void trip_kernel(const __grid_constant__ WaitContext w, const __grid_constant__ SendSpace s, const __grid_constant__ TripTask t,
                            Trip* trips, TripSum* sum) {
  uint64_t wrong = 0, done = 0;
  const uint64_t last = t.bytes / sizeof(uint64_t) - 1;
  const uint64_t start_ns = ptx::global_timer();
  const int64_t start = clock64();
#pragma unroll 1
  for (uint64_t round = 1; round <= t.rounds; ++round) {
    if (t.bytes > 0) t.source[0] = t.source[last] = round;
    const int64_t begin = clock64();
    mknet_command* slot = next_command(w, kRoleSend, s);
    if (slot == nullptr) break;
    slot->op = MKNET_WRITE;
    slot->region = 0;
    slot->peer = t.peer;
    slot->rows = 1;
    slot->source = 0;
    slot->target = 0;
    slot->bytes = t.bytes;
    slot->flag = t.flag_at;
    slot->value = round;
    push_command(s, slot);
    const int64_t posted = clock64();
    wait_flag(w, kRoleSend, t.flag, round);
    const int64_t end = clock64();
    if (aborted(w)) break;
    trips[round - 1] = {static_cast<uint32_t>(posted - begin), static_cast<uint32_t>(end - begin)};
    bool right = ptx::load_relaxed_system(t.flag) == round;
    if (t.bytes > 0) right &= ptx::load_relaxed_system(t.target) == round && ptx::load_relaxed_system(t.target + last) == round;
    wrong += !right;
    done = round;
    if (!wait_sent(w, s)) break;
  }
  sum->cycles = static_cast<uint64_t>(clock64() - start);
  sum->ns = ptx::global_timer() - start_ns;
  sum->rounds = done;
  sum->wrong = wrong;
}

}  // namespace

cudaError_t trip_prepare() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(trip_kernel));
}

cudaError_t trip_launch(const WaitContext& wait, const SendSpace& space, const TripTask& task, Trip* trips, TripSum* sum, cudaStream_t stream) {
  trip_kernel<<<1, 1, 0, stream>>>(wait, space, task, trips, sum);
  return cudaGetLastError();
}

}  // namespace mk
