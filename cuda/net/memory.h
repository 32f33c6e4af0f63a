// Memory as the proxy touches it: host memory directly, device memory through the caller's functions.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#include "net/clock.h"
#include "net/error.h"

namespace mk::net {

// Raises a 64-bit flag in host memory behind everything this thread wrote or received; it never goes down.
inline void raise_host(uint64_t* flag, uint64_t value) {
  uint64_t seen = __atomic_load_n(flag, __ATOMIC_RELAXED);
  while (seen < value && !__atomic_compare_exchange_n(flag, &seen, value, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
}

// Whole pages around a range: what a dma-buf can be made of. `offset` is where the range begins in them.
struct Pages {
  uint64_t base, bytes, offset;
};
inline Pages pages_around(uint64_t base, uint64_t bytes, uint64_t page) {
  const uint64_t first = base / page * page, end = (base + bytes + page - 1) / page * page;
  return {first, end - first, base - first};
}

// The caller's device functions, with errors thrown.
class Device {
 public:
  explicit Device(const mknet_device* functions) {
    if (functions != nullptr) f_ = *functions, given_ = true;
  }
  bool given() const { return given_; }

  void copy(void* target, const void* source, uint64_t bytes) const { check(f_.copy(f_.user, target, source, bytes), "copy"); }
  void store(void* target, uint64_t value) const { check(f_.store(f_.user, target, value), "store of a flag"); }
  uint64_t mark() const {
    uint64_t ticket = 0;
    check(f_.mark(f_.user, &ticket), "mark");
    return ticket;
  }
  bool done(uint64_t ticket) const {
    const int r = f_.done(f_.user, ticket);
    if (r < 0) check(r, "copy");
    return r != 0;
  }
  // Waits until all copies and stores are executed. False: they are not within a bound, or the device has failed.
  bool settle() const noexcept {
    try {
      const uint64_t ticket = mark(), deadline = now_ns() + kPatience;
      while (!done(ticket)) {
        if (now_ns() >= deadline) return false;
        std::this_thread::sleep_for(std::chrono::nanoseconds(kNap));
      }
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  void pin(void* base, uint64_t bytes) const {
    if (f_.pin != nullptr) check(f_.pin(f_.user, base, bytes), "pinning host memory");
  }
  void unpin(void* base) const noexcept {
    if (f_.unpin != nullptr) f_.unpin(f_.user, base);
  }

 private:
  static constexpr uint64_t kPatience = 2000000000u, kNap = 20000;  // ns

  void check(int code, const char* what) const {
    if (code == 0) return;
    fail(MKNET_ERROR_SYSTEM, "device memory, %s: %s (%d)", what, f_.text ? f_.text(f_.user, code) : "error", code);
  }

  mknet_device f_ = {};
  bool given_ = false;
};

}  // namespace mk::net
