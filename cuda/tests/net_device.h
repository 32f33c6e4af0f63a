// Device memory for tests: addresses at which this process can neither read nor write, as a GPU's are to a NIC without
// dma-buf and peer memory. Copies and stores are executed later and in order, by a thread, through another mapping.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "include/mknet.h"
#include "tests/check.h"

namespace test {

class TestDevice {
 public:
  // `readable`: as with nvidia-peermem, a NIC may register the addresses.
  explicit TestDevice(uint64_t bytes, bool readable = false) : bytes_(bytes), fd_(memfd_create("device", MFD_CLOEXEC)) {
    if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) abort();
    shadow_ = map(PROT_READ | PROT_WRITE);
    base_ = map(readable ? PROT_READ | PROT_WRITE : PROT_NONE);
    thread_ = std::thread([this] { run(); });
  }
  ~TestDevice() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
    CHECK(pinned_.empty());
    munmap(base_, bytes_);
    munmap(shadow_, bytes_);
    close(fd_);
  }

  char* base() const { return base_; }
  char* shadow() const { return shadow_; }  // the same memory, as kernels see it
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  uint64_t copies() const { return copies_; }
  uint64_t pins() const { return pins_; }
  uint64_t waiting() {  // copies and stores that are not executed
    std::lock_guard<std::mutex> lock(mutex_);
    return added_ - executed_;
  }
  void stall(bool yes) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stalled_ = yes;
    }
    changed_.notify_all();
  }

  mknet_device functions() {
    return {this, copy, store, mark, done, text, pin, unpin};
  }

 private:
  struct Work {
    char* to;
    const char* from;
    uint64_t bytes;
    bool flag;
    uint64_t value;
  };

  char* map(int protection) const {
    void* p = mmap(nullptr, bytes_, protection, MAP_SHARED, fd_, 0);
    if (p == MAP_FAILED) abort();
    return static_cast<char*>(p);
  }
  template <class T>
  T* seen(T* p) const {
    const auto at = reinterpret_cast<const char*>(p);
    return at >= base_ && at < base_ + bytes_ ? reinterpret_cast<T*>(const_cast<char*>(shadow_ + (at - base_))) : p;
  }
  void add(const Work& w) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(w);
      ++added_;
    }
    changed_.notify_all();
  }
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || (!queue_.empty() && !stalled_); });
      if (stop_) return;
      const Work w = queue_.front();
      queue_.pop_front();
      lock.unlock();
      if (w.flag)
        __atomic_store_n(reinterpret_cast<uint64_t*>(w.to), w.value, __ATOMIC_SEQ_CST);
      else
        memcpy(w.to, w.from, w.bytes), ++copies_;
      lock.lock();
      ++executed_;
    }
  }

  static TestDevice& of(void* user) { return *static_cast<TestDevice*>(user); }
  static int copy(void* user, void* to, const void* from, uint64_t bytes) {
    TestDevice& d = of(user);
    d.add({d.seen(static_cast<char*>(to)), d.seen(static_cast<const char*>(from)), bytes, false, 0});
    return 0;
  }
  static int store(void* user, void* to, uint64_t value) {
    TestDevice& d = of(user);
    d.add({d.seen(static_cast<char*>(to)), nullptr, 8, true, value});
    return 0;
  }
  static int mark(void* user, uint64_t* ticket) {
    std::lock_guard<std::mutex> lock(of(user).mutex_);
    *ticket = of(user).added_;
    return 0;
  }
  static int done(void* user, uint64_t ticket) {
    std::lock_guard<std::mutex> lock(of(user).mutex_);
    return of(user).executed_ >= ticket ? 1 : 0;
  }
  static const char* text(void*, int) { return "the test's device failed"; }
  static int pin(void* user, void* base, uint64_t) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    CHECK(strcmp(name, "mknet-proxy") != 0);  // pinning may wait for kernels, which may wait for the proxy
    ++of(user).pins_;
    return of(user).pinned_.insert(base).second ? 0 : -1;
  }
  static int unpin(void* user, void* base) { return of(user).pinned_.erase(base) == 1 ? 0 : -1; }

  const uint64_t bytes_;
  const int fd_;
  char *shadow_, *base_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  uint64_t added_ = 0, executed_ = 0;
  bool stop_ = false, stalled_ = false;
  std::atomic<uint64_t> copies_{0}, pins_{0};
  std::set<void*> pinned_;
  std::thread thread_;
};

}  // namespace test
