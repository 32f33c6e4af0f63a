// stmatrix: stores four 8 x 8 matrices of 16-bit elements from a warp's registers to shared memory.
//
// Lane l gives the address of row l % 8 of matrix l / 8 and holds, in register m, elements 2*(l%4) and 2*(l%4)+1 of row
// l / 4 of matrix m. Order: generic-proxy stores; fence_async_shared before a TMA store reads them.
#pragma once
#include <cstdint>

namespace mk::ptx {

__device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

}  // namespace mk::ptx
