// The command FIFO: order, many producers, full, wrap of its counters, abort.
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

mknet_command numbered(uint64_t producer, uint64_t n) {
  mknet_command c = {};
  c.op = MKNET_WRITE;
  c.source = producer;
  c.target = n;
  c.value = ~(producer << 32 | n);
  return c;
}

// Several producers push through a small FIFO whose counters begin at `start`; each one's commands come in order.
void many_producers(uint32_t capacity, uint64_t start, uint64_t each) {
  constexpr uint64_t kProducers = 4;
  Ring ring(capacity, start);
  std::vector<std::thread> producers;
  for (uint64_t p = 0; p < kProducers; ++p)
    producers.emplace_back([&, p] {
      for (uint64_t n = 0; n < each; ++n) ring.push(numbered(p, n), now_ns() + 60 * kSecond);
    });
  uint64_t next[kProducers] = {};
  bool right = true;
  for (uint64_t taken = 0; taken < kProducers * each;) {
    mknet_command c;
    if (!ring.take(&c)) {
      right = right && ring.sleep(60 * kSecond) != Woken::kByTime;
      continue;
    }
    right = right && c.sequence == start + taken + 1 && c.source < kProducers && c.target == next[c.source] &&
            c.value == ~(c.source << 32 | c.target);
    if (c.source < kProducers) ++next[c.source];
    ++taken;
    ring.complete(start + taken);
  }
  for (std::thread& t : producers) t.join();
  CHECK(right);
  CHECK(ring.completed() == start + kProducers * each);
}

}  // namespace

TEST(fifo_many_producers) { many_producers(8, 0, 5000); }
TEST(fifo_counters_pass_2_32) { many_producers(4, (uint64_t{1} << 32) - 1000, 2000); }
TEST(fifo_counters_pass_2_64) { many_producers(2, UINT64_MAX - 1000, 2000); }

TEST(fifo_full_is_bounded_and_leaves_no_hole) {
  Ring ring(2, 0);
  const uint64_t soon = now_ns() + kSecond / 1000;
  ring.push(numbered(0, 0), soon);
  ring.push(numbered(0, 1), soon);
  bool late = false;
  try {
    ring.push(numbered(0, 2), soon);
  } catch (const Error& e) {
    late = e.code == MKNET_ERROR_TIMEOUT;
  }
  CHECK(late);
  mknet_command c;
  CHECK(ring.take(&c) && ring.take(&c) && !ring.take(&c));
  CHECK(ring.push(numbered(0, 3), now_ns() + kSecond) == 2);
  CHECK(ring.take(&c) && c.target == 3);
}

TEST(fifo_abort_ends_waits) {
  Ring ring(1, 0);
  ring.push(numbered(0, 0), now_ns() + kSecond);
  std::atomic<int> code{0};
  std::thread producer([&] {
    try {
      ring.push(numbered(0, 1), now_ns() + 60 * kSecond);
    } catch (const Error& e) {
      code = e.code;
    }
  });
  ring.abort();
  producer.join();
  CHECK(code == MKNET_ERROR_ABORTED);
  ring.reset(7);
  mknet_command c;
  CHECK(!ring.take(&c));
  CHECK(ring.push(numbered(1, 2), now_ns() + kSecond) == 7 && ring.take(&c) && c.source == 1);
}

TEST(fifo_bad_capacity) {
  for (const uint32_t capacity : {3u, 1u << 21, 1023u}) {
    bool refused = false;
    try {
      Ring ring(capacity, 0);
    } catch (const Error& e) {
      refused = e.code == MKNET_ERROR_ARGUMENT;
    }
    CHECK(refused);
  }
}
