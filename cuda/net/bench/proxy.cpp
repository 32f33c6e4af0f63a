// The proxy alone, over the emulated NIC: how soon a sleeping one has taken a command, and what an idle one costs. Host
// producers wake it, beside which stands how long this machine takes to wake any thread. GPU producers cannot: it spins for
// 100 ms after the last command, then looks every millisecond; they are played by a thread that pushes as a kernel does.
#include "net/bench/proxy.h"

#include <dirent.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "net/bench/pair.h"

namespace bench {

namespace {

using mk::net::now_ns;

constexpr uint64_t kHeap = 1u << 16;
constexpr int kWakes = 400;
constexpr uint64_t kIdleNs = 2 * kSecond;
constexpr uint64_t kSettledNs = 3 * kSecond / 2;  // after the last command; the proxy naps as long as it ever does

void check(int code, const mknet_error& e) {
  if (code != MKNET_OK) die("%s", e.text);
}

void sleep_ns(uint64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

// Nanoseconds on a processor of all proxies of this process.
uint64_t proxy_cpu_ns() {
  uint64_t sum = 0;
  DIR* tasks = opendir("/proc/self/task");
  for (const dirent* t = nullptr; tasks != nullptr && (t = readdir(tasks)) != nullptr;) {
    const std::string dir = std::string("/proc/self/task/") + t->d_name;
    char name[32] = "";
    unsigned long long ns = 0;
    if (FILE* f = fopen((dir + "/comm").c_str(), "r")) {
      if (fgets(name, sizeof name, f) == nullptr) name[0] = '\0';
      fclose(f);
    }
    if (strncmp(name, "mknet-proxy", 11) != 0) continue;
    if (FILE* f = fopen((dir + "/schedstat").c_str(), "r")) {
      if (fscanf(f, "%llu", &ns) == 1) sum += ns;
      fclose(f);
    }
  }
  if (tasks != nullptr) closedir(tasks);
  return sum;
}

// The processors that may be used: producers are on the first, and whom they wake on the second, if there is one, so that it
// is neither chance nor the order of threads that decides how soon those run.
std::vector<int> processors() {
  cpu_set_t all;
  std::vector<int> list;
  if (sched_getaffinity(0, sizeof all, &all) != 0) die("asking for the processors: %s", strerror(errno));
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &all)) list.push_back(cpu);
  return list;
}

void stay_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("staying on %zu processors: %s", cpus.size(), strerror(errno));
}

std::string list_of(const std::vector<int>& cpus) {
  std::string text;
  for (const int cpu : cpus) text += (text.empty() ? "" : ",") + std::to_string(cpu);
  return text;
}

// Two ranks in this process; only the first pushes.
class Two {
 public:
  Two(bool device_producers, const std::vector<int>& proxies) {
    const std::string cpus = list_of(proxies);
    mknet_error e;
    for (int r = 0; r < 2; ++r) {
      mknet_desc d;
      MKNET_INIT(&d);
      d.backend = "emu";
      d.rank = r;
      d.world = 2;
      d.job = 1;
      d.emu.direct = 1;
      d.device_producers = device_producers ? 1 : 0;
      d.cpus = cpus.c_str();
      check(mknet_create(&d, &nets_[r], &e), e);
      heaps_[r].assign(kHeap / 8, 0);
      mknet_range range;
      MKNET_INIT(&range);
      range.base = heaps_[r].data();
      range.bytes = kHeap;
      range.fd = -1;
      check(mknet_register(nets_[r], &range, nullptr, &e), e);
    }
    std::vector<char> common[2], own[2];
    for (int r = 0; r < 2; ++r) common[r] = endpoint(r, -1), own[r] = endpoint(r, 1 - r);
    for (int r = 0; r < 2; ++r) {
      const int p = 1 - r;
      check(mknet_connect(nets_[r], p, common[p].data(), common[p].size(), own[p].data(), own[p].size(), nullptr, &e), e);
    }
    for (mknet* net : nets_) check(mknet_start(net, &e), e);
    fifo_ = mknet_queue(nets_[0]);
  }
  ~Two() {
    mknet_error e;
    for (mknet* net : nets_) check(mknet_drain(net, kPatience, &e), e);
    for (mknet* net : nets_) mknet_destroy(net, nullptr);
  }

  // Nanoseconds from the push until the proxy has the command.
  uint64_t push(bool as_gpu) {
    mknet_command c = {};
    c.op = MKNET_WRITE;
    c.peer = 1;
    c.rows = 1;
    c.bytes = 8;
    c.flag = kHeap - 8;
    c.value = ++value_;
    uint64_t position = 0;
    mknet_error e;
    const uint64_t t = now_ns();
    if (as_gpu) position = store(c);
    else check(mknet_push(nets_[0], &c, kPatience, &position, &e), e);
    while (__atomic_load_n(&fifo_->consumed, __ATOMIC_ACQUIRE) <= position) {
    }
    return now_ns() - t;
  }

