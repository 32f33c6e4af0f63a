// Launch interface of the kernels that write, check and time memory and flags of peers and of the host.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mk {

// Word i of a pattern. Neighbours differ in all bytes, and no word of one seed is that of another at the same place.
__host__ __device__ inline uint64_t measure_word(uint64_t seed, uint64_t i) {
  uint64_t x = seed * 0x9E3779B97F4A7C15ull + i;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 29);
}

// What one side of an exchange of signals found.
struct SignalResult {
  uint64_t rounds;  // answered; fewer than asked for: it gave up
  uint64_t ns;      // from the second signal to the last answer
};

// Loads the kernels on the current device: a load while another kernel spins would wait for it.
cudaError_t measure_prepare();

// `bytes` is a multiple of 16.
cudaError_t measure_write(void* to, uint64_t bytes, uint64_t seed, cudaStream_t stream);
// Adds to *wrong the 8-byte words that are not the pattern's.
cudaError_t measure_check(const void* at, uint64_t bytes, uint64_t seed, uint64_t* wrong, cudaStream_t stream);

// One thread follows `hops` links of a ring of `lines` lines of 128 bytes; *ns is the time it took.
cudaError_t measure_make_ring(void* ring, uint32_t lines, cudaStream_t stream);
cudaError_t measure_follow(const void* ring, uint32_t hops, uint64_t* ns, cudaStream_t stream);

// One thread. The first side stores 1, 2, .. `rounds` + 1 into *out and waits for each to appear in *in; the other side
// waits, then answers. *in is near the side that reads it.
cudaError_t measure_signal(bool first, uint64_t* out, const uint64_t* in, uint64_t rounds, uint64_t timeout_ns,
                           SignalResult* result, cudaStream_t stream);

// Blocks in which a fan pushes, and how many a CTA may have on their way.
constexpr uint32_t kFanBlock = 16 << 10;
constexpr int kFanMostDepth = 4;
constexpr int kFanMostPeers = 15;

// Where a source pushes its data to: the same places in each peer.
struct FanTargets {
  char* at[kFanMostPeers];
  int32_t count;
};

// `ctas` CTAs (0: one for each SM) push the first `blocks` blocks of `source` to all targets, `passes` times over.
cudaError_t measure_fan(const void* source, const FanTargets& targets, uint32_t blocks, uint32_t passes, int ctas, int depth,
                        cudaStream_t stream);

}  // namespace mk
