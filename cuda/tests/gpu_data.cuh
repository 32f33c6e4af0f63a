// Test data on the GPU: normal random operands from a seed, an fp32 reference product, comparison by tiles.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace test {

inline void cuda(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  printf("FAIL: %s: %s\n", what, cudaGetErrorString(e));
  fflush(nullptr);
  _exit(1);
}

__device__ inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Element (row, column) depends only on seed, row and column, so a rank can make any other rank's shard.
template <typename T>
__global__ void fill_normal(T* p, int64_t rows, int64_t columns, int64_t pitch, int64_t first_row, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < rows * columns; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = i / columns, c = i % columns;
    const uint64_t h = mix(seed ^ mix(static_cast<uint64_t>((r + first_row) * 1000003 + c)));
    const float u = (static_cast<uint32_t>(h) + 1.0f) * 2.3283064e-10f, v = static_cast<uint32_t>(h >> 32) * 2.3283064e-10f;
    p[r * pitch + c] = T(sqrtf(-2.0f * logf(fminf(u, 1.0f))) * cospif(2.0f * v));
  }
}

// reference[m][n] = sum_k a[m][k] * b[n][k] in fp32; 16 x 16 tiles in shared memory.
template <typename T>
__global__ void reference_product(float* out, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t m, int64_t n, int64_t k) {
  __shared__ float as[16][17], bs[16][17];
  const int64_t row = blockIdx.y * int64_t{16} + threadIdx.y, column = blockIdx.x * int64_t{16} + threadIdx.x;
  float sum = 0;
  for (int64_t at = 0; at < k; at += 16) {
    const int64_t kk = at + threadIdx.x;
    const int64_t b_row = blockIdx.x * int64_t{16} + threadIdx.y;
    as[threadIdx.y][threadIdx.x] = row < m && kk < k ? float(a[row * lda + kk]) : 0.0f;
    bs[threadIdx.y][threadIdx.x] = b_row < n && kk < k ? float(b[b_row * ldb + kk]) : 0.0f;
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += as[threadIdx.y][i] * bs[threadIdx.x][i];
    __syncthreads();
  }
  if (row < m && column < n) out[row * n + column] = sum;
}

// Per tile of 128 x 64: squared error and squared reference.
template <typename T>
__global__ void compare_tiles(double2* tiles, const T* c, int64_t ldc, const float* reference, int64_t m, int64_t n) {
  __shared__ double error, norm;
  if (threadIdx.x == 0) error = norm = 0;
  __syncthreads();
  double e = 0, s = 0;
  for (int i = threadIdx.x; i < 128 * 64; i += blockDim.x) {
    const int64_t row = blockIdx.y * int64_t{128} + i / 64, column = blockIdx.x * int64_t{64} + i % 64;
    if (row >= m || column >= n) continue;
    const double want = reference[row * n + column], got = float(c[row * ldc + column]);
    e += (got - want) * (got - want);
    s += want * want;
  }
  atomicAdd(&error, e);
  atomicAdd(&norm, s);
  __syncthreads();
  if (threadIdx.x == 0) tiles[blockIdx.y * int64_t{gridDim.x} + blockIdx.x] = make_double2(error, norm);
}

// Counts 16-bit words of a matrix that differ from those of another, or from one value if `other` is null.
static __global__ void count_different(unsigned long long* count, const uint16_t* p, int64_t pitch, const uint16_t* other,
                                       int64_t other_pitch, uint16_t value, int64_t rows, int64_t columns) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < rows * columns; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = i / columns, c = i % columns;
    if (p[r * pitch + c] != (other != nullptr ? other[r * other_pitch + c] : value)) atomicAdd(count, 1ull);
  }
}

static __global__ void spin(uint64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

struct Difference {
  double relative = 0;  // Frobenius norm of the error over that of the reference
  double worst = 0;     // the same of the worst tile
  bool within(double tolerance) const { return relative < tolerance && worst < 2 * tolerance; }  // false on NaN
};

template <typename T>
Difference compare(const T* c, int64_t ldc, const float* reference, int64_t m, int64_t n) {
  Difference d;
  if (m == 0 || n == 0) return d;
  const dim3 grid((n + 63) / 64, (m + 127) / 128);
  std::vector<double2> host(size_t{grid.x} * grid.y);
  double2* tiles = nullptr;
  cuda(cudaMalloc(&tiles, host.size() * sizeof(double2)), "memory for the comparison");
  compare_tiles<<<grid, 256>>>(tiles, c, ldc, reference, m, n);
  cuda(cudaMemcpy(host.data(), tiles, host.size() * sizeof(double2), cudaMemcpyDeviceToHost), "comparison");
  cudaFree(tiles);
  double error = 0, norm = 0;
  for (const double2& t : host) {
    error += t.x;
    norm += t.y;
    const double relative = t.y > 0 ? std::sqrt(t.x / t.y) : (t.x == 0 ? 0 : INFINITY);
    if (!(relative <= d.worst)) d.worst = relative;
  }
  d.relative = norm > 0 ? std::sqrt(error / norm) : (error == 0 ? 0 : INFINITY);
  return d;
}

}  // namespace test
