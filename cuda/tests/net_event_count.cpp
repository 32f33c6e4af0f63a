// How producers wake a sleeping proxy (net/fifo.h): by a futex, or by a descriptor beside those of NICs. Nothing is lost,
// whenever it comes: before the look, between the look and the sleep, in the sleep.
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "net/clock.h"
#include "net/error.h"
#include "net/ring.h"
#include "tests/check.h"

using namespace mk::net;

namespace {

constexpr uint64_t kSecond = 1000000000u;
constexpr uint64_t kLong = 60 * kSecond;  // a sleep that only a wake-up ends; after it, one was lost

// A FIFO whose proxy sleeps in one of the two ways.
struct Sleeper {
  const int nic = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const std::vector<int> nics;
  const uint32_t how;
  Ring ring{4, 0};

  explicit Sleeper(bool by_fd) : nics(by_fd ? std::vector<int>{nic} : std::vector<int>{}), how(by_fd ? MKNET_BY_FD : MKNET_BY_FUTEX) {}
  ~Sleeper() { close(nic); }

  uint32_t says() { return __atomic_load_n(&ring.head()->sleeping, __ATOMIC_ACQUIRE); }
  uint32_t wakes() { return __atomic_load_n(&ring.head()->wakes, __ATOMIC_ACQUIRE); }
  bool rung() {
    pollfd f = {ring.head()->wake_fd, POLLIN, 0};
    return poll(&f, 1, 0) == 1;
  }
  void push() { ring.push({}, now_ns() + kLong); }
  bool take() {
    mknet_command c;
    return ring.take(&c);
  }
  bool announce() { return ring.announce(nics); }
  Woken wait(uint64_t ns = kLong) { return ring.wait(ns, nics); }
  Woken sleep(uint64_t ns = kLong) { return ring.sleep(ns, nics); }
};

template <class F>
void both_ways(F&& f) {
  for (const bool by_fd : {false, true}) {
    Sleeper s(by_fd);
    f(s);
    CHECK(s.says() == 0);
  }
}

}  // namespace

TEST(wake_up_is_asked_for_in_the_way_that_the_proxy_said) {
  both_ways([](Sleeper& s) {
    s.push();
    CHECK(s.wakes() == 0 && !s.rung() && s.take());  // it does not sleep
    CHECK(s.announce() && s.says() == s.how);
    s.push();
    CHECK(s.says() == 0 && s.wakes() == 1 && s.rung() == (s.how == MKNET_BY_FD));
    s.push();
    CHECK(s.wakes() == 1);  // the first wakes it for all
    CHECK(s.wait() == Woken::kByProducer && s.take() && s.take());
    CHECK(s.sleep(1000) == Woken::kByTime && !s.rung());  // and once
  });
}

TEST(wake_up_before_the_sleep_is_not_lost) {
  both_ways([](Sleeper& s) {
    s.push();
    CHECK(s.sleep() == Woken::kNever && s.take());
    s.ring.wake();
    s.ring.wake();
    CHECK(s.sleep() == Woken::kByProducer);
    s.ring.wake();  // whose call of the descriptor is read with those before
    CHECK(s.sleep() == Woken::kByProducer);
    CHECK(s.sleep(1000) == Woken::kByTime);
    s.ring.abort();
    CHECK(s.sleep() == Woken::kNever);
  });
}

TEST(wake_up_between_the_look_and_the_sleep_is_not_lost) {
  both_ways([](Sleeper& s) {
    CHECK(s.announce());
    s.push();
    CHECK(s.wait() == Woken::kByProducer && s.take());
    CHECK(s.announce());
    s.ring.wake();
    CHECK(s.wait() == Woken::kByProducer);
    CHECK(s.announce());
    s.ring.abort();
    CHECK(s.wait() == Woken::kByProducer && s.sleep() == Woken::kNever);
  });
}

