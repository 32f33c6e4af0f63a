// The kernel's launch interface, and the small kernels beside it.
#include "comm/wait.cuh"
#include "kernels/ag_gemm_instance.h"

namespace mk {
namespace {

__device__ __forceinline__ uint64_t current_epoch(const WaitContext& w) { return w.control[w.rank]->epoch.value + 1; }

__global__ void ag_gemm_prologue_kernel(const __grid_constant__ WaitContext w, const __grid_constant__ CopyCredits credits) {
  Control* own = w.control[w.rank];
  if (aborted(w)) return;
  const uint64_t epoch = current_epoch(w);
  const int64_t start = clock64();
  for (int i = threadIdx.x; i < credits.count; i += blockDim.x)
    wait_for(w, kRoleCredit, credits.flags, credits.free[i], epoch);
  __syncthreads();
  for (int i = threadIdx.x; i < kStampRun; i += blockDim.x) own->stamp[i] = epoch;
  if (threadIdx.x == 0) credits.waited[kRoleCredit] = clock64() - start;
}

__global__ void barrier_kernel(const __grid_constant__ WaitContext w) {
  Control* own = w.control[w.rank];
  if (aborted(w)) return;
  const uint64_t epoch = own->epoch.value + 1;
  const int peer = threadIdx.x;
  if (peer < w.world && peer != w.rank && w.control[peer] != nullptr) {
    ptx::store_release_system(&w.control[peer]->met[w.rank].value, epoch);
    wait_flag(w, kRoleBarrier, &own->met[peer].value, epoch);
  }
  __syncthreads();
  if (threadIdx.x == 0) own->epoch.value = epoch;
}

// Calls `f` with the instance of a shape.
template <class F>
cudaError_t with_instance(const AgGemmShape& s, F f) {
  return with_tile(s, [&](auto tile) { return f(AgGemmInstance<decltype(tile)>{}); });
}

}  // namespace

cudaError_t ag_gemm_prepare(const AgGemmShape& shape) {
  cudaFuncAttributes unused;
  if (cudaError_t e = cudaFuncGetAttributes(&unused, ag_gemm_prologue_kernel)) return e;
  if (cudaError_t e = cudaFuncGetAttributes(&unused, barrier_kernel)) return e;
  return with_instance(shape, [&](auto instance) { return instance.prepare(shape.element); });
}

cudaError_t ag_gemm_resident(const AgGemmShape& shape, int* ctas) {
  return with_instance(shape, [&](auto instance) { return instance.resident(shape.element, ctas); });
}

cudaError_t ag_gemm_launch(const AgGemmShape& shape, const AgGemmParams& params, int ctas, cudaStream_t stream) {
  return with_instance(shape, [&](auto instance) { return instance.launch(shape.element, params, ctas, stream); });
}

cudaError_t ag_gemm_prologue_launch(const WaitContext& wait, const CopyCredits& credits, cudaStream_t stream) {
  ag_gemm_prologue_kernel<<<1, kMostCopies, 0, stream>>>(wait, credits);
  return cudaGetLastError();
}

cudaError_t barrier_launch(const WaitContext& wait, cudaStream_t stream) {
  barrier_kernel<<<1, kMaxRanks, 0, stream>>>(wait);
  return cudaGetLastError();
}

}  // namespace mk
