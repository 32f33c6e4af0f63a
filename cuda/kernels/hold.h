// A kernel that only passes time, so that what is queued after it is there when it starts.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mk {

cudaError_t hold_launch(uint64_t nanoseconds, cudaStream_t stream);

}  // namespace mk
