// Monotonic time in nanoseconds; tests put a clock of their own in its place.
#pragma once
#include <ctime>
#include <cstdint>

namespace mk::net {

using Clock = uint64_t (*)(void* user);

inline uint64_t now_ns(void* = nullptr) {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

// The longest wait of a condition variable: more would overflow when it is added to the time.
constexpr uint64_t kLongestWait = INT64_MAX / 4;

struct ClockRef {
  Clock read = now_ns;
  void* user = nullptr;
  uint64_t operator()() const { return read(user); }
};

}  // namespace mk::net
