// Operands of one ag_gemm call on this rank, its reference and its guard band.
#pragma once
#include <type_traits>

#include "include/mkernel.h"
#include "tests/gpu_data.cuh"

namespace test {

struct Problem {
  int64_t m, n, k;
  int64_t extra = 0;  // added to each leading dimension
};

// Operands of one problem; C has a guard band of NaN after its rows and columns.
template <typename T>
struct Operands {
  Problem p;
  int rank, world;
  int64_t lda, ldb, ldc, first, rows;  // rows of the shard, and which is its first
  T *a, *gathered, *b, *c;
  float* reference = nullptr;
  static constexpr int64_t kGuardRows = 8;

  Operands(const Problem& problem, int rank_, int world_, uint64_t seed) : p(problem), rank(rank_), world(world_) {
    lda = p.k + p.extra, ldb = p.k + p.extra, ldc = (p.n + 7) / 8 * 8 + p.extra;
    first = p.m * rank / world, rows = p.m * (rank + 1) / world - first;
    const auto make = [](T** to, int64_t elements) { cuda(cudaMalloc(to, (elements + 8) * sizeof(T)), "operand"); };
    make(&a, rows * lda);
    make(&gathered, p.m * p.k);
    make(&b, p.n * ldb);
    make(&c, (p.m + kGuardRows) * ldc);
    test::fill_normal<<<512, 256>>>(b, p.n, p.k, ldb, 0, 77 + rank);
    set_a(seed);
  }
  ~Operands() {
    cudaFree(a), cudaFree(gathered), cudaFree(b), cudaFree(c), cudaFree(reference);
  }
  void set_a(uint64_t seed) {
    test::fill_normal<<<512, 256>>>(a, rows, p.k, lda, first, seed);
    test::fill_normal<<<512, 256>>>(gathered, p.m, p.k, p.k, 0, seed);
    cuda(cudaDeviceSynchronize(), "operands");
  }
  // Waits: the calls run on a stream that this memset would not order.
  void poison() {
    cuda(cudaMemset(c, 0xFF, (p.m + kGuardRows) * ldc * sizeof(T)), "poison");
    cuda(cudaDeviceSynchronize(), "poison");
  }
  mk_ag_gemm_args args() const {
    mk_ag_gemm_args x;
    MK_INIT(&x);
    x.m = p.m, x.n = p.n, x.k = p.k, x.a = a, x.b = b, x.c = c, x.lda = lda, x.ldb = ldb, x.ldc = ldc;
    x.element = std::is_same<T, __half>::value ? MK_F16 : MK_BF16;
    return x;
  }
  test::Difference difference() {
    if (p.m == 0 || p.n == 0) return {};
    if (reference == nullptr) {
      cuda(cudaMalloc(&reference, p.m * p.n * sizeof(float)), "reference");
      const dim3 grid((p.n + 15) / 16, (p.m + 15) / 16);
      test::reference_product<<<grid, dim3(16, 16)>>>(reference, gathered, p.k, b, ldb, p.m, p.n, p.k);
      cuda(cudaDeviceSynchronize(), "reference");
    }
    return test::compare(c, ldc, reference, p.m, p.n);
  }
  // Words outside C that were written.
  unsigned long long guard_written() const {
    unsigned long long *count, host = 0;
    cuda(cudaMalloc(&count, 8), "count");
    cuda(cudaMemset(count, 0, 8), "count");
    const uint16_t* w = reinterpret_cast<const uint16_t*>(c);
    test::count_different<<<64, 256>>>(count, w + p.m * ldc, ldc, nullptr, 0, 0xFFFF, kGuardRows, ldc);
    if (ldc > p.n && p.m > 0) test::count_different<<<64, 256>>>(count, w + p.n, ldc, nullptr, 0, 0xFFFF, p.m, ldc - p.n);
    cuda(cudaMemcpy(&host, count, 8, cudaMemcpyDeviceToHost), "count");
    cudaFree(count);
    return host;
  }
};

}  // namespace test