 private:
  std::vector<char> endpoint(int rank, int peer) {
    uint64_t bytes = 0;
    mknet_error e;
    check(mknet_endpoint(nets_[rank], peer, nullptr, &bytes, &e), e);
    std::vector<char> blob(bytes);
    check(mknet_endpoint(nets_[rank], peer, blob.data(), &bytes, &e), e);
    return blob;
  }
  // As in fifo.h: claim, fill the slot, the sequence last; nobody is woken.
  uint64_t store(const mknet_command& c) {
    const uint64_t p = __atomic_fetch_add(&fifo_->tail, 1, __ATOMIC_RELAXED);
    char* slot = reinterpret_cast<char*>(fifo_) + fifo_->slots + (p & (fifo_->capacity - 1)) * sizeof c;
    memcpy(slot + 8, reinterpret_cast<const char*>(&c) + 8, sizeof c - 8);
    __atomic_store_n(reinterpret_cast<uint64_t*>(slot), p + 1, __ATOMIC_RELEASE);
    return p;
  }

  mknet* nets_[2] = {};
  std::vector<uint64_t> heaps_[2];
  mknet_fifo* fifo_ = nullptr;
  uint64_t value_ = 0;
};

// A thread that sleeps until somebody adds to its eventfd, and does nothing else.
class Sleeper {
 public:
  explicit Sleeper(const std::vector<int>& cpus) : fd_(eventfd(0, EFD_CLOEXEC)), thread_([this, cpus] {
    stay_on(cpus);
    for (eventfd_t n; eventfd_read(fd_, &n) == 0 && !stop_;) ++woken_;
  }) {}
  ~Sleeper() {
    stop_ = true;
    eventfd_write(fd_, 1);
    thread_.join();
    close(fd_);
  }
  // Nanoseconds until it runs.
  uint64_t wake() {
    const uint64_t before = woken_, t = now_ns();
    eventfd_write(fd_, 1);
    while (woken_ == before) {
    }
    return now_ns() - t;
  }

 private:
  const int fd_;
  std::atomic<uint64_t> woken_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// `rest`: between two wake-ups, so that who is woken sleeps.
template <class Wake>
void report_wake(const char* what, uint64_t rest, int count, Wake&& wake) {
  std::vector<double> us;
  for (int i = 0; i < count; ++i) {
    sleep_ns(rest + static_cast<uint64_t>(i) * 7919 % 1000000);  // not in step with its naps
    us.push_back(static_cast<double>(wake()) / 1e3);
  }
  std::sort(us.begin(), us.end());
  const auto part = [&](double p) { return us[static_cast<size_t>(p * static_cast<double>(us.size() - 1))]; };
  printf("  %-46s p50 %.1f us, p95 %.1f us, p99 %.1f us, longest %.1f us, of %d\n", what, part(0.5), part(0.95), part(0.99), us.back(), count);
}

void report_idle(const char* what) {
  const uint64_t begun = now_ns(), before = proxy_cpu_ns();
  sleep_ns(kIdleNs);
  printf("  %-46s %.3f %% of a core each\n", what,
         100 * static_cast<double>(proxy_cpu_ns() - before) / 2 / static_cast<double>(now_ns() - begun));
}

}  // namespace

void measure_proxy() {
  const std::vector<int> all = processors();
  const std::vector<int> producers = {all.front()}, woken = {all[all.size() > 1 ? 1 : 0]};
  printf("proxy: producers on processor %s, those whom they wake on %s\n", list_of(producers).c_str(), list_of(woken).c_str());
  stay_on(producers);
  {
    Two two(false, woken);
    Sleeper bare(woken);
    report_wake("a thread that only sleeps: runs after", 5000000, kWakes, [&] { return bare.wake(); });
    report_wake("host producer, sleeping proxy: taken after", 5000000, kWakes, [&] { return two.push(false); });
    sleep_ns(kSettledNs);
    report_idle("host producers, idle");
  }
  {
    Two two(true, woken);
    report_wake("GPU-like producer, spinning proxy: taken after", 1000000, kWakes, [&] { return two.push(true); });
    report_wake("GPU-like producer, backed-off proxy: taken after", 150000000, kWakes / 10, [&] { return two.push(true); });
    report_wake("GPU-like producer, after more than a second: taken after", kSettledNs, kWakes / 40, [&] { return two.push(true); });
    sleep_ns(kSettledNs);
    report_idle("GPU-like producers, idle");
  }
  printf("proxy: all where the scheduler chooses, of processors %s\n", list_of(all).c_str());
  stay_on(all);
  {
    Two two(false, all);
    Sleeper bare(all);
    report_wake("a thread that only sleeps: runs after", 5000000, kWakes, [&] { return bare.wake(); });
    report_wake("host producer, sleeping proxy: taken after", 5000000, kWakes, [&] { return two.push(false); });
  }
}

}  // namespace bench
