// wgmma: asynchronous matrix multiply-add of a warpgroup, A and B from shared memory, fp32 accumulators.
//
// Order: fence before the first wgmma of a batch (accumulators touched by other instructions), commit after it, wait
// before the accumulators or the shared memory of the batch are touched. Shared memory that generic stores wrote
// needs fence_async_shared first; memory filled by TMA needs only the mbarrier wait.
//
// Accumulator element 4*j + 2*i + c of a thread is row 16*warp + lane/4 + 8*i, column 8*j + 2*(lane%4) + c.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ptx/mbarrier.cuh"

namespace mk::ptx {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Descriptor of a K-major operand whose rows are 128 bytes, swizzled by 128 bytes, base aligned to 1024 bytes. This is
// its lower half: address/16 in bits 0-13, a leading offset that this layout ignores. The upper half is constant:
// 1024/16 (eight rows) as stride in bits 32-45, layout 1 in bits 62-63. Add 2 (= 32 bytes) for each 16 columns inside
// the 128-byte row. Keeping the halves apart saves 64-bit arithmetic between the instructions of the main loop.
constexpr uint32_t kDescriptorHigh = (1u << 30) | (1024 >> 4);
__device__ __forceinline__ uint32_t wgmma_descriptor_low(uint32_t smem) { return ((smem & 0x3FFFF) >> 4) | (1u << 16); }

// d = A * B + (accumulate ? d : 0) for a 64 x N x 16 step; T is __nv_bfloat16 or __half, d holds N/2 elements.
template <int N, typename T>
__device__ __forceinline__ void wgmma_step(float (&d)[N / 2], uint32_t a, uint32_t b, bool accumulate);

#define MK_R4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MK_R16(d, i) MK_R4(d, i), MK_R4(d, i + 4), MK_R4(d, i + 8), MK_R4(d, i + 12)
#define MK_R64(d, i) MK_R16(d, i), MK_R16(d, i + 16), MK_R16(d, i + 32), MK_R16(d, i + 48)

// The instruction for N columns: sums, descriptors of A and B, whether to accumulate, the descriptors' upper half.
#define MK_WGMMA_32(type) \
  "{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %18, 0;\n" \
  "mov.b64 da, {%16, %19};\nmov.b64 db, {%17, %19};\n" \
  "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {" \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, " \
  "da, db, p, 1, 1, 0, 0;\n}"
#define MK_WGMMA_64(type) \
  "{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %34, 0;\n" \
  "mov.b64 da, {%32, %35};\nmov.b64 db, {%33, %35};\n" \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
  "da, db, p, 1, 1, 0, 0;\n}"
#define MK_WGMMA_128(type) \
  "{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %66, 0;\n" \
  "mov.b64 da, {%64, %67};\nmov.b64 db, {%65, %67};\n" \
  "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
  "da, db, p, 1, 1, 0, 0;\n}"
#define MK_WGMMA_256(type) \
  "{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %130, 0;\n" \
  "mov.b64 da, {%128, %131};\nmov.b64 db, {%129, %131};\n" \
  "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
  "da, db, p, 1, 1, 0, 0;\n}"

#define MK_WGMMA_STEP(N, T, type, ...) \
  template <> \
  __device__ __forceinline__ void wgmma_step<N, T>(float (&d)[N / 2], uint32_t a, uint32_t b, bool accumulate) { \
    asm volatile(MK_WGMMA_##N(type) : __VA_ARGS__ : "r"(a), "r"(b), "r"(static_cast<int>(accumulate)), "n"(kDescriptorHigh)); \
  }
MK_WGMMA_STEP(32, __nv_bfloat16, "bf16", MK_R16(d, 0))
MK_WGMMA_STEP(32, __half, "f16", MK_R16(d, 0))
MK_WGMMA_STEP(64, __nv_bfloat16, "bf16", MK_R16(d, 0), MK_R16(d, 16))
MK_WGMMA_STEP(64, __half, "f16", MK_R16(d, 0), MK_R16(d, 16))
MK_WGMMA_STEP(128, __nv_bfloat16, "bf16", MK_R64(d, 0))
MK_WGMMA_STEP(128, __half, "f16", MK_R64(d, 0))
MK_WGMMA_STEP(256, __nv_bfloat16, "bf16", MK_R64(d, 0), MK_R64(d, 64))
MK_WGMMA_STEP(256, __half, "f16", MK_R64(d, 0), MK_R64(d, 64))

#undef MK_WGMMA_STEP
#undef MK_WGMMA_32
#undef MK_WGMMA_64
#undef MK_WGMMA_128
#undef MK_WGMMA_256
#undef MK_R4
#undef MK_R16
#undef MK_R64

}  // namespace mk::ptx
