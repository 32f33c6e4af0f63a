// What a recorded call's buffer says, and refusals.
#include <string>
#include <vector>

#include "include/mkernel.h"
#include "kernels/timeline.h"
#include "tests/check.h"

using namespace mk;

namespace {

bool same(const mk_timeline_event& x, const mk_timeline_event& y) {
  return x.cta == y.cta && x.lane == y.lane && x.kind == y.kind && x.what == y.what && x.start == y.start && x.end == y.end;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

// The CTAs' clocks stand at different cycles and run at different rates; the first CTA to begin is the zero.
TEST(cycles_become_nanoseconds_on_one_scale) {
  std::vector<TimelineCta> ctas(2);
  std::vector<TimelineEvent> events(2 * MK_TIMELINE_LANES * kTimelineEvents);
  ctas[0] = {5000, 6000, 1'000'000, 1'002'000, {}};  // half a nanosecond a cycle, 400 ns after the other
  ctas[1] = {4600, 5600, 70, 1070, {}};              // a nanosecond a cycle
  ctas[0].lanes[MK_LANE_LOAD] = {1'000'100, 2, 0};
  ctas[1].lanes[MK_LANE_MULTIPLY_1] = {80, 1, 0};
  events[0] = {MK_EVENT_LOAD, 7, 0, 1000};
  events[1] = {MK_EVENT_WAIT, 3, 100, 300};
  events[(MK_TIMELINE_LANES + MK_LANE_MULTIPLY_1) * kTimelineEvents] = {MK_EVENT_STORE, 9, 20, 50};
  uint64_t lost = 1;
  const std::vector<mk_timeline_event> out = timeline_events(ctas.data(), 2, events.data(), &lost);
  CHECK(out.size() == 3 && lost == 0);
  CHECK(same(out[0], {0, MK_LANE_LOAD, MK_EVENT_LOAD, 7, 450, 950}));
  CHECK(same(out[1], {0, MK_LANE_LOAD, MK_EVENT_WAIT, 3, 500, 600}));
  CHECK(same(out[2], {1, MK_LANE_MULTIPLY_1, MK_EVENT_STORE, 9, 30, 60}));
  CHECK(timeline_events(ctas.data(), 0, events.data(), &lost).empty() && lost == 0);
}

TEST(events_beyond_the_room_are_counted) {
  std::vector<TimelineCta> ctas(1);
  std::vector<TimelineEvent> events(MK_TIMELINE_LANES * kTimelineEvents);
  ctas[0] = {0, 10, 0, 10, {}};
  ctas[0].lanes[MK_LANE_PUSH] = {0, kTimelineEvents + 5, 0};
  uint64_t lost = 0;
  CHECK(timeline_events(ctas.data(), 1, events.data(), &lost).size() == kTimelineEvents && lost == 5);
  ctas[0].end = 0;  // a CTA that left at once, for an abort
  CHECK(timeline_events(ctas.data(), 1, events.data(), &lost).size() == kTimelineEvents);
}

TEST(a_timeline_of_nothing_is_refused) {
  mk_error e;
  uint64_t count, lost;
  CHECK(mk_ag_gemm_timeline(nullptr, nullptr, nullptr, nullptr, nullptr, 0, &count, &lost, &e) == MK_ERROR_ARGUMENT && has(e.text, "NULL"));
}
