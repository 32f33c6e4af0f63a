#include "kernels/hold.h"
#include "ptx/fence.cuh"

namespace mk {
namespace {

__global__ void hold_kernel(uint64_t nanoseconds) {
  const uint64_t start = ptx::global_timer();
#pragma unroll 1
  while (ptx::global_timer() - start < nanoseconds) {
  }
}

}  // namespace

cudaError_t hold_launch(uint64_t nanoseconds, cudaStream_t stream) {
  hold_kernel<<<1, 1, 0, stream>>>(nanoseconds);
  return cudaGetLastError();
}

}  // namespace mk
