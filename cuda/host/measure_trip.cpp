#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "host/measure_gpu.h"
#include "host/measure_pair.h"
#include "host/network.h"
#include "kernels/measure_trip.h"

namespace mk {

namespace {
constexpr uint64_t kMostTripBytes = 1 << 20;
}

void check_trips(const mk_measure_trip* trips, int32_t count) {
  if (trips == nullptr) fail(MK_ERROR_ARGUMENT, "trips is NULL");
  if (count < 1) fail(MK_ERROR_ARGUMENT, "count is %d", count);
  for (const mk_measure_trip* t = trips; t != trips + count; ++t) {
    check_struct(t, "mk_measure_trip");
    if (t->on_device != 0 && t->on_device != 1) fail(MK_ERROR_ARGUMENT, "on_device is %d; 0 and 1 are possible", t->on_device);
    if (t->unordered != 0 && t->unordered != 1) fail(MK_ERROR_ARGUMENT, "unordered is %d; 0 and 1 are possible", t->unordered);
    if (t->bytes % 8 != 0 || t->bytes > kMostTripBytes)
      fail(MK_ERROR_ARGUMENT, "bytes is %llu; a multiple of 8 up to %llu is wanted", static_cast<unsigned long long>(t->bytes),
           static_cast<unsigned long long>(kMostTripBytes));
  }
}

namespace measure {
namespace {

constexpr int kWarmUp = 100;  // rounds
constexpr uint64_t kHeapBytes = kMostTripBytes + kLine;  // the flag is behind the data

// What the kernel itself needs, in its GPU's memory.
struct Room {
  Control control;
  alignas(kLine) TripSum sum;
};

// The heaps of the two ranks, in one piece of memory of the host or of the GPU.
struct Heaps {
  std::unique_ptr<Memory> device;
  std::unique_ptr<Pinned> host;

  Heaps(int gpu, bool on_device) {
    if (on_device) {
      device = std::make_unique<Memory>(gpu, 2 * kHeapBytes);
      check_cuda(cudaMemset(at(0), 0, 2 * kHeapBytes), "clearing");
    } else {
      host = std::make_unique<Pinned>(2 * kHeapBytes);
      std::fill_n(at(0), 2 * kHeapBytes, char{0});
    }
  }
  char* at(int rank) const { return (device ? device->at() : host->at()) + rank * kHeapBytes; }
};

struct FreeRecord {
  void operator()(WaitRecord* r) const { free_wait_record(r); }
};

double at_percent(std::vector<double>& sorted, size_t percent) { return sorted[std::min(sorted.size() - 1, sorted.size() * percent / 100)]; }

void measure_trip(int gpu, const mk_measure_options& o, mk_measure_trip& t) {
  const uint64_t rounds = kWarmUp + static_cast<uint64_t>(o.rounds);
  const Lane lane;
  const Heaps heaps(gpu, t.on_device != 0);
  const Memory room(gpu, sizeof(Room)), trips(gpu, rounds * sizeof(Trip));
  check_cuda(cudaMemset(room.at(), 0, sizeof(Room)), "clearing");
  const std::unique_ptr<WaitRecord, FreeRecord> record(make_wait_record());
  Room* const r = reinterpret_cast<Room*>(room.at());

  ProxyDevice first(gpu, kMostTripBytes), second(gpu, kMostTripBytes);
  first.on_same_gpu(heaps.at(1), kHeapBytes);
  second.on_same_gpu(heaps.at(0), kHeapBytes);
  const mknet_device functions[2] = {first.functions(), second.functions()};
  const PairSide sides[2] = {{heaps.at(0), t.on_device ? &functions[0] : nullptr}, {heaps.at(1), t.on_device ? &functions[1] : nullptr}};
  const NetPair pair(sides, kHeapBytes, t.unordered != 0, o.timeout_ns);
  const MappedFifo fifo(mknet_queue(pair.net(0)));

  WaitContext wait = {};
  wait.control[0] = &r->control;
  wait.record = record.get();
  wait.heap = heaps.at(1);
  wait.timeout_ns = o.timeout_ns;
  wait.world = 1;
  SendSpace space = {};
  fifo.open(space);
  TripTask task = {};
  task.peer = 1;
  task.source = reinterpret_cast<uint64_t*>(heaps.at(0));
  task.target = reinterpret_cast<const uint64_t*>(heaps.at(1));
  task.flag_at = kMostTripBytes;
  task.flag = reinterpret_cast<const uint64_t*>(heaps.at(1) + task.flag_at);
  task.bytes = t.bytes;
  task.rounds = rounds;
  check_cuda(trip_launch(wait, space, task, reinterpret_cast<Trip*>(trips.at()), &r->sum, lane.stream), "sending to the proxy");
  lane.wait();

  TripSum sum;
  check_cuda(cudaMemcpy(&sum, &r->sum, sizeof sum, cudaMemcpyDeviceToHost), "reading a result");
  mknet_error e;
  for (const int rank : {0, 1}) check_mknet(mknet_status(pair.net(rank), 0, &e), e);
  if (sum.rounds != rounds)
    fail(MK_ERROR_ABORTED, "device %d waited %.1f s for the proxy in round %llu of %llu: the flag was %llu", gpu, o.timeout_ns * 1e-9,
         static_cast<unsigned long long>(sum.rounds + 1), static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(record->seen));
  std::vector<Trip> cycles(rounds);
  check_cuda(cudaMemcpy(cycles.data(), trips.at(), rounds * sizeof(Trip), cudaMemcpyDeviceToHost), "reading a result");
  const double us = static_cast<double>(sum.ns) / static_cast<double>(sum.cycles) / 1e3;
  std::vector<double> all, post;
  for (const Trip& c : cycles) all.push_back(c.all * us), post.push_back(c.post * us);
  for (std::vector<double>* v : {&all, &post}) {
    v->erase(v->begin(), v->begin() + kWarmUp);
    std::sort(v->begin(), v->end());
  }
  t.rounds = static_cast<uint64_t>(o.rounds);
  t.wrong = sum.wrong;
  t.median_us = at_percent(all, 50), t.p99_us = at_percent(all, 99);
  t.post_us = at_percent(post, 50);
}

}  // namespace
}  // namespace measure
}  // namespace mk

extern "C" int mk_measure_trips(int32_t device, const mk_measure_options* options, mk_measure_trip* trips, int32_t count, mk_error* error) {
  return mk::guarded(error, [&] {
    const mk_measure_options o = mk::measure_options(options);
    mk::check_trips(trips, count);
    mk::measure::check_gpu(device);
    const mk::DeviceGuard guard(device);
    mk::check_cuda(mk::trip_prepare(), "loading the kernel (it is for compute capability 9.0: H100, H200)");
    for (mk_measure_trip* t = trips; t != trips + count; ++t) mk::measure::measure_trip(device, o, *t);
  });
}
