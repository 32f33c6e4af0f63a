#include "host/measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "host/context.h"
#include "host/error.h"
#include "kernels/measure.h"

namespace mk {

mk_measure_options measure_options(const mk_measure_options* given) {
  constexpr uint64_t kMostBytes = uint64_t{4} << 30;
  mk_measure_options o;
  MK_INIT(&o);
  if (given != nullptr) {
    check_struct(given, "mk_measure_options");
    o = *given;
  }
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
  if (devices == nullptr || fans == nullptr) fail(MK_ERROR_ARGUMENT, "devices or fans is NULL");
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

namespace {

constexpr int kPoison = 0xA5;          // no byte that a pattern has everywhere
constexpr uint64_t kLine = 128;
constexpr uint32_t kRingLines = 4096;  // 512 KiB: stays in the owner's L2, so the way there is timed and not its DRAM

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

// Device memory, freed on its device.
class Memory {
 public:
  Memory(int device, uint64_t bytes) : device_(device) {
    const DeviceGuard guard(device);
    check_cuda(cudaMalloc(&at_, bytes), "memory to measure with");
  }
  ~Memory() {
    int previous = 0;
    cudaGetDevice(&previous);
    cudaSetDevice(device_);
    cudaFree(at_);
    cudaSetDevice(previous);
  }
  Memory(const Memory&) = delete;
  char* at() const { return static_cast<char*>(at_); }

 private:
  int device_;
  void* at_ = nullptr;
};

// Pinned host memory that every GPU reaches at the same address.
class Pinned {
 public:
  explicit Pinned(uint64_t bytes) {
    check_cuda(cudaHostAlloc(&at_, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "pinned memory");
  }
  ~Pinned() { cudaFreeHost(at_); }
  Pinned(const Pinned&) = delete;
  char* at() const { return static_cast<char*>(at_); }

 private:
  void* at_ = nullptr;
};

// A stream with the moments that are timed on it.
struct Lane {
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, end = nullptr, ready = nullptr;

  Lane() {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check_cuda(cudaEventCreate(&start), "event");
    check_cuda(cudaEventCreate(&end), "event");
    check_cuda(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), "event");
  }
  ~Lane() {
    for (cudaEvent_t e : {start, end, ready})
      if (e != nullptr) cudaEventDestroy(e);
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  Lane(const Lane&) = delete;

  void wait() const { check_cuda(cudaStreamSynchronize(stream), "waiting for what is measured"); }
  double gbs(uint64_t bytes) const {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start, end), "elapsed time");
    return ms > 0 ? static_cast<double>(bytes) / ms / 1e6 : 0;
  }
};

// Times `repeats` calls of `move` after one that warms up.
template <class Move>
double timed(const Lane& lane, const mk_measure_options& o, Move move) {
  move();
  check_cuda(cudaEventRecord(lane.start, lane.stream), "event");
  for (int i = 0; i < o.repeats; ++i) move();
  check_cuda(cudaEventRecord(lane.end, lane.stream), "event");
  lane.wait();
  return lane.gbs(o.bytes * o.repeats);
}

// The same for two streams at once: neither starts its timed part before both are warm, and all is queued by then.
template <class MoveA, class MoveB>
void timed_both(const Lane& a, const Lane& b, const mk_measure_options& o, MoveA move_a, MoveB move_b) {
  move_a();
  move_b();
  check_cuda(cudaEventRecord(a.ready, a.stream), "event");
  check_cuda(cudaEventRecord(b.ready, b.stream), "event");
  check_cuda(cudaStreamWaitEvent(a.stream, b.ready, 0), "waiting for the other stream");
  check_cuda(cudaStreamWaitEvent(b.stream, a.ready, 0), "waiting for the other stream");
  check_cuda(cudaEventRecord(a.start, a.stream), "event");
  check_cuda(cudaEventRecord(b.start, b.stream), "event");
  for (int i = 0; i < o.repeats; ++i) move_a(), move_b();
  check_cuda(cudaEventRecord(a.end, a.stream), "event");
  check_cuda(cudaEventRecord(b.end, b.stream), "event");
  a.wait();
  b.wait();
}

// Words of one GPU that kernels and peers write besides the data.
struct Words {
  uint64_t wrong;
  uint64_t ns;
  char pad[kLine - 16];
  alignas(kLine) uint64_t flag;  // written by the peer
  alignas(kLine) SignalResult signal;
};

// One of the two GPUs.
struct Side {
  const int device;
  const DeviceGuard guard;
  const Memory source, target, ring, words;
  const Lane lane;

  Side(int device_, uint64_t bytes)
      : device(device_), guard(device_), source(device_, bytes), target(device_, bytes), ring(device_, kRingLines * kLine),
        words(device_, sizeof(Words)) {
    check_cuda(measure_prepare(), "loading the kernels (they are for compute capability 9.0: H100, H200)");
    check_cuda(cudaMemsetAsync(words.at(), 0, sizeof(Words), lane.stream), "clearing");
    check_cuda(measure_make_ring(ring.at(), kRingLines, lane.stream), "making a ring of words");
    lane.wait();
  }
  Words* shared() const { return reinterpret_cast<Words*>(words.at()); }
  void select() const { check_cuda(cudaSetDevice(device), "selecting the device"); }
  void poison(uint64_t bytes) const {
    select();
    check_cuda(cudaMemsetAsync(target.at(), kPoison, bytes, lane.stream), "poisoning the target");
    lane.wait();
  }
  // Words at `at`, here or on a peer, that are not the pattern's.
  uint64_t wrong(const char* at, uint64_t bytes, uint64_t seed) const {
    select();
    check_cuda(cudaMemsetAsync(&shared()->wrong, 0, sizeof(uint64_t), lane.stream), "clearing");
    check_cuda(measure_check(at, bytes, seed, &shared()->wrong, lane.stream), "checking what arrived");
    return read(&shared()->wrong);
  }
  template <class T>
  T read(const T* at) const {
    T value;
    check_cuda(cudaMemcpyAsync(&value, at, sizeof value, cudaMemcpyDeviceToHost, lane.stream), "reading a result");
    lane.wait();
    return value;
  }
};

// Lets kernels on one GPU reach another's memory while it lives.
class PeerAccess {
 public:
  PeerAccess(int from, int to) : from_(from), to_(to) {
    int can = 0;
    check_cuda(cudaDeviceCanAccessPeer(&can, from, to), "asking for peer access");
    if (!can) return;
    const DeviceGuard guard(from);
    const cudaError_t e = cudaDeviceEnablePeerAccess(to, 0);
    cudaGetLastError();
    enabled_ = e == cudaSuccess;
    direct_ = enabled_ || e == cudaErrorPeerAccessAlreadyEnabled;
    if (!direct_ && e != cudaErrorTooManyPeers) check_cuda(e, "enabling peer access");
  }
  ~PeerAccess() {
    if (!enabled_) return;
    int previous = 0;
    cudaGetDevice(&previous);
    cudaSetDevice(from_);
    cudaDeviceDisablePeerAccess(to_);
    cudaSetDevice(previous);
  }
  PeerAccess(const PeerAccess&) = delete;
  bool direct() const { return direct_; }

 private:
  int from_, to_;
  bool enabled_ = false, direct_ = false;
};

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

// GPUs that push to one another, each to those that follow it; what comes from the p-th before it has a place of its own.
class Ring {
 public:
  Ring(const int32_t* devices, int32_t count, const mk_measure_options& o, uint64_t shard) : options_(o), shard_(shard) {
    for (int i = 0; i < count; ++i) sides_.push_back(std::make_unique<Side>(devices[i], o.bytes));
    for (int i = 0; i < count; ++i)
      for (int peer = 0; peer < count; ++peer) {
        if (i == peer) continue;
        access_.push_back(std::make_unique<PeerAccess>(devices[i], devices[peer]));
        reaches_.push_back(access_.back()->direct());
      }
    for (int i = 0; i < count; ++i) {
      sides_[i]->select();
      check_cuda(measure_write(sides_[i]->source.at(), shard, seed(i), sides_[i]->lane.stream), "making data");
      sides_[i]->lane.wait();
    }
  }

  void measure(mk_measure_fan& f) const {
    for (int s = 0; s < f.sources; ++s)
      for (int p = 1; p <= f.peers; ++p)
        if (!reaches_[s * (size() - 1) + (peer(s, p) < s ? peer(s, p) : peer(s, p) - 1)])
          fail(MK_ERROR_UNSUPPORTED, "device %d does not reach the memory of device %d", sides_[s]->device, sides_[peer(s, p)]->device);
    push(f, 1);  // warms up
    for (int s = 0; s < f.sources; ++s) check_cuda(cudaEventRecord(sides_[s]->lane.ready, sides_[s]->lane.stream), "event");
    for (int s = 0; s < f.sources; ++s) {
      for (int other = 0; other < f.sources; ++other)
        check_cuda(cudaStreamWaitEvent(sides_[s]->lane.stream, sides_[other]->lane.ready, 0), "waiting for the other streams");
      check_cuda(cudaEventRecord(sides_[s]->lane.start, sides_[s]->lane.stream), "event");
    }
    push(f, static_cast<uint32_t>(options_.repeats));
    for (int s = 0; s < f.sources; ++s) check_cuda(cudaEventRecord(sides_[s]->lane.end, sides_[s]->lane.stream), "event");
    wait(f);
    f.gbs = 0;
    for (int s = 0; s < f.sources; ++s) {
      const double gbs = sides_[s]->lane.gbs(shard_ * f.peers * options_.repeats);
      f.gbs = s == 0 ? gbs : std::min(f.gbs, gbs);
    }
    for (const auto& side : sides_) side->poison(shard_ * (size() - 1));
    push(f, 1);
    wait(f);
    f.words = shard_ / 8 * f.peers * f.sources;
    f.wrong = 0;
    for (int s = 0; s < f.sources; ++s)
      for (int p = 1; p <= f.peers; ++p) {
        const Side& to = *sides_[peer(s, p)];
        f.wrong += to.wrong(to.target.at() + (p - 1) * shard_, shard_, seed(s));
      }
  }

 private:
  int size() const { return static_cast<int>(sides_.size()); }
  int peer(int source, int p) const { return (source + p) % size(); }
  static uint64_t seed(int source) { return 100 + source; }

  void push(const mk_measure_fan& f, uint32_t passes) const {
    for (int s = 0; s < f.sources; ++s) {
      FanTargets targets = {};
      targets.count = f.peers;
      for (int p = 1; p <= f.peers; ++p) targets.at[p - 1] = sides_[peer(s, p)]->target.at() + (p - 1) * shard_;
      sides_[s]->select();
      check_cuda(measure_fan(sides_[s]->source.at(), targets, static_cast<uint32_t>(shard_ / kFanBlock), passes, f.ctas, f.depth,
                             sides_[s]->lane.stream), "pushing to peers");
    }
  }
  void wait(const mk_measure_fan& f) const {
    for (int s = 0; s < f.sources; ++s) sides_[s]->lane.wait();
  }

  const mk_measure_options options_;
  const uint64_t shard_;
  std::vector<std::unique_ptr<Side>> sides_;
  std::vector<std::unique_ptr<PeerAccess>> access_;
  std::vector<bool> reaches_;  // by source, then by peer without itself
};

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

}  // namespace
}  // namespace mk

