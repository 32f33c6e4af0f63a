// elect.sync: one thread of a warp for instructions that one thread issues, such as TMA loads.
//
// Always the same thread for a whole warp. What it does is not ordered against the other lanes: __syncwarp for that.
#pragma once
#include <cstdint>

namespace mk::ptx {

// The whole warp, converged: true in one lane. Where a branch hangs on it the compiler knows that one thread runs, and keeps
// addresses and loop counters in uniform registers. After a comparison with the lane's number it must expect several: each load then
// sits in a loop over the lanes that moves its operands to uniform registers first.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected) : : "memory");
  return elected != 0;
}

}  // namespace mk::ptx
