// mk_measure on real GPUs: figures of the first GPU's host link and of its way over the proxy, of every pair and of fans, all checks clean, and a planted
// fault found. Ends with "N passed, N failed".
#include <cstdio>
#include <vector>

#include "include/mkernel_measure.h"
#include "kernels/measure.cu"  // the library exports none of it
#include "tests/gpu_data.cuh"

namespace {

int passed = 0, failed = 0;

void expect(bool good, const char* what) {
  ++(good ? passed : failed);
  if (!good) printf("FAIL: %s\n", what);
}

void host_link() {
  mk_measure_host h;
  mk_error e;
  const int code = mk_measure_host_link(0, nullptr, &h, &e);
  expect(code == MK_OK, e.text);
  printf("host: to device %.1f to host %.1f both %.1f + %.1f GB/s, signal round trip %.2f us\n", h.to_device_gbs, h.to_host_gbs,
         h.both_to_device_gbs, h.both_to_host_gbs, h.signal_us);
  expect(h.to_device_gbs > 1 && h.to_host_gbs > 1 && h.signal_us > 0, "the host link has figures");
  expect(h.words == 32u << 20 && h.wrong_to_device == 0 && h.wrong_to_host == 0, "what crossed the host link is right");
}

void pair(int a, int b) {
  mk_measure_path p[2];
  mk_error e;
  const int code = mk_measure_pair(a, b, nullptr, p, &e);
  expect(code == MK_OK, e.text);
  for (const mk_measure_path& x : p) {
    printf("%d -> %d direct %d: copy %.1f both %.1f store %.1f GB/s, load %.3f signal %.3f us\n", x.from, x.to, x.direct,
           x.copy_gbs, x.both_gbs, x.store_gbs, x.load_us, x.signal_us);
    expect(x.copy_gbs > 1 && x.both_gbs > 1, "the pair has figures");
    expect(!x.direct || (x.store_gbs > 1 && x.load_us > 0 && x.signal_us > 0), "the direct way has figures");
    expect(x.wrong_copy == 0 && x.wrong_store == 0 && x.wrong_load == 0, "what crossed is right");
  }
}

// All push to all others, with many and with few CTAs on their way: every word arrives.
void fan_out(int devices) {
  if (devices < 2) return;
  std::vector<int32_t> all(devices);
  for (int i = 0; i < devices; ++i) all[i] = i;
  std::vector<mk_measure_fan> fans;
  for (const int sources : {1, devices})
    for (int peers = 1; peers < devices; peers = peers * 2 + 1)
      for (const int depth : {1, 4}) {
        mk_measure_fan f;
        MK_INIT(&f);
        f.sources = sources, f.peers = peers, f.ctas = depth == 4 ? 16 : 0, f.depth = depth;
        fans.push_back(f);
      }
  mk_error e;
  const int code = mk_measure_fan_out(all.data(), devices, nullptr, fans.data(), static_cast<int32_t>(fans.size()), &e);
  expect(code == MK_OK, e.text);
  for (const mk_measure_fan& f : fans) {
    printf("%d of %d push to %d with %d CTAs, %d blocks each on their way: %.1f GB/s\n", f.sources, devices, f.peers, f.ctas, f.depth, f.gbs);
    expect(f.gbs > 1 && f.words > 0 && f.wrong == 0, "a fan has figures, and what it carried is right");
  }
}

// GPU, proxy, GPU: where the flag is, who raises it, and what goes before it.
void trips() {
  std::vector<mk_measure_trip> all;
  for (const bool on_device : {false, true})
    for (const bool unordered : {false, true})
      for (const uint64_t bytes : {0, 65536}) {
        if (bytes > 0 && !on_device) continue;
        mk_measure_trip t;
        MK_INIT(&t);
        t.on_device = on_device, t.unordered = unordered, t.bytes = bytes;
        all.push_back(t);
      }
  mk_measure_options o;
  MK_INIT(&o);
  mk_error e;
  expect(mk_measure_trips(0, &o, all.data(), static_cast<int32_t>(all.size()), &e) == MK_OK, e.text);
  for (const mk_measure_trip& t : all) {
    printf("gpu -> proxy -> gpu, %s, flag by the %s proxy, %llu bytes before it: median %.2f us, p99 %.2f us (posted after %.2f), %llu rounds, %llu wrong\n",
           t.on_device ? "device memory by copy engine" : "pinned host memory", t.unordered ? "receiver's" : "sender's",
           static_cast<unsigned long long>(t.bytes), t.median_us, t.p99_us, t.post_us, static_cast<unsigned long long>(t.rounds),
           static_cast<unsigned long long>(t.wrong));
    expect(t.rounds >= 1000 && t.wrong == 0 && t.median_us > 0 && t.p99_us >= t.median_us, "every flag was the round's");
  }
}

// The check must count exactly the words that are wrong.
void planted_fault() {
  constexpr uint64_t kBytes = 1 << 20, kSeed = 9;
  char* data = nullptr;
  uint64_t* wrong = nullptr;
  test::cuda(cudaMalloc(&data, kBytes), "data");
  test::cuda(cudaMalloc(&wrong, sizeof *wrong), "count");
  const auto count = [&](uint64_t seed) {
    uint64_t n = 0;
    test::cuda(cudaMemset(wrong, 0, sizeof *wrong), "clear");
    test::cuda(mk::measure_check(data, kBytes, seed, wrong, nullptr), "check");
    test::cuda(cudaMemcpy(&n, wrong, sizeof n, cudaMemcpyDeviceToHost), "count");
    return n;
  };
  test::cuda(mk::measure_write(data, kBytes, kSeed, nullptr), "write");
  expect(count(kSeed) == 0, "an untouched pattern is right");
  expect(count(kSeed + 1) == kBytes / 8, "another seed is wrong everywhere");
  test::cuda(cudaMemset(data + 4096, 0xA5, 24), "fault");
  test::cuda(cudaMemset(data + kBytes - 1, 0, 1), "fault");
  const uint64_t last_byte = mk::measure_word(kSeed, kBytes / 8 - 1) >> 56;
  expect(count(kSeed) == (last_byte == 0 ? 3u : 4u), "three dropped words and a bent one are found");
  mk_error e;
  mk_measure_path p[2];
  expect(mk_measure_pair(0, 4096, nullptr, p, &e) == MK_ERROR_ARGUMENT, "a device that is not there is refused");
  cudaFree(data), cudaFree(wrong);
}

}  // namespace

int main() {
  int devices = 0;
  test::cuda(cudaGetDeviceCount(&devices), "devices");
  planted_fault();
  host_link();
  trips();
  for (int a = 0; a < devices; ++a)
    for (int b = a + 1; b < devices; ++b) pair(a, b);
  fan_out(devices);
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
