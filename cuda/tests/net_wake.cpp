// A proxy that sleeps until it is woken: by commands, requests, the abort, the end. Its sleeps are so long here that one
// wake-up that is lost fails the test.
#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/clock.h"
#include "net/control.h"
#include "net/error.h"
#include "net/proxy.h"
#include "tests/check.h"

using namespace mk::net;

namespace {

constexpr uint64_t kSecond = 1000000000u;
constexpr uint64_t kSleep = 60 * kSecond;
constexpr uint64_t kPatience = 30 * kSecond;

// Completes writes at once, or when the test says so. With a descriptor it wakes the proxy then.
class IdleNic final : public Nic {
 public:
  IdleNic(bool holds, bool has_fd) : holds_(holds), fd_(has_fd ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1) {
    p_.name = "idle", p_.ordered = true, p_.max_write = 4096;
  }
  ~IdleNic() override {
    if (fd_ >= 0) close(fd_);
  }

  size_t held() {
    std::lock_guard<std::mutex> lock(mutex_);
    return posted_.size();
  }
  void complete() {
    std::lock_guard<std::mutex> lock(mutex_);
    done_.insert(done_.end(), posted_.begin(), posted_.end());
    posted_.clear();
    if (fd_ >= 0) CHECK(eventfd_write(fd_, 1) == 0);
  }

  const NicProperties& properties() const override { return p_; }
  void add_region(uint32_t, const Region&) override {}
  Blob common(uint64_t) override { return {}; }
  Blob endpoint(uint32_t) override { return {}; }
  void connect(uint32_t, uint64_t, const Blob&, const Blob&, void*) override {}
  size_t post(const Write* writes, size_t n) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < n; ++i) (holds_ ? posted_ : done_).push_back(writes[i].id);
    return n;
  }
  size_t poll(Completion* out, size_t n) override {
    std::lock_guard<std::mutex> lock(mutex_);
    eventfd_t count;
    if (fd_ >= 0) eventfd_read(fd_, &count);
    size_t found = 0;
    for (; found < n && !done_.empty(); done_.pop_front()) out[found++].id = done_.front();
    return found;
  }
  bool listens() const override { return false; }
  int wait_fd() const override { return fd_; }
  void check() override {}
  void disconnect() override {}
  std::string path(uint32_t, uint32_t) const override { return "nowhere"; }
  std::string describe() const override { return "idle"; }

 private:
  const bool holds_;
  const int fd_;
  NicProperties p_;
  std::mutex mutex_;
  std::deque<uint64_t> posted_, done_;
};

enum Kind { kNoFd, kFd };

// Rank 0 of two.
struct Rank {
  std::vector<std::unique_ptr<IdleNic>> nics;
  std::vector<uint64_t> heap = std::vector<uint64_t>(64), inbox = std::vector<uint64_t>(inbox_bytes(2) / 8), outbox = std::vector<uint64_t>(outbox_bytes(2) / 8);
  std::vector<Region> regions = std::vector<Region>(kRegions);
  std::unique_ptr<Transfer> transfer;
  Ring ring;
  Verdict verdict;
  std::unique_ptr<Proxy> proxy;

  explicit Rank(const std::vector<Kind>& kinds = {kNoFd}, bool holds = false, bool listens = false, bool device_producers = false) : ring(2, 0, 2) {
    const auto region = [&](uint32_t number, std::vector<uint64_t>& memory) {
      regions[number].base = reinterpret_cast<char*>(memory.data()), regions[number].bytes = memory.size() * 8;
    };
    region(kHeap, heap), region(kInbox, inbox), region(kOutbox, outbox);
    TransferSettings s;
    s.world = 2, s.timeout_ns = kSleep, s.regions = &regions;
    PeerSettings p;
    for (uint32_t i = 0; i < kinds.size(); ++i) {
      nics.push_back(std::make_unique<IdleNic>(holds, kinds[i] == kFd));
      s.nics.push_back(nics.back().get());
      p.nics.push_back(i);
    }
    p.crossed.resize(kinds.size());
    transfer = make_ordered(s);
    transfer->add_peer(1, p);
    ProxySettings settings;
    settings.listens = listens, settings.device_producers = device_producers, settings.long_sleep_ns = kSleep;
    proxy = std::make_unique<Proxy>(ring, *transfer, verdict, settings);
  }

