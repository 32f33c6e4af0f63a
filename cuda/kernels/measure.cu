#include "kernels/measure.h"

#include "ptx/fence.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"

namespace mk {
namespace {

constexpr int kThreads = 512;
constexpr int kCtasPerSm = 4;  // 2048 threads: an SM full of stores in flight
constexpr uint32_t kLineWords = 16;

struct alignas(16) Pair {
  uint64_t a, b;
};

__global__ void __launch_bounds__(kThreads, kCtasPerSm) write_kernel(Pair* to, uint64_t pairs, uint64_t seed) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < pairs; i += step)
    to[i] = {measure_word(seed, 2 * i), measure_word(seed, 2 * i + 1)};
}

__global__ void __launch_bounds__(kThreads, kCtasPerSm) check_kernel(const Pair* at, uint64_t pairs, uint64_t seed,
                                                                     unsigned long long* wrong) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  unsigned long long mine = 0;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < pairs; i += step) {
    const Pair p = at[i];
    mine += (p.a != measure_word(seed, 2 * i)) + (p.b != measure_word(seed, 2 * i + 1));
  }
  if (mine != 0) atomicAdd(wrong, mine);
}

// The next line of each: a step that no prefetcher follows and that visits all lines (odd, and `lines` a power of two).
__global__ void ring_kernel(uint64_t* ring, uint32_t lines) {
  constexpr uint32_t kStep = 0x2f1;
  for (uint32_t i = threadIdx.x; i < lines; i += blockDim.x) ring[i * uint64_t{kLineWords}] = (i + kStep) & (lines - 1);
}

__global__ void follow_kernel(const uint64_t* ring, uint32_t hops, uint64_t* ns) {
  uint64_t at = ptx::load_relaxed_system(ring);  // the way there is known before the clock starts
  const uint64_t start = ptx::global_timer();
#pragma unroll 1
  for (uint32_t i = 0; i < hops; ++i) at = ptx::load_relaxed_system(ring + at * kLineWords);
  const uint64_t end = ptx::global_timer();
  // Never true; keeps the loads.
  *ns = at == ~uint64_t{0} ? 0 : end - start;
}

// True when *in has reached `wanted` in time.
__device__ __forceinline__ bool wait_for(const uint64_t* in, uint64_t wanted, uint64_t timeout_ns) {
  uint64_t deadline = 0;
  for (uint32_t tries = 1; ptx::load_acquire_system(in) < wanted; ++tries) {
    if (tries % 64 != 0) continue;
    const uint64_t now = ptx::global_timer();
    if (deadline == 0) deadline = now + timeout_ns;
    if (now >= deadline) return false;
  }
  return true;
}

__global__ void signal_kernel(bool first, uint64_t* out, const uint64_t* in, uint64_t rounds, uint64_t timeout_ns,
                              SignalResult* result) {
  uint64_t start = 0, done = 0;
#pragma unroll 1
  for (uint64_t r = 1; r <= rounds + 1; ++r) {
    if (first) ptx::store_release_system(out, r);
    if (!wait_for(in, r, timeout_ns)) break;
    if (!first) ptx::store_release_system(out, r);
    if (r == 1) start = ptx::global_timer();  // the first round waits for the other side to start
    done = r;
  }
  result->rounds = done == 0 ? 0 : done - 1;
  result->ns = done == 0 ? 0 : ptx::global_timer() - start;
}

