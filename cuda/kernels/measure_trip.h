// Launch interface of the kernel that times commands to the proxy.
#pragma once
#include <cuda_runtime.h>

#include "comm/control.h"
#include "comm/send.h"

namespace mk {

// What one side sends, again and again, and where it sees it arrive: the target is memory of the same process.
struct TripTask {
  uint16_t peer;
  uint64_t* source;      // `bytes` bytes at offset 0 of region 0
  const uint64_t* target;  // at offset 0 of the peer's heap
  const uint64_t* flag;
  uint64_t flag_at;      // in the peer's heap
  uint64_t bytes;
  uint64_t rounds;
};

// Cycles of one round.
struct Trip {
  uint32_t post, all;
};

// All rounds together.
struct TripSum {
  uint64_t rounds;  // done; fewer than asked for: it gave up
  uint64_t wrong;
  uint64_t cycles, ns;
};

// Loads the kernel on the current device.
cudaError_t trip_prepare();

// One thread: writes the round's number to both ends of the source, posts it with the number as flag, waits until the flag
// has come and, behind the clock, until the source may be written again. Every wait is bounded.
cudaError_t trip_launch(const WaitContext& wait, const SendSpace& space, const TripTask& task, Trip* trips, TripSum* sum, cudaStream_t stream);

}  // namespace mk