extern "C" {

int mk_measure_pair(int32_t a, int32_t b, const mk_measure_options* options, mk_measure_path path[2], mk_error* error) {
  return mk::guarded(error, [&] {
    if (path == nullptr) mk::fail(MK_ERROR_ARGUMENT, "path is NULL");
    MK_INIT(&path[0]);
    MK_INIT(&path[1]);
    const mk_measure_options o = mk::measure_options(options);
    if (a == b) mk::fail(MK_ERROR_ARGUMENT, "device %d is no pair with itself", a);
    mk::check_gpu(a);
    mk::check_gpu(b);
    mk::measure_pair(a, b, o, path);
  });
}

int mk_measure_fan_out(const int32_t* devices, int32_t count, const mk_measure_options* options, mk_measure_fan* fans,
                       int32_t fan_count, mk_error* error) {
  return mk::guarded(error, [&] {
    const mk_measure_options o = mk::measure_options(options);
    const uint64_t shard = mk::measure_fan_shard(devices, count, o, fans, fan_count);
    for (int i = 0; i < count; ++i) mk::check_gpu(devices[i]);
    const mk::DeviceGuard guard(devices[0]);  // restores the caller's device, whatever order the GPUs are left in
    const mk::Ring ring(devices, count, o, shard);
    for (int i = 0; i < fan_count; ++i) ring.measure(fans[i]);
  });
}

int mk_measure_host_link(int32_t device, const mk_measure_options* options, mk_measure_host* out, mk_error* error) {
  return mk::guarded(error, [&] {
    if (out == nullptr) mk::fail(MK_ERROR_ARGUMENT, "out is NULL");
    MK_INIT(out);
    const mk_measure_options o = mk::measure_options(options);
    mk::check_gpu(device);
    mk::measure_host(device, o, *out);
  });
}

}  // extern "C"
