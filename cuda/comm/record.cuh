// Recording of what the roles of a CTA do. A kernel is compiled twice: with NoRecord, of which nothing is left in the machine
// code, and with Record.
#pragma once
#include "kernels/timeline.h"
#include "ptx/fence.cuh"

namespace mk {

struct NoRecord {
  struct Lane {
    __device__ __forceinline__ uint32_t now() const { return 0; }
    __device__ __forceinline__ void add(mk_timeline_kind, uint32_t, uint32_t) {}
    __device__ __forceinline__ void finish() const {}
  };
  __device__ __forceinline__ Lane lane(int, bool) const { return {}; }
  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ void end() const {}
};

struct Record {
  Timeline timeline;

  // One thread of a role keeps the events of it; the others (not `keeps`) call in vain.
  struct Lane {
    TimelineLane* lane = nullptr;
    TimelineEvent* events = nullptr;
    int64_t began = 0;
    uint32_t count = 0;

    __device__ __forceinline__ uint32_t now() const { return static_cast<uint32_t>(clock64() - began); }
    // What began at `start` ends now.
    __device__ __forceinline__ void add(mk_timeline_kind kind, uint32_t what, uint32_t start) {
      if (lane == nullptr) return;
      if (count < kTimelineEvents) events[count] = {static_cast<uint32_t>(kind), what, start, now()};
      ++count;
    }
    __device__ __forceinline__ void finish() const {
      if (lane != nullptr) *lane = {began, count, 0};
    }
  };

  __device__ __forceinline__ Lane lane(int index, bool keeps) const {
    Lane l;
    l.began = clock64();
    if (keeps && blockIdx.x < kTimelineCtas) {
      l.lane = &timeline.ctas[blockIdx.x].lanes[index];
      l.events = timeline.events + (int64_t{blockIdx.x} * MK_TIMELINE_LANES + index) * kTimelineEvents;
    }
    return l;
  }
  // One thread of the CTA, first and last.
  __device__ __forceinline__ void begin() const {
    if (blockIdx.x >= kTimelineCtas) return;
    timeline.ctas[blockIdx.x].start_ns = ptx::global_timer();
    timeline.ctas[blockIdx.x].start = clock64();
  }
  __device__ __forceinline__ void end() const {
    if (blockIdx.x >= kTimelineCtas) return;
    timeline.ctas[blockIdx.x].end_ns = ptx::global_timer();
    timeline.ctas[blockIdx.x].end = clock64();
  }
};

}  // namespace mk
