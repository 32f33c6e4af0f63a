// The kernel once more, for bf16, with what its roles do recorded.
#include "kernels/ag_gemm_kernel.cuh"

namespace mk {
namespace {

template <class Tile>
__global__ void __launch_bounds__(kThreads, 1) ag_gemm_timeline_kernel(const __grid_constant__ AgGemmParams p,
                                                                       const __grid_constant__ Timeline timeline) {
  ag_gemm_body<Tile, __nv_bfloat16>(p, Record{timeline});
}

// Calls `f` with the tile of a shape of bf16.
template <class F>
cudaError_t with_bf16_tile(const AgGemmShape& s, F f) {
  return s.element == Element::kBf16 ? with_tile(s, f) : cudaErrorNotSupported;
}

}  // namespace

cudaError_t ag_gemm_timeline_prepare(const AgGemmShape& shape) {
  return with_bf16_tile(shape, [](auto tile) {
    using Tile = decltype(tile);
    return cudaFuncSetAttribute(ag_gemm_timeline_kernel<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  });
}

cudaError_t ag_gemm_timeline_launch(const AgGemmShape& shape, const AgGemmParams& params, const Timeline& timeline, int ctas,
                                    cudaStream_t stream) {
  return with_bf16_tile(shape, [&](auto tile) {
    using Tile = decltype(tile);
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t c = KernelConfig<Tile>::config(attributes, ctas, stream, true);
    return cudaLaunchKernelEx(&c, ag_gemm_timeline_kernel<Tile>, params, timeline);
  });
}

}  // namespace mk
