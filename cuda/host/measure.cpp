#include "host/measure.h"

#include <algorithm>

#include "host/measure_gpu.h"

namespace mk {

mk_measure_options measure_options(const mk_measure_options* given) {
  constexpr uint64_t kMostBytes = uint64_t{4} << 30;
  mk_measure_options o;
  MK_INIT(&o);
  if (given != nullptr) {
    check_struct(given, "mk_measure_options");
    o = *given;
  }
  check_timeout(o.timeout_ns);
  if (o.bytes == 0) o.bytes = 256 << 20;
  if (o.timeout_ns == 0) o.timeout_ns = 2'000'000'000;
  if (o.repeats == 0) o.repeats = 8;
  if (o.rounds == 0) o.rounds = 2000;
  if (o.bytes % 16 != 0 || o.bytes > kMostBytes)
    fail(MK_ERROR_ARGUMENT, "bytes is %llu; a multiple of 16 up to %llu is wanted", static_cast<unsigned long long>(o.bytes),
         static_cast<unsigned long long>(kMostBytes));
  if (o.repeats < 1 || o.repeats > 1000) fail(MK_ERROR_ARGUMENT, "repeats is %d; 1 to 1000 are possible", o.repeats);
  if (o.rounds < 1 || o.rounds > 1'000'000) fail(MK_ERROR_ARGUMENT, "rounds is %d; 1 to 1000000 are possible", o.rounds);
  return o;
}

uint64_t measure_fan_shard(const int32_t* devices, int32_t count, const mk_measure_options& o, const mk_measure_fan* fans,
                           int32_t fan_count) {
  if (devices == nullptr) fail(MK_ERROR_ARGUMENT, "devices is NULL");
  if (fans == nullptr) fail(MK_ERROR_ARGUMENT, "fans is NULL");
  if (count < 2 || count > kFanMostPeers + 1)
    fail(MK_ERROR_ARGUMENT, "%d devices; 2 to %d push to one another", count, kFanMostPeers + 1);
  for (int i = 0; i < count; ++i)
    if (std::find(devices, devices + i, devices[i]) != devices + i)
      fail(MK_ERROR_ARGUMENT, "device %d is there twice", devices[i]);
  if (fan_count < 1) fail(MK_ERROR_ARGUMENT, "fan_count is %d", fan_count);
  for (const mk_measure_fan* f = fans; f != fans + fan_count; ++f) {
    check_struct(f, "mk_measure_fan");
    if (f->sources < 1 || f->sources > count) fail(MK_ERROR_ARGUMENT, "sources is %d; 1 to %d are possible", f->sources, count);
    if (f->peers < 1 || f->peers >= count) fail(MK_ERROR_ARGUMENT, "peers is %d; 1 to %d are possible", f->peers, count - 1);
    if (f->ctas < 0 || f->ctas > 1024) fail(MK_ERROR_ARGUMENT, "ctas is %d; 0 to 1024 are possible", f->ctas);
    if (f->depth < 1 || f->depth > kFanMostDepth)
      fail(MK_ERROR_ARGUMENT, "depth is %d; 1 to %d are possible", f->depth, kFanMostDepth);
  }
  const uint64_t shard = o.bytes / static_cast<uint64_t>(count - 1) / kFanBlock * kFanBlock;
  if (shard == 0 || shard / kFanBlock * static_cast<uint64_t>(count - 1) * static_cast<uint64_t>(o.repeats) >= UINT32_MAX)
    fail(MK_ERROR_ARGUMENT, "bytes is %llu; among %d devices at least %llu are wanted, and less than 2^32 blocks of %u in all repeats",
         static_cast<unsigned long long>(o.bytes), count, static_cast<unsigned long long>(kFanBlock) * (count - 1), kFanBlock);
  return shard;
}

namespace measure {

void check_gpu(int device) {
  int devices = 0;
  const cudaError_t e = cudaGetDeviceCount(&devices);
  if (e == cudaErrorInsufficientDriver || e == cudaErrorNoDevice) {
    cudaGetLastError();
    fail(MK_ERROR_UNSUPPORTED, "no CUDA device: %s", cudaGetErrorString(e));
  }
  check_cuda(e, "counting the devices");
  if (device < 0 || device >= devices)
    fail(MK_ERROR_ARGUMENT, "device %d does not exist, this process sees %d", device, devices);
}

namespace {

void copy(const Side& from, const Side& to, const mk_measure_options& o) {
  check_cuda(cudaMemcpyPeerAsync(to.target.at(), to.device, from.source.at(), from.device, o.bytes, from.lane.stream), "copying");
}

void measure_copy(mk_measure_path& p, const Side& from, const Side& to, const mk_measure_options& o, uint64_t seed) {
  from.select();
  check_cuda(measure_write(from.source.at(), o.bytes, seed, from.lane.stream), "making data");
  from.lane.wait();
  p.copy_gbs = timed(from.lane, o, [&] { copy(from, to, o); });
  to.poison(o.bytes);
  from.select();
  copy(from, to, o);
  from.lane.wait();
  p.words = o.bytes / 8;
  p.wrong_copy = to.wrong(to.target.at(), o.bytes, seed);
}

void measure_direct(mk_measure_path& p, const Side& from, const Side& to, const mk_measure_options& o, uint64_t seed) {
  const auto store = [&] { check_cuda(measure_write(to.target.at(), o.bytes, seed, from.lane.stream), "storing to the peer"); };
  from.select();
  p.store_gbs = timed(from.lane, o, store);
  to.poison(o.bytes);
  from.select();
  store();
  from.lane.wait();
  p.wrong_store = to.wrong(to.target.at(), o.bytes, seed);
  p.wrong_load = from.wrong(to.target.at(), o.bytes, seed);
  check_cuda(measure_follow(to.ring.at(), o.rounds, &from.shared()->ns, from.lane.stream), "loading from the peer");
  p.load_us = static_cast<double>(from.read(&from.shared()->ns)) / 1e3 / o.rounds;
}

void clear_flag(const Side& s) {
  s.select();
  check_cuda(cudaMemsetAsync(&s.shared()->flag, 0, sizeof(uint64_t), s.lane.stream), "clearing a flag");
  s.lane.wait();
}

void measure_signals(mk_measure_path& p, const Side& from, const Side& to, const mk_measure_options& o) {
  clear_flag(from);
  clear_flag(to);
  to.select();
  check_cuda(measure_signal(false, &from.shared()->flag, &to.shared()->flag, o.rounds, o.timeout_ns, &to.shared()->signal,
                            to.lane.stream), "answering signals");
  from.select();
  check_cuda(measure_signal(true, &to.shared()->flag, &from.shared()->flag, o.rounds, o.timeout_ns, &from.shared()->signal,
                            from.lane.stream), "sending signals");
  from.lane.wait();
  to.lane.wait();
  const SignalResult r = from.read(&from.shared()->signal);
  if (r.rounds != static_cast<uint64_t>(o.rounds))
    fail(MK_ERROR_ABORTED, "device %d waited %.1f s for the answer of device %d to signal %llu of %d", from.device,
         o.timeout_ns * 1e-9, to.device, static_cast<unsigned long long>(r.rounds + 1), o.rounds);
  p.signal_us = static_cast<double>(r.ns) / 1e3 / o.rounds / 2;
}

void measure_pair(int a_device, int b_device, const mk_measure_options& o, mk_measure_path path[2]) {
  const Side a(a_device, o.bytes), b(b_device, o.bytes);
  const PeerAccess forth(a_device, b_device), back(b_device, a_device);
  path[0].from = path[1].to = a_device;
  path[0].to = path[1].from = b_device;
  path[0].direct = forth.direct(), path[1].direct = back.direct();
  measure_copy(path[0], a, b, o, 1);
  measure_copy(path[1], b, a, o, 2);
  timed_both(a.lane, b.lane, o, [&] { a.select(), copy(a, b, o); }, [&] { b.select(), copy(b, a, o); });
  path[0].both_gbs = a.lane.gbs(o.bytes * o.repeats);
  path[1].both_gbs = b.lane.gbs(o.bytes * o.repeats);
  if (forth.direct()) measure_direct(path[0], a, b, o, 3);
  if (back.direct()) measure_direct(path[1], b, a, o, 4);
  if (!forth.direct() || !back.direct()) return;
  measure_signals(path[0], a, b, o);
  measure_signals(path[1], b, a, o);
}

}  // namespace
}  // namespace measure
}  // namespace mk

