// Recording of what the roles of a CTA do. A kernel is compiled twice: with NoRecord, of which nothing is left in the machine
// code, and with Record.
#pragma once
#include "kernels/timeline.h"
#include "ptx/fence.cuh"

namespace mk {

struct NoRecord {
  struct Lane {
    __device__ __forceinline__ void begin(mk_timeline_kind) const {}
    __device__ __forceinline__ void end(mk_timeline_kind, uint32_t) const {}
    __device__ __forceinline__ void finish() const {}
  };
  __device__ __forceinline__ Lane lane(int, bool) const { return {}; }
  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ void end() const {}
};

struct Record {
  const Timeline& timeline;

  // One thread of a role keeps the events of it; the others (not `keeps`) call in vain. Its notes are in shared memory, because
  // products have no registers to spare.
  struct Lane {
    const Timeline& timeline;
    int index;
    bool keeps;

    __device__ __forceinline__ void begin(mk_timeline_kind kind) const {
      if (keeps) notes(index).starts[kind] = clock64();
    }
    // The last event of the kind that has begun ends; `what` it was about.
    __device__ __forceinline__ void end(mk_timeline_kind kind, uint32_t what) const {
      if (!keeps) return;
      Notes& n = notes(index);
      const auto since = [&](int64_t clock) { return static_cast<uint32_t>(clock - n.lane.began); };
      TimelineEvent* events = timeline.events + (int64_t{blockIdx.x} * MK_TIMELINE_LANES + index) * kTimelineEvents;
      if (n.lane.count < kTimelineEvents)
        events[n.lane.count] = {static_cast<uint32_t>(kind), what, since(n.starts[kind]), since(clock64())};
      ++n.lane.count;
    }
    __device__ __forceinline__ void finish() const {
      if (keeps) timeline.ctas[blockIdx.x].lanes[index] = notes(index).lane;
    }
  };

  __device__ __forceinline__ Lane lane(int index, bool keeps) const {
    const Lane l = {timeline, index, keeps && blockIdx.x < kTimelineCtas};
    if (l.keeps) notes(index).lane = {clock64(), 0, 0};
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

 private:
  struct Notes {
    TimelineLane lane;
    int64_t starts[MK_EVENT_KINDS];
  };
  static __device__ __forceinline__ Notes& notes(int index) {
    __shared__ Notes of_lanes[MK_TIMELINE_LANES];
    return of_lanes[index];
  }
};

}  // namespace mk
