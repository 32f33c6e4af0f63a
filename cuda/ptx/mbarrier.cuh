// mbarrier: the shared-memory barrier that counts arrivals and bytes.
//
// Order: an arrive has release semantics and a successful wait acquire semantics, both at CTA scope. Bytes written by a bulk copy are visible to a thread that saw the phase complete.
// A barrier starts in phase 0; waiting on parity 1 before any completion returns at once.
#pragma once
#include <cstdint>

namespace mk::ptx {

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// mbarrier.init. Follow with fence_mbarrier_init and a CTA (or cluster) barrier before first use.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(barrier)), "r"(arrivals) : "memory");
}

// fence.mbarrier_init: makes the init visible to the async proxy and to the other CTAs of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive on the own CTA's barrier.
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(smem_address(barrier)) : "memory");
}

// mbarrier.arrive on the barrier at the same offset in CTA `rank` of the cluster. Release at CTA scope only: it hands
// back a stage that wgmma has finished reading, no data, and a cluster-scope release costs a memory barrier.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}"
      ::"r"(smem_address(barrier)), "r"(rank) : "memory");
}

// mbarrier.arrive.expect_tx: one arrival, and `bytes` more to be delivered by bulk copies in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;"
               ::"r"(smem_address(barrier)), "r"(bytes) : "memory");
}

// mbarrier.try_wait: waits a hardware-chosen while for the phase of this parity; true once it completed.
__device__ __forceinline__ bool mbarrier_try_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done) : "r"(smem_address(barrier)), "r"(parity) : "memory");
  return done != 0;
}

// Waits inside a CTA are bounded by the waits on flags: the producer always completes its phases, also after
// an abort (comm/gate.cuh), so these loops need no clock.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

}  // namespace mk::ptx
