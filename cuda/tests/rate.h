// The figure that gpu_ag_gemm holds copies to; without CUDA, so that it is tested where there is no GPU.
#pragma once
#include <cstdint>

namespace test {

// GB/s out of a rank whose shard of `bytes` went to each of its peers.
inline double copied_gbs(int64_t bytes, int world, double ms) { return static_cast<double>(bytes * (world - 1)) * 1e-6 / ms; }

}  // namespace test
