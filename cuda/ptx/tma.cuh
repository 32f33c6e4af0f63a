// cp.async.bulk: the bulk copy engine (TMA), three-dimensional tiles of tensors and plain pieces.
//
// Order: all of these run in the async proxy. Data that generic instructions wrote must be fenced
// (ptx/fence.cuh) before a copy reads it. A load completes on an mbarrier; a store completes in a bulk group:
// `wait_read` says only that the shared-memory source may be reused, `wait_all` that the writes are done.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "ptx/mbarrier.cuh"

namespace mk::ptx {

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Global to the own CTA's shared memory; `bytes` of the whole box count on `barrier`, out-of-bounds parts are
// filled with zeros and count too.
__device__ __forceinline__ void tma_load(void* smem, const CUtensorMap* map, uint64_t* barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(smem_address(smem)), "l"(map), "r"(smem_address(barrier)), "r"(x), "r"(y), "r"(z) : "memory");
}

// Asks for a box to be brought into L2; nothing waits for it.
__device__ __forceinline__ void tma_prefetch(const CUtensorMap* map, int x, int y, int z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];"
               ::"l"(map), "r"(x), "r"(y), "r"(z) : "memory");
}

// As tma_load, into the shared memory of every CTA of the cluster whose bit is set in `ctas`, at the same offset;
// each destination's barrier (same offset) gets the bytes. Every destination must have freed the slot.
__device__ __forceinline__ void tma_load_multicast(void* smem, const CUtensorMap* map, uint64_t* barrier, uint16_t ctas,
                                                   int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5, %6}], [%2], %3;"
      ::"r"(smem_address(smem)), "l"(map), "r"(smem_address(barrier)), "h"(ctas), "r"(x), "r"(y), "r"(z) : "memory");
}

// Shared memory to global; parts of the box outside the tensor are not written.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* smem, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
               ::"l"(map), "r"(smem_address(smem)), "r"(x), "r"(y), "r"(z) : "memory");
}

// The same for `bytes` in one piece, without a map; addresses and size are multiples of 16.
__device__ __forceinline__ void bulk_load(void* smem, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(smem_address(smem)), "l"(from), "r"(bytes), "r"(smem_address(barrier)) : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, const void* smem, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               ::"l"(to), "r"(smem_address(smem)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// At most N of the calling thread's newest groups still read their source afterwards.
template <int N>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

// All of the calling thread's groups are written. Required before a flag that announces them, and before exit.
__device__ __forceinline__ void tma_store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace mk::ptx