// A producer that found the proxy asleep may come to wake it when the proxy sleeps again, in another way.
TEST(wake_up_that_comes_late_meets_any_sleep) {
  Sleeper s(true);
  const auto late = [&] {
    __atomic_fetch_add(&s.ring.head()->wakes, 1, __ATOMIC_SEQ_CST);
    CHECK(eventfd_write(s.ring.head()->wake_fd, 1) == 0);
  };
  for (const bool first_by_fd : {false, true}) {
    late();
    CHECK(s.ring.sleep(kLong, first_by_fd ? s.nics : std::vector<int>{}) == Woken::kByProducer);
    CHECK(s.ring.sleep(1000) == Woken::kByTime && s.sleep(1000) == Woken::kByTime);
    CHECK(s.ring.announce());
    late();
    CHECK(s.ring.wait(kLong) == Woken::kByProducer);
    CHECK(s.ring.sleep(1000) == Woken::kByTime && s.sleep(1000) == Woken::kByTime);
  }
  // Seen in the count, and only then called: a sleep that ends for nothing.
  __atomic_fetch_add(&s.ring.head()->wakes, 1, __ATOMIC_SEQ_CST);
  CHECK(s.sleep() == Woken::kByProducer && s.announce());
  CHECK(eventfd_write(s.ring.head()->wake_fd, 1) == 0);
  CHECK(s.wait() == Woken::kByProducer);
  CHECK(s.sleep(1000) == Woken::kByTime);
  std::atomic<bool> awake{false};
  std::thread caller([&] {
    for (; !awake; std::this_thread::yield()) syscall(SYS_futex, &s.ring.head()->wakes, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  });
  CHECK(s.ring.sleep(kLong) == Woken::kByProducer);
  awake = true;
  caller.join();
}

TEST(wake_up_ends_a_sleep) {
  both_ways([](Sleeper& s) {
    __atomic_store_n(&s.ring.head()->wakes, UINT32_MAX - 5, __ATOMIC_RELAXED);  // the count wraps
    CHECK(s.sleep() == Woken::kByProducer);
    for (int round = 0; round < 10; ++round) {
      std::thread producer([&] {
        // A sleep may end for nothing, as the system call allows, before this looks.
        for (int looks = 0; s.says() == 0 && looks < 1000000; ++looks) std::this_thread::yield();
        round % 2 == 0 ? s.push() : s.ring.wake();
      });
      CHECK(s.sleep() != Woken::kByTime);
      producer.join();
      CHECK(s.take() == (round % 2 == 0));
      s.ring.reset(0);
    }
  });
}

// A NIC's descriptor is not ours to read: it wakes until its NIC has been looked at.
TEST(wake_up_by_a_NIC) {
  Sleeper s(true);
  CHECK(s.sleep(1000) == Woken::kByTime);
  std::thread device([&] { CHECK(eventfd_write(s.nic, 1) == 0); });
  CHECK(s.sleep() == Woken::kByNic);
  device.join();
  CHECK(s.sleep() == Woken::kByNic);
  eventfd_t count;
  CHECK(eventfd_read(s.nic, &count) == 0);
  CHECK(s.sleep(1000) == Woken::kByTime);
}

// Two producers and somebody with requests against a proxy that sleeps whenever it finds nothing, now in this way, now in that.
TEST(wake_up_is_never_lost) {
  constexpr uint64_t kRounds = 10000;
  Sleeper s(true);
  std::atomic<uint64_t> taken{0}, asked{0}, answered{0};
  std::atomic<bool> lost{false};
  std::thread proxy([&] {
    for (uint64_t turn = 0; !lost && (taken < 2 * kRounds || answered < kRounds); ++turn) {
      while (s.take()) ++taken;
      answered = asked.load();
      if (taken == 2 * kRounds && answered == kRounds) break;
      lost = s.ring.sleep(kLong, turn % 3 == 0 ? s.nics : std::vector<int>{}) == Woken::kByTime;
    }
  });
  const auto wait_for = [&](std::atomic<uint64_t>& what, uint64_t value) {
    while (what < value && !lost) std::this_thread::yield();
  };
  std::thread producers[2];
  for (uint64_t p = 0; p < 2; ++p)
    producers[p] = std::thread([&, p] {
      for (uint64_t n = 0; n < kRounds && !lost; ++n) {
        s.push();
        if (n % 4 == p) wait_for(taken, 2 * n);  // so that it sleeps now and then
        for (volatile uint64_t spins = n * 37 % 200; spins > 0; spins = spins - 1) continue;
      }
    });
  std::thread requests([&] {
    for (uint64_t n = 1; n <= kRounds && !lost; ++n) {
      asked = n;
      s.ring.wake();
      wait_for(answered, n);
    }
  });
  for (std::thread& t : producers) t.join();
  requests.join();
  proxy.join();
  CHECK(!lost);
}
