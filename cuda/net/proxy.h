// The proxy thread: takes commands from the FIFO, sees them through, publishes what is complete, sleeps when there is
// nothing to do, and ends everything at the first failure.
//
// Host producers wake it. GPU producers cannot, so with them it spins for 100 ms after the last command and then looks once a
// millisecond, less often when more time has passed. A receiver's proxy on an unordered network must look for arrivals too,
// unless its NICs wake it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/ring.h"
#include "net/transfer.h"

namespace mk::net {

struct ProxySettings {
  bool device_producers = false;
  bool listens = false;  // some NIC does
  uint64_t long_sleep_ns = 100000000;  // while only a wake-up can bring work; in tests so long that a lost one shows
  std::vector<int> cpus; // to run on; empty: those of the thread that starts it
  mknet_failed failed = nullptr;
  void* failed_user = nullptr;
};

// How the network ended; the first reason stays. Any thread.
class Verdict {
 public:
  bool set(int code, const std::string& text);  // false: there was one
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  void check() const;  // throws it
  void wait(uint64_t timeout_ns) const;
  mknet_error error() const;
  void clear();

 private:
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int code_ = MKNET_OK;
  std::string text_;
};

class Proxy {
 public:
  Proxy(Ring& ring, Transfer& transfer, Verdict& verdict, const ProxySettings& settings);
  ~Proxy();

  // Sends a probe over every lane of the peers and returns when theirs have come; throws on time-out.
  void verify(const std::vector<uint32_t>& peers, uint64_t value, uint64_t deadline_ns);
  // Returns when all that was pushed is complete and nothing is under way.
  void drain(uint64_t deadline_ns);
  // Runs `f` on the thread, between two rounds of work; its error is thrown here and ends nothing.
  void call(const std::function<void()>& f);
  // Where the thread runs, for people; "": anywhere.
  const std::string& place() const { return place_; }
  void statistics(mknet_stats* out) const;

 private:
  void run();
  void loop();
  void pin();
  bool serve();
  void rest(uint64_t now);
  void note_command();
  void publish();
  // Asks the thread to run its part of verify, drain or call; waits until it has.
  void ask(uint32_t what, uint64_t deadline_ns, const char* doing);

  bool send_probes();
  bool look_for_probes();
  bool drained();
  bool called();

  enum : uint32_t { kProbe = 1, kLook = 2, kDrain = 3, kCall = 4, kServing = 5 };

  Ring& ring_;
  Transfer& transfer_;
  Verdict& verdict_;
  const ProxySettings s_;

  std::mutex asking_;                 // one request at a time
  std::atomic<uint32_t> request_{0};  // 0: none, or done
  std::vector<uint32_t> probe_peers_;
  uint64_t probe_value_ = 0;
  size_t probes_sent_ = 0;         // places (peer, lane) done
  std::function<void()> call_;
  std::exception_ptr call_error_;
  std::string place_;
  std::string missing_;            // the first probe that has not come; empty: all have

  std::atomic<bool> stop_{false};
  const std::vector<int> no_nics_;
  uint64_t active_ns_ = 0, nap_ns_ = 0, slept_ns_ = 0;
  int quick_ = 0;  // sleeps, one after the other, that ended so soon that spinning would have been as well
  std::atomic<uint64_t> wakes_{0}, naps_{0}, nic_wakes_{0}, late_ns_{0}, woken_ns_{0};
  std::atomic<uint64_t> counts_[5] = {};
  std::thread thread_;
};

}  // namespace mk::net
