#include "kernels/ag_gemm_kernel.cuh"

template struct mk::AgGemmInstance<mk::GemmTile<64, 64, 1>>;
