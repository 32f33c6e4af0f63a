#include <algorithm>
#include <memory>
#include <vector>

#include "host/measure_gpu.h"

namespace mk::measure {
namespace {

// GPUs that push to one another, each to those that follow it; what comes from the p-th before it has a place of its own.
class Ring {
 public:
  Ring(const int32_t* devices, int32_t count, const mk_measure_options& o, uint64_t shard) : options_(o), shard_(shard) {
    for (int i = 0; i < count; ++i) sides_.push_back(std::make_unique<Side>(devices[i], o.bytes));
    for (int i = 0; i < count; ++i)
      for (int peer = 0; peer < count; ++peer) {
        if (i == peer) continue;
        access_.push_back(std::make_unique<PeerAccess>(devices[i], devices[peer]));
        reaches_.push_back(access_.back()->direct());
      }
    for (int i = 0; i < count; ++i) {
      sides_[i]->select();
      check_cuda(measure_write(sides_[i]->source.at(), shard, seed(i), sides_[i]->lane.stream), "making data");
      sides_[i]->lane.wait();
    }
  }

  void measure(mk_measure_fan& f) const {
    for (int s = 0; s < f.sources; ++s)
      for (int p = 1; p <= f.peers; ++p)
        if (!reaches_[s * (size() - 1) + (peer(s, p) < s ? peer(s, p) : peer(s, p) - 1)])
          fail(MK_ERROR_UNSUPPORTED, "device %d does not reach the memory of device %d", sides_[s]->device, sides_[peer(s, p)]->device);
    push(f, 1);  // warms up
    for (int s = 0; s < f.sources; ++s) check_cuda(cudaEventRecord(sides_[s]->lane.ready, sides_[s]->lane.stream), "event");
    for (int s = 0; s < f.sources; ++s) {
      for (int other = 0; other < f.sources; ++other)
        check_cuda(cudaStreamWaitEvent(sides_[s]->lane.stream, sides_[other]->lane.ready, 0), "waiting for the other streams");
      check_cuda(cudaEventRecord(sides_[s]->lane.start, sides_[s]->lane.stream), "event");
    }
    push(f, static_cast<uint32_t>(options_.repeats));
    for (int s = 0; s < f.sources; ++s) check_cuda(cudaEventRecord(sides_[s]->lane.end, sides_[s]->lane.stream), "event");
    wait(f);
    f.gbs = 0;
    for (int s = 0; s < f.sources; ++s) {
      const double gbs = sides_[s]->lane.gbs(shard_ * f.peers * options_.repeats);
      f.gbs = s == 0 ? gbs : std::min(f.gbs, gbs);
    }
    for (const auto& side : sides_) side->poison(shard_ * (size() - 1));
    push(f, 1);
    wait(f);
    f.words = shard_ / 8 * f.peers * f.sources;
    f.wrong = 0;
    for (int s = 0; s < f.sources; ++s)
      for (int p = 1; p <= f.peers; ++p) {
        const Side& to = *sides_[peer(s, p)];
        f.wrong += to.wrong(to.target.at() + (p - 1) * shard_, shard_, seed(s));
      }
  }

 private:
  int size() const { return static_cast<int>(sides_.size()); }
  int peer(int source, int p) const { return (source + p) % size(); }
  static uint64_t seed(int source) { return 100 + source; }

  void push(const mk_measure_fan& f, uint32_t passes) const {
    for (int s = 0; s < f.sources; ++s) {
      FanTargets targets = {};
      targets.count = f.peers;
      for (int p = 1; p <= f.peers; ++p) targets.at[p - 1] = sides_[peer(s, p)]->target.at() + (p - 1) * shard_;
      sides_[s]->select();
      check_cuda(measure_fan(sides_[s]->source.at(), targets, static_cast<uint32_t>(shard_ / kFanBlock), passes, f.ctas, f.depth,
                             sides_[s]->lane.stream), "pushing to peers");
    }
  }
  void wait(const mk_measure_fan& f) const {
    for (int s = 0; s < f.sources; ++s) sides_[s]->lane.wait();
  }

  const mk_measure_options options_;
  const uint64_t shard_;
  std::vector<std::unique_ptr<Side>> sides_;
  std::vector<std::unique_ptr<PeerAccess>> access_;
  std::vector<bool> reaches_;  // by source, then by peer without itself
};

}  // namespace

void measure_fans(const int32_t* devices, int32_t count, const mk_measure_options& o, uint64_t shard, mk_measure_fan* fans, int32_t fan_count) {
  const DeviceGuard guard(devices[0]);  // restores the caller's device, whatever order the GPUs are left in
  const Ring ring(devices, count, o, shard);
  for (int i = 0; i < fan_count; ++i) ring.measure(fans[i]);
}

}  // namespace mk::measure
