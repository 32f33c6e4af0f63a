// What the measurements share: memory, streams and timing on GPUs, and the data that shows what arrived.
#pragma once
#include <cstdint>

#include "host/context.h"
#include "host/error.h"
#include "host/measure.h"
#include "kernels/measure.h"

namespace mk::measure {

constexpr int kPoison = 0xA5;  // no byte that a pattern has everywhere
constexpr uint64_t kLine = 128;
constexpr uint32_t kRingLines = 4096;  // 512 KiB: stays in the owner's L2, so the way there is timed and not its DRAM

// Throws if there is no such GPU.
void check_gpu(int device);

// Device memory, freed on its device.
class Memory {
 public:
  Memory(int device, uint64_t bytes) : device_(device) {
    const DeviceGuard guard(device);
    check_cuda(cudaMalloc(&at_, bytes), "memory to measure with");
  }
  ~Memory() {
    const DeviceGuard guard(device_, std::nothrow);
    cudaFree(at_);
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
    const DeviceGuard guard(from_, std::nothrow);
    cudaDeviceDisablePeerAccess(to_);
  }
  PeerAccess(const PeerAccess&) = delete;
  bool direct() const { return direct_; }

 private:
  int from_, to_;
  bool enabled_ = false, direct_ = false;
};

void measure_host(int device, const mk_measure_options& o, mk_measure_host& h);
// A shard of bytes from each of the devices to those that follow it.
void measure_fans(const int32_t* devices, int32_t count, const mk_measure_options& o, uint64_t shard, mk_measure_fan* fans, int32_t fan_count);

}  // namespace mk::measure
