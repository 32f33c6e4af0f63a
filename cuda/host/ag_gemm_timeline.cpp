// Calls that are recorded: a second build of the kernel, its buffer, and what the buffer says.
#include "kernels/timeline.h"

#include <algorithm>
#include <memory>

#include "host/ag_gemm_op.h"
#include "host/error.h"

namespace mk {

std::vector<mk_timeline_event> timeline_events(const TimelineCta* ctas, int count, const TimelineEvent* events, uint64_t* lost) {
  std::vector<mk_timeline_event> out;
  *lost = 0;
  if (count == 0) return out;
  const uint64_t first = std::min_element(ctas, ctas + count, [](const TimelineCta& x, const TimelineCta& y) {
                           return x.start_ns < y.start_ns;
                         })->start_ns;
  for (int c = 0; c < count; ++c) {
    const TimelineCta& cta = ctas[c];
    const int64_t cycles = cta.end - cta.start;
    const double ns = cycles > 0 ? static_cast<double>(cta.end_ns - cta.start_ns) / static_cast<double>(cycles) : 0;
    const auto time = [&](const TimelineLane& lane, uint32_t at) {
      return static_cast<int64_t>(cta.start_ns - first) + static_cast<int64_t>(static_cast<double>(lane.began - cta.start + at) * ns);
    };
    for (int l = 0; l < MK_TIMELINE_LANES; ++l) {
      const TimelineLane& lane = cta.lanes[l];
      const uint32_t kept = std::min<uint32_t>(lane.count, kTimelineEvents);
      *lost += lane.count - kept;
      const TimelineEvent* e = events + (int64_t{c} * MK_TIMELINE_LANES + l) * kTimelineEvents;
      for (uint32_t i = 0; i < kept; ++i) out.push_back({c, l, e[i].kind, e[i].what, time(lane, e[i].start), time(lane, e[i].end)});
    }
  }
  return out;
}

namespace {

// Device memory of a recording.
class Recording {
 public:
  Recording() {
    check_cuda(cudaMalloc(&timeline_.ctas, kCtaBytes), "memory of the timeline");
    const cudaError_t e = cudaMalloc(&timeline_.events, kEventBytes);
    if (e != cudaSuccess) cudaFree(timeline_.ctas);
    check_cuda(e, "memory of the timeline");
    check_cuda(cudaMemset(timeline_.ctas, 0, kCtaBytes), "memory of the timeline");
    check_cuda(cudaDeviceSynchronize(), "memory of the timeline");
  }
  ~Recording() {
    cudaFree(timeline_.ctas);
    cudaFree(timeline_.events);
  }
  Recording(const Recording&) = delete;
  const Timeline& timeline() const { return timeline_; }
  std::vector<mk_timeline_event> events(int ctas, uint64_t* lost) const {
    std::vector<TimelineCta> heads(kTimelineCtas);
    std::vector<TimelineEvent> all(kEventBytes / sizeof(TimelineEvent));
    check_cuda(cudaMemcpy(heads.data(), timeline_.ctas, kCtaBytes, cudaMemcpyDeviceToHost), "reading the timeline");
    check_cuda(cudaMemcpy(all.data(), timeline_.events, kEventBytes, cudaMemcpyDeviceToHost), "reading the timeline");
    return timeline_events(heads.data(), std::min(ctas, kTimelineCtas), all.data(), lost);
  }

 private:
  static constexpr size_t kCtaBytes = kTimelineCtas * sizeof(TimelineCta);
  static constexpr size_t kEventBytes = size_t{kTimelineCtas} * MK_TIMELINE_LANES * kTimelineEvents * sizeof(TimelineEvent);
  Timeline timeline_ = {};
};

}  // namespace
}  // namespace mk

extern "C" int mk_ag_gemm_timeline(mk_ag_gemm* op, const mk_ag_gemm_args* args, const mk_ag_gemm_config* config, mk_stream stream,
                                   mk_timeline_event* events, uint64_t capacity, uint64_t* count, uint64_t* lost, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    if (count == nullptr) mk::fail(MK_ERROR_ARGUMENT, "count is NULL");
    if (lost == nullptr) mk::fail(MK_ERROR_ARGUMENT, "lost is NULL");
    if (events == nullptr && capacity > 0) mk::fail(MK_ERROR_ARGUMENT, "events is NULL");
    *count = *lost = 0;
    mk::check_struct(args, "mk_ag_gemm_args");
    if (args->element != MK_BF16) mk::fail(MK_ERROR_UNSUPPORTED, "a timeline is recorded of bf16 calls only");
    mk_ag_gemm_config c;
    MK_INIT(&c);
    if (config != nullptr) {
      mk::check_struct(config, "mk_ag_gemm_config");
      c = *config;
    }
    const mk::DeviceGuard guard(op->context->device);
    const mk::Recording recording;
    // Loaded before any rank waits inside a kernel: a load would wait for that kernel.
    for (const mk::AgGemmTile& tile : mk::kAgGemmTiles)
      mk::check_cuda(mk::ag_gemm_timeline_prepare({tile, mk::Element::kBf16}), "loading the kernels that record");
    mk::host_barrier(*op->context);
    mk_error refused;
    if (mk_barrier(op->context, stream, &refused) != MK_OK) mk::fail(refused.code, "%s", refused.text);
    op->last_ctas = 0;  // of a call that launches nothing
    mk::launch(*op, *args, c, stream, &recording.timeline());
    mk::check_cuda(cudaStreamSynchronize(stream), "waiting for the call that is recorded");
    const std::vector<mk_timeline_event> all = recording.events(op->last_ctas, lost);
    *count = all.size();
    std::copy_n(all.begin(), std::min<uint64_t>(capacity, all.size()), events);
  });
}
