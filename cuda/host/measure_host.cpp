#include <algorithm>
#include <atomic>
#include <chrono>

#include "host/measure_gpu.h"

namespace mk::measure {
namespace {

// The host's side of a signal exchange: answers each word that the GPU writes. False: none came in time.
bool answer(std::atomic<uint64_t>& in, std::atomic<uint64_t>& out, uint64_t rounds, uint64_t timeout_ns) {
  using Clock = std::chrono::steady_clock;
  for (uint64_t r = 1; r <= rounds + 1; ++r) {
    Clock::time_point deadline;
    for (uint32_t tries = 1; in.load(std::memory_order_acquire) < r; ++tries) {
      if (tries % 1024 != 0) continue;
      const Clock::time_point now = Clock::now();
      if (deadline == Clock::time_point()) deadline = now + std::chrono::nanoseconds(timeout_ns);
      if (now >= deadline) return false;
    }
    out.store(r, std::memory_order_release);
  }
  return true;
}

struct HostFlags {
  alignas(kLine) std::atomic<uint64_t> from_gpu{0};
  alignas(kLine) std::atomic<uint64_t> to_gpu{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a GPU writes these words");

void measure_host_signals(mk_measure_host& h, const Side& gpu, const mk_measure_options& o) {
  const Pinned page(sizeof(HostFlags));
  HostFlags& flags = *new (page.at()) HostFlags;
  gpu.select();
  check_cuda(measure_signal(true, reinterpret_cast<uint64_t*>(&flags.from_gpu), reinterpret_cast<const uint64_t*>(&flags.to_gpu),
                            o.rounds, o.timeout_ns, &gpu.shared()->signal, gpu.lane.stream), "sending signals");
  const bool all = answer(flags.from_gpu, flags.to_gpu, o.rounds, o.timeout_ns);
  gpu.lane.wait();
  const SignalResult r = gpu.read(&gpu.shared()->signal);
  if (!all || r.rounds != static_cast<uint64_t>(o.rounds))
    fail(MK_ERROR_ABORTED, "device %d and the host lost signal %llu of %d within %.1f s", gpu.device,
         static_cast<unsigned long long>(r.rounds + 1), o.rounds, o.timeout_ns * 1e-9);
  h.signal_us = static_cast<double>(r.ns) / 1e3 / o.rounds;
}

}  // namespace

void measure_host(int device, const mk_measure_options& o, mk_measure_host& h) {
  constexpr uint64_t kSeed = 5;
  const Side gpu(device, o.bytes);
  const Lane other;  // for the way back
  const Pinned out(o.bytes), in(o.bytes);
  const uint64_t words = o.bytes / 8;
  uint64_t* const sent = reinterpret_cast<uint64_t*>(out.at());
  for (uint64_t i = 0; i < words; ++i) sent[i] = measure_word(kSeed, i);
  const auto down = [&](const Lane& lane) {
    check_cuda(cudaMemcpyAsync(gpu.target.at(), out.at(), o.bytes, cudaMemcpyHostToDevice, lane.stream), "copying to the device");
  };
  const auto up = [&](const Lane& lane, const Memory& from) {
    check_cuda(cudaMemcpyAsync(in.at(), from.at(), o.bytes, cudaMemcpyDeviceToHost, lane.stream), "copying to the host");
  };
  h.device = device;
  h.words = words;
  h.to_device_gbs = timed(gpu.lane, o, [&] { down(gpu.lane); });
  h.to_host_gbs = timed(gpu.lane, o, [&] { up(gpu.lane, gpu.source); });
  timed_both(gpu.lane, other, o, [&] { down(gpu.lane); }, [&] { up(other, gpu.source); });
  h.both_to_device_gbs = gpu.lane.gbs(o.bytes * o.repeats);
  h.both_to_host_gbs = other.gbs(o.bytes * o.repeats);

  gpu.poison(o.bytes);
  down(gpu.lane);
  gpu.lane.wait();
  h.wrong_to_device = gpu.wrong(gpu.target.at(), o.bytes, kSeed);
  std::fill_n(in.at(), o.bytes, static_cast<char>(kPoison));
  check_cuda(measure_write(gpu.source.at(), o.bytes, kSeed + 1, gpu.lane.stream), "making data");
  up(gpu.lane, gpu.source);
  gpu.lane.wait();
  const uint64_t* const got = reinterpret_cast<const uint64_t*>(in.at());
  for (uint64_t i = 0; i < words; ++i) h.wrong_to_host += got[i] != measure_word(kSeed + 1, i);
  measure_host_signals(h, gpu, o);
}

}  // namespace mk::measure
