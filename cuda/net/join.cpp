#include "net/join.h"

#include <sys/random.h>

#include <algorithm>

namespace mk::net {

namespace {

// What a rank says after a step.
struct Outcome {
  int32_t code = MKNET_OK;
  char place[100] = "";
  char text[508] = "";
};

class Group {
 public:
  Group(const mknet_group& g, uint32_t rank, uint32_t world) : g_(g), rank_(rank), world_(world) {}

  template <class T>
  std::vector<T> gather(const T& mine) const {
    std::vector<T> all(world_);
    gather_bytes(&mine, all.data(), sizeof mine);
    return all;
  }
  void gather_bytes(const void* mine, void* all, uint64_t bytes) const {
    if (world_ == 1)
      memcpy(all, mine, bytes);
    else if (g_.allgather(g_.user, mine, all, bytes) != 0)
      fail(MKNET_ERROR_PEER, "the all-gather callback failed");
  }

  // Takes a step; returns how it ended on all ranks.
  std::vector<Outcome> attempt(const std::function<void()>& f) const {
    Outcome mine;
    if (g_.place != nullptr) snprintf(mine.place, sizeof mine.place, " (%s)", g_.place);
    try {
      f();
    } catch (const Error& e) {
      mine.code = e.code;
      snprintf(mine.text, sizeof mine.text, "%s", e.what());
    } catch (const std::exception& e) {
      mine.code = MKNET_ERROR_SYSTEM;
      snprintf(mine.text, sizeof mine.text, "%s", e.what());
    }
    return gather(mine);
  }
  void check(std::vector<Outcome> all) const {
    std::swap(all[0], all[rank_]);  // the own reason first
    for (Outcome& o : all) {
      o.text[sizeof o.text - 1] = o.place[sizeof o.place - 1] = '\0';
      if (o.code == MKNET_OK) continue;
      const uint32_t at = static_cast<uint32_t>(&o - all.data());
      fail(o.code, "rank %u%s: %s", at == 0 ? rank_ : at == rank_ ? 0 : at, o.place, o.text);
    }
  }
  void step(const std::function<void()>& f) const { check(attempt(f)); }

  // A number that no other job has: all ranks have drawn it together.
  uint64_t draw() const {
    uint64_t mine = 0, all = 0xcbf29ce484222325u;
    if (getrandom(&mine, sizeof mine, 0) != sizeof mine) mine = now_ns();
    for (const uint64_t n : gather(mine)) all = (all ^ n) * 0x100000001b3u;
    return all;
  }

  bool is_peer(uint32_t r) const { return r != rank_ && (g_.peers == nullptr || g_.peers[r] != 0); }
  void* mapped(uint32_t r) const { return g_.mapped != nullptr ? g_.mapped[r] : nullptr; }
  uint64_t verify_ns() const { return g_.verify_ns; }
  uint64_t open_ns() const { return g_.open_ns; }
  uint32_t rank() const { return rank_; }
  uint32_t world() const { return world_; }

 private:
  const mknet_group& g_;
  const uint32_t rank_, world_;
};

// Exchanges endpoints and connects. One message of one length per rank: the common part, then one for each rank.
void connect(Network& net, const Group& g) {
  Blob mine;
  g.step([&] {
    BlobWriter w;
    const Blob& common = net.endpoint(-1);
    w.put_bytes(common.data(), common.size());
    for (uint32_t r = 0; r < g.world(); ++r) {
      const Blob own = g.is_peer(r) ? net.endpoint(static_cast<int32_t>(r)) : Blob();
      w.put_bytes(own.data(), own.size());
    }
    mine = w.take();
  });
  const std::vector<uint64_t> lengths = g.gather(static_cast<uint64_t>(mine.size()));
  const uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  mine.resize(longest);
  Blob all(longest * g.world());
  g.gather_bytes(mine.data(), all.data(), longest);
  g.step([&] {
    for (uint32_t r = 0; r < g.world(); ++r) {
      if (!g.is_peer(r)) continue;
      BlobReader reader(all.data() + longest * r, lengths[r]);
      const Blob common = reader.get_bytes();
      Blob own;
      for (uint32_t peer = 0; peer <= g.rank(); ++peer) own = reader.get_bytes();
      net.connect(r, common, own, g.mapped(r));
    }
  });
  g.step([&] { net.start(); });
  if (g.verify_ns() > 0) g.step([&] { net.verify(g.verify_ns()); });
}

}  // namespace

std::unique_ptr<Network> join(const mknet_desc& desc, const mknet_range& heap, const mknet_group& group, const Maker& make) {
  if (desc.world > 1 && group.allgather == nullptr) fail(MKNET_ERROR_ARGUMENT, "ranks that join need an all-gather");
  const Group g(group, static_cast<uint32_t>(desc.rank), static_cast<uint32_t>(desc.world));
  mknet_desc d = desc;
  d.job = g.draw();
  std::unique_ptr<Network> net;
  bool no_way = false;  // from our NICs to our heap
  const auto open = [&] {
    net = open_within(g.open_ns(), d, make);
    try {
      net->add(heap);
    } catch (const Error& e) {
      no_way = e.code == MKNET_ERROR_UNSUPPORTED && heap.memory == MKNET_DEVICE && d.device != nullptr && d.bounce == 0;
      if (!no_way) throw;
    }
  };
  g.step(open);
  const std::vector<uint8_t> lacking = g.gather(static_cast<uint8_t>(no_way));
  if (std::find(lacking.begin(), lacking.end(), 1) != lacking.end()) {
    net.reset();
    d.bounce = 1;
    no_way = false;
    g.step(open);
  }
  connect(*net, g);
  return net;
}

void rejoin(Network& net, const mknet_group& group) {
  const Group g(group, net.rank(), net.world());
  const uint64_t job = g.draw();
  g.step([&] { net.reset(job); });
  connect(net, g);
}

}  // namespace mk::net
