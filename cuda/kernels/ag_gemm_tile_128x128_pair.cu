#include "kernels/ag_gemm_kernel.cuh"

template struct mk::AgGemmInstance<mk::GemmTile<128, 128, 2>>;
