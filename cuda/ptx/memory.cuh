// Loads, stores and atomics with an explicit scope, for flags and for data that crosses GPUs.
//
// A flag is written with store_release_system (or a fence_system and a relaxed store) by the thread that knows the
// data to be written, and read with load_relaxed_system in a loop followed by one fence_system.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mk::ptx {

__device__ __forceinline__ uint64_t load_relaxed_system(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_relaxed_system(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_release_system(uint64_t* p, uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Adds and returns the old value; acquire and release at GPU scope.
__device__ __forceinline__ uint32_t add_acq_rel_gpu(uint32_t* p, uint32_t v) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}

// Swaps in `v` if the word is `expected`; returns what was there.
__device__ __forceinline__ uint64_t compare_swap_system(uint64_t* p, uint64_t expected, uint64_t v) {
  uint64_t old;
  asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(p), "l"(expected), "l"(v) : "memory");
  return old;
}

// 16 bytes of an operand that nobody writes during the kernel.
__device__ __forceinline__ uint4 load_stream(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// 16 bytes to any address, a peer's included; ordered by a later fence_system.
__device__ __forceinline__ void store_stream(void* p, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

}  // namespace mk::ptx
