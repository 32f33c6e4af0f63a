// What a call that is recorded leaves in device memory, and what becomes of it on the host.
#pragma once
#include <cstdint>
#include <vector>

#include "include/mkernel.h"

namespace mk {

constexpr int kTimelineCtas = 256;     // of GPUs that this library runs on, and more
constexpr int kTimelineEvents = 2048;  // that one lane keeps; what comes after is counted and lost

// Times are clock cycles since the lane began.
struct TimelineEvent {
  uint32_t kind;  // mk_timeline_kind
  uint32_t what;
  uint32_t start, end;
};

struct TimelineLane {
  int64_t began;   // clock of the SM
  uint32_t count;  // events, the lost ones included
  uint32_t reserved;
};

struct TimelineCta {
  uint64_t start_ns, end_ns;  // %globaltimer
  int64_t start, end;         // clock of the SM at the same moments
  TimelineLane lanes[MK_TIMELINE_LANES];
};

struct Timeline {
  TimelineCta* ctas;
  TimelineEvent* events;  // of CTA c and lane l: kTimelineEvents from (c * MK_TIMELINE_LANES + l) * kTimelineEvents on
};

// All events of the first `ctas` CTAs in nanoseconds since the first CTA began; *lost is how many were not kept.
std::vector<mk_timeline_event> timeline_events(const TimelineCta* ctas, int count, const TimelineEvent* events, uint64_t* lost);

}  // namespace mk