  uint64_t push() {
    mknet_command c = {};
    c.op = MKNET_WRITE, c.peer = 1, c.rows = 1, c.bytes = 8, c.flag = MKNET_NO_FLAG;
    return ring.push(c, now_ns() + kPatience);
  }
  // How the proxy sleeps, when it does.
  uint32_t asleep() {
    for (const uint64_t end = now_ns() + kPatience; now_ns() < end; std::this_thread::yield())
      if (const uint32_t how = __atomic_load_n(&ring.head()->sleeping, __ATOMIC_ACQUIRE); how != 0) return how;
    return 0;
  }
  bool completes(uint64_t count) {
    for (const uint64_t end = now_ns() + kPatience; now_ns() < end; std::this_thread::yield())
      if (ring.completed() >= count) return true;
    return false;
  }
  bool holds(size_t nic, size_t writes) {
    for (const uint64_t end = now_ns() + kPatience; now_ns() < end; std::this_thread::yield())
      if (nics[nic]->held() >= writes) return true;
    return false;
  }
};

}  // namespace

TEST(proxy_is_woken_by_every_command) {
  Rank r;
  for (uint64_t n = 1; n <= 3000; ++n) {
    if (n % 4 != 0) CHECK(r.asleep() == MKNET_BY_FUTEX);  // else about to sleep, or not yet
    r.push();
    if (!r.completes(n)) {
      CHECK(!"a command was left lying");
      break;
    }
  }
}

// The FIFO has two slots: each command but the first ones waits for the proxy, which sleeps as soon as it has taken all.
TEST(proxy_is_woken_while_producers_wait_for_room) {
  Rank r;
  std::thread producers[3];
  for (std::thread& t : producers)
    t = std::thread([&] {
      try {
        for (int n = 0; n < 1000; ++n) r.push();
      } catch (const Error& e) {
        ++test::failures();
        printf("%s\n", e.what());
      }
    });
  for (std::thread& t : producers) t.join();
  CHECK(r.completes(3000));
}

TEST(proxy_is_woken_by_requests) {
  for (const bool device_producers : {false, true}) {
    Rank r({kNoFd}, false, false, device_producers);
    const int rounds = device_producers ? 8 : 300;  // it spins for long before each sleep
    int calls = 0;
    try {
      for (int n = 1; n <= rounds; ++n) {
        if (n % 4 != 0) CHECK(r.asleep() == MKNET_BY_FUTEX);
        r.proxy->drain(now_ns() + kPatience);
        if (n % 4 != 1) CHECK(r.asleep() == MKNET_BY_FUTEX);
        r.proxy->call([&] { ++calls; });
      }
    } catch (const Error& e) {
      printf("%s\n", e.what());
    }
    CHECK(calls == rounds);
  }
}

TEST(proxy_is_woken_by_the_abort_and_by_its_end) {
  for (const Kind kind : {kNoFd, kFd}) {
    {
      Rank r({kind}, false, kind == kFd);
      CHECK(r.asleep() == (kind == kFd ? MKNET_BY_FD : MKNET_BY_FUTEX));
      r.ring.abort();
      r.verdict.wait(kPatience);
      CHECK(r.verdict.ended());
    }
    Rank r({kind}, false, kind == kFd);
    CHECK(r.asleep() != 0);
    const uint64_t before = now_ns();
    r.proxy.reset();
    CHECK(now_ns() - before < kPatience);
  }
}

// By descriptor only where all NICs have one: it could not wait for the others.
TEST(proxy_sleeps_as_its_NICs_allow) {
  struct Case {
    std::vector<Kind> kinds;
    uint32_t how;
  };
  for (const Case& c : {Case{{kFd, kFd}, MKNET_BY_FD}, Case{{kFd, kNoFd}, MKNET_BY_FUTEX}, Case{{kNoFd, kFd}, MKNET_BY_FUTEX}}) {
    Rank r(c.kinds, true, true);
    uint64_t commands = 0;
    for (int round = 0; round < 50; ++round) {
      CHECK(r.asleep() == c.how);  // nothing is under way
      r.push(), r.push();          // the NICs take turns
      commands += 2;
      CHECK(r.holds(0, 1) && r.holds(1, 1));
      CHECK(r.asleep() == c.how);  // writes are under way
      for (const int nic : {round % 2, 1 - round % 2}) r.nics[static_cast<size_t>(nic)]->complete();
      CHECK(r.completes(commands));
    }
  }
}