// One thread per CTA. Unit u of a pass is block u / targets, for target u % targets.
__global__ void fan_kernel(const char* source, const __grid_constant__ FanTargets targets, uint32_t blocks, uint32_t passes, uint32_t depth) {
  extern __shared__ __align__(128) char buffers[];
  __shared__ uint64_t loaded[kFanMostDepth];
  for (uint32_t stage = 0; stage < depth; ++stage) ptx::mbarrier_init(&loaded[stage], 1);
  ptx::fence_mbarrier_init();
  const uint32_t peers = static_cast<uint32_t>(targets.count), units = blocks * peers * passes;
  const uint32_t mine = blockIdx.x < units ? (units - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  const auto place = [&](uint32_t i) { return (blockIdx.x + i * gridDim.x) / peers % blocks * uint64_t{kFanBlock}; };
  const auto load = [&](uint32_t i) {
    const uint32_t stage = i % depth;
    ptx::mbarrier_arrive_expect(&loaded[stage], kFanBlock);
    ptx::bulk_load(buffers + stage * kFanBlock, source + place(i), kFanBlock, &loaded[stage]);
  };
  for (uint32_t i = 0; i < depth && i < mine; ++i) load(i);
#pragma unroll 1
  for (uint32_t i = 0; i < mine; ++i) {
    const uint32_t stage = i % depth;
    ptx::mbarrier_wait(&loaded[stage], i / depth & 1);
    ptx::bulk_store(targets.at[(blockIdx.x + i * gridDim.x) % peers] + place(i), buffers + stage * kFanBlock, kFanBlock);
    ptx::tma_store_commit();
    if (depth == 1) {
      ptx::tma_store_wait_all();
      if (i + 1 < mine) load(i + 1);
    } else {
      ptx::tma_store_wait_read<1>();  // the store before this one has left its buffer
      if (i > 0 && i - 1 + depth < mine) load(i - 1 + depth);
    }
  }
  ptx::tma_store_wait_all();
}

cudaError_t full_grid(int* ctas) {
  int device = 0, sms = 0;
  if (const cudaError_t e = cudaGetDevice(&device)) return e;
  if (const cudaError_t e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)) return e;
  *ctas = sms * kCtasPerSm;
  return cudaSuccess;
}

}  // namespace

cudaError_t measure_prepare() {
  const void* kernels[] = {reinterpret_cast<const void*>(write_kernel), reinterpret_cast<const void*>(check_kernel),
                           reinterpret_cast<const void*>(ring_kernel), reinterpret_cast<const void*>(follow_kernel),
                           reinterpret_cast<const void*>(signal_kernel), reinterpret_cast<const void*>(fan_kernel)};
  for (const void* k : kernels) {
    cudaFuncAttributes attributes;
    if (const cudaError_t e = cudaFuncGetAttributes(&attributes, k)) return e;
  }
  return cudaFuncSetAttribute(fan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kFanMostDepth * kFanBlock);
}

cudaError_t measure_write(void* to, uint64_t bytes, uint64_t seed, cudaStream_t stream) {
  int ctas = 0;
  if (const cudaError_t e = full_grid(&ctas)) return e;
  write_kernel<<<ctas, kThreads, 0, stream>>>(static_cast<Pair*>(to), bytes / sizeof(Pair), seed);
  return cudaGetLastError();
}

cudaError_t measure_check(const void* at, uint64_t bytes, uint64_t seed, uint64_t* wrong, cudaStream_t stream) {
  int ctas = 0;
  if (const cudaError_t e = full_grid(&ctas)) return e;
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  check_kernel<<<ctas, kThreads, 0, stream>>>(static_cast<const Pair*>(at), bytes / sizeof(Pair), seed,
                                              reinterpret_cast<unsigned long long*>(wrong));
  return cudaGetLastError();
}

cudaError_t measure_make_ring(void* ring, uint32_t lines, cudaStream_t stream) {
  if (lines == 0 || (lines & (lines - 1)) != 0) return cudaErrorInvalidValue;
  ring_kernel<<<1, kThreads, 0, stream>>>(static_cast<uint64_t*>(ring), lines);
  return cudaGetLastError();
}

cudaError_t measure_follow(const void* ring, uint32_t hops, uint64_t* ns, cudaStream_t stream) {
  follow_kernel<<<1, 1, 0, stream>>>(static_cast<const uint64_t*>(ring), hops, ns);
  return cudaGetLastError();
}

cudaError_t measure_signal(bool first, uint64_t* out, const uint64_t* in, uint64_t rounds, uint64_t timeout_ns,
                           SignalResult* result, cudaStream_t stream) {
  signal_kernel<<<1, 1, 0, stream>>>(first, out, in, rounds, timeout_ns, result);
  return cudaGetLastError();
}

cudaError_t measure_fan(const void* source, const FanTargets& targets, uint32_t blocks, uint32_t passes, int ctas, int depth,
                        cudaStream_t stream) {
  if (ctas == 0) {
    int device = 0;
    if (const cudaError_t e = cudaGetDevice(&device)) return e;
    if (const cudaError_t e = cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device)) return e;
  }
  fan_kernel<<<ctas, 1, depth * kFanBlock, stream>>>(static_cast<const char*>(source), targets, blocks, passes,
                                                    static_cast<uint32_t>(depth));
  return cudaGetLastError();
}

}  // namespace mk
