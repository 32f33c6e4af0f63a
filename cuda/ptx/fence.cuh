// Fences, CTA and cluster barriers, register re-allocation.
#pragma once
#include <cstdint>

namespace mk::ptx {

// Generic writes to shared memory before it are visible to async-proxy reads (TMA store, wgmma) after it. Every
// writing thread executes it, then the barrier that hands over to the issuing thread.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Orders generic and async accesses to global memory: between the acquire of a flag and a TMA access to what the flag
// announces.
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// fence.acq_rel at system scope.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Barrier among `threads` threads of the CTA, by id (comm between warps of one role; ids: kernels/gemm_tile.h).
__device__ __forceinline__ void named_barrier(uint32_t id, uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrival at the same barrier by a warp that does not wait for it; what it did before is ordered before what the waiting
// warps do after.
__device__ __forceinline__ void named_barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Barrier among all threads of the cluster; release on arrive, acquire on wait.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ uint32_t cluster_cta_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// setmaxnreg: the whole warpgroup executes it, converged, as the first thing of its role.
template <int Registers>
__device__ __forceinline__ void registers_release() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void registers_claim() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

__device__ __forceinline__ uint64_t global_timer() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

}  // namespace mk::ptx