extern "C" {

int mk_measure_pair(int32_t a, int32_t b, const mk_measure_options* options, mk_measure_path path[2], mk_error* error) {
  return mk::guarded(error, [&] {
    if (path == nullptr) mk::fail(MK_ERROR_ARGUMENT, "path is NULL");
    MK_INIT(&path[0]);
    MK_INIT(&path[1]);
    const mk_measure_options o = mk::measure_options(options);
    if (a == b) mk::fail(MK_ERROR_ARGUMENT, "device %d is no pair with itself", a);
    mk::measure::check_gpu(a);
    mk::measure::check_gpu(b);
    mk::measure::measure_pair(a, b, o, path);
  });
}

int mk_measure_fan_out(const int32_t* devices, int32_t count, const mk_measure_options* options, mk_measure_fan* fans,
                       int32_t fan_count, mk_error* error) {
  return mk::guarded(error, [&] {
    const mk_measure_options o = mk::measure_options(options);
    const uint64_t shard = mk::measure_fan_shard(devices, count, o, fans, fan_count);
    for (int i = 0; i < count; ++i) mk::measure::check_gpu(devices[i]);
    mk::measure::measure_fans(devices, count, o, shard, fans, fan_count);
  });
}

int mk_measure_host_link(int32_t device, const mk_measure_options* options, mk_measure_host* out, mk_error* error) {
  return mk::guarded(error, [&] {
    if (out == nullptr) mk::fail(MK_ERROR_ARGUMENT, "out is NULL");
    MK_INIT(out);
    const mk_measure_options o = mk::measure_options(options);
    mk::measure::check_gpu(device);
    mk::measure::measure_host(device, o, *out);
  });
}

}  // extern "C"
