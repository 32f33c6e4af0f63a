// Ranks that meet by an all-gather: what one cannot do, all learn.
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/net_device.h"
#include "tests/net_fake.h"

using namespace test;

namespace {

// An all-gather among threads.
class Meeting {
 public:
  explicit Meeting(int world) : world_(world) {}
  int gather(int rank, const void* mine, void* all, uint64_t bytes) {
    std::unique_lock<std::mutex> lock(mutex_);
    data_.resize(bytes * static_cast<uint64_t>(world_));
    memcpy(data_.data() + bytes * static_cast<uint64_t>(rank), mine, bytes);
    const uint64_t round = round_;
    if (++here_ == world_) {
      done_ = data_;
      here_ = 0;
      ++round_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(100), [&] { return round_ != round; })) {
      return 1;
    }
    memcpy(all, done_.data(), bytes * static_cast<uint64_t>(world_));
    return 0;
  }

 private:
  const int world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> data_, done_;
  int here_ = 0;
  uint64_t round_ = 0;
};

struct Member {
  Meeting* meeting;
  int rank;
  mknet* net = nullptr;
  std::string text;

  mknet_group group() {
    mknet_group g;
    MKNET_INIT(&g);
    g.allgather = [](void* user, const void* mine, void* all, uint64_t bytes) {
      auto* m = static_cast<Member*>(user);
      return m->meeting->gather(m->rank, mine, all, bytes);
    };
    g.user = this;
    g.verify_ns = kPatience;
    return g;
  }
};

constexpr uint64_t kBytes = 1 << 16;

class World {
 public:
  explicit World(int size) : meeting_(size) {
    for (int r = 0; r < size; ++r) {
      members_.push_back({&meeting_, r});
      devices_.push_back(std::make_unique<TestDevice>(kBytes));
    }
  }
  ~World() {
    for (Member& m : members_) mknet_destroy(m.net, nullptr);
  }
  // `change` adapts what each rank says; returns the texts of all.
  std::string join(const std::function<void(mknet_desc&, mknet_range&, mknet_group&)>& change = [](mknet_desc&, mknet_range&, mknet_group&) {}) {
    return all([&](Member& m) {
      TestDevice& device = *devices_[static_cast<size_t>(m.rank)];
      const mknet_device functions = device.functions();
      mknet_desc d;
      MKNET_INIT(&d);
      d.rank = m.rank, d.world = static_cast<int32_t>(members_.size());
      use_fake(d);
      d.device = &functions;
      mknet_range heap;
      MKNET_INIT(&heap);
      heap.base = device.base(), heap.bytes = kBytes, heap.memory = MKNET_DEVICE, heap.fd = device.fd();
      mknet_group g = m.group();
      change(d, heap, g);
      mknet_error e;
      mknet_join(&d, &heap, &g, &m.net, &e);
      m.text = e.text;
    });
  }
  std::string rejoin() {
    return all([](Member& m) {
      const mknet_group g = m.group();
      mknet_error e;
      mknet_rejoin(m.net, &g, &e);
      m.text = e.text;
    });
  }
  // Rank `from` writes into the heap of `to`, from its own.
  bool send(int from, int to, uint64_t value) {
    TestDevice &a = *devices_[static_cast<size_t>(from)], &b = *devices_[static_cast<size_t>(to)];
    snprintf(a.shadow(), 64, "%d to %d, %d", from, to, static_cast<int>(value));
    mknet_command c = command(to, 0, 4096, 64, 8192, value);
    c.region = 0;
    mknet_error e;
    if (mknet_push(members_[static_cast<size_t>(from)].net, &c, kPatience, nullptr, &e) != MKNET_OK) return false;
    const auto* flag = reinterpret_cast<const uint64_t*>(b.shadow() + 8192);
    for (int i = 0; i < 600000 && __atomic_load_n(flag, __ATOMIC_ACQUIRE) < value; ++i) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return memcmp(a.shadow(), b.shadow() + 4096, 64) == 0;
  }
  std::string describe(int r) {
    char text[2000] = "";
    mknet_describe(members_[static_cast<size_t>(r)].net, text, sizeof text, nullptr);
    return text;
  }
  Member& operator[](int r) { return members_[static_cast<size_t>(r)]; }

 private:
  std::string all(const std::function<void(Member&)>& f) {
    std::vector<std::thread> threads;
    for (Member& m : members_) threads.emplace_back([&f, &m] { f(m); });
    for (auto& t : threads) t.join();
    std::string texts;
    for (const Member& m : members_) texts += (m.rank == 0 ? "" : " | ") + m.text;
    return texts;
  }

  Meeting meeting_;
  std::vector<Member> members_;
  std::vector<std::unique_ptr<TestDevice>> devices_;
};

void three() { fresh({fake::roce("fake0", 1), fake::roce("fake1", 2), fake::roce("fake2", 3)}); }

}  // namespace

TEST(join_and_again) {
  three();
  {
    World w(3);
    CHECK(w.join() == " |  | ");
    CHECK(w.send(0, 1, 1) && w.send(2, 0, 1) && w.send(1, 2, 1));
    CHECK(has(w.describe(2), "heap dma-buf"));
    mknet_abort(w[1].net, "as the test wants");
    CHECK(w.rejoin() == " |  | ");
    CHECK(w.send(0, 1, 2) && w.send(1, 2, 2));
  }
  CHECK(nothing_left());
}

// One rank whose NIC does not reach its memory: all send by immediates, and only that one copies.
TEST(join_agrees_to_bounce) {
  three();
  {
    World w(3);
    CHECK(w.join([](mknet_desc& d, mknet_range& heap, mknet_group&) {
            if (d.rank == 1) heap.fd = -1;
          }) == " |  | ");
    CHECK(has(w.describe(1), "the heap is bounced") && has(w.describe(0), "heap dma-buf"));
    CHECK(w.send(0, 1, 1) && w.send(1, 0, 1) && w.send(2, 1, 2));
  }
  CHECK(nothing_left());
}

TEST(join_fails_on_all_or_none) {
  three();
  {
    World w(3);
    const std::string text = w.join([](mknet_desc& d, mknet_range&, mknet_group&) {
      if (d.rank == 2) d.rdma.devices = "fake7";
    });
    for (size_t at = 0, n = 0; n < 3; ++n) {
      at = text.find("rank 2: of the NICs fake7, 0 can be used", at);
      CHECK(at != std::string::npos);
      if (at == std::string::npos) break;
      ++at;
    }
    CHECK(w[0].net == nullptr && w[2].net == nullptr);
  }
  CHECK(nothing_left());
  three();
  control().settings.fail["RTR fake1"] = ENETUNREACH;
  {
    World w(3);
    const std::string text = w.join();
    CHECK(has(text, "no route to the peer's GID") && text.find("|  |") == std::string::npos);
  }
  CHECK(nothing_left());
}

// A library that does not come back is given up by all, with a text that says where it hangs; what it has opened when it
// comes back at last is closed.
TEST(join_gives_up_a_library_that_hangs) {
  three();
  control().settings.hang = "fake1";
  {
    World w(3);
    const std::string cpus = "0-15,0-15,0-15,0-15,0-15", file = library();  // gone when the library comes back, and asks for the first
    const std::string text = w.join([&](mknet_desc& d, mknet_range&, mknet_group& g) {
      if (d.rank != 1) return;
      d.cpus = cpus.c_str(), d.rdma.library = file.c_str();
      g.open_ns = 1000000, g.place = "node 1, host b";
    });
    const std::string wanted = "rank 1 (node 1, host b): ibverbs did not open its NICs within 0.001 s: " + file +
                               ", or a driver under it, hangs. See whether ibv_devinfo answers there; leave out NICs that do not, or take another network";
    CHECK(text == wanted + " | " + wanted + " | " + wanted);
    CHECK(w[0].net == nullptr && w[1].net == nullptr && w[2].net == nullptr);
  }
  {
    const auto lock = quiet();
    CHECK(seen().live_contexts == 0);
    control().settings.hang.clear();
  }
  const auto closed = [] {
    const auto lock = quiet();
    return seen().opened > 2 && nothing_left();
  };
  for (uint64_t i = 0; i < kPatience / 100000 && !closed(); ++i) std::this_thread::sleep_for(std::chrono::microseconds(100));
  CHECK(closed());
}

// The thread that opens NICs is another than the caller's, so it takes the rank's device first; and no bound is too long to be added
// to the time.
TEST(join_opens_on_the_ranks_device) {
  three();
  World w(3);
  static std::atomic<int> entered;
  entered = 0;
  mknet_device devices[3];
  CHECK(w.join([&](mknet_desc& d, mknet_range&, mknet_group& g) {
    mknet_device& device = devices[d.rank] = *d.device;
    device.enter = [](void*) { ++entered; };
    d.device = &device;
    g.open_ns = d.rank == 0 ? UINT64_MAX : INT64_MAX;
  }) == " |  | ");
  CHECK(entered == 3 && w.send(0, 2, 1));
}

// Ranks of one node need no connection.
TEST(join_connects_those_named) {
  three();
  World w(3);
  const uint8_t peers[3][3] = {{0, 0, 1}, {0, 0, 1}, {1, 1, 0}};
  CHECK(w.join([&](mknet_desc& d, mknet_range&, mknet_group& g) { g.peers = peers[d.rank]; }) == " |  | ");
  {
    const auto lock = quiet();
    CHECK(seen().live_qps == 4);
  }
  CHECK(w.send(0, 2, 1) && w.send(2, 1, 1));
}
