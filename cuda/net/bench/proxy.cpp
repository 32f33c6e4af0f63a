// The proxy alone, over the emulated NIC: how soon a sleeping one has taken a command, and what an idle one costs. Host
// producers wake it, beside which stands how long this machine takes to wake any thread. GPU producers cannot: it spins for
// 100 ms after the last command, then looks every one to four milliseconds; they are played by a thread that pushes as a kernel does.
#include "net/bench/proxy.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
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
constexpr int kIdleRounds = 3;
constexpr uint64_t kSettledNs = 5 * kSecond / 2;  // after the last command; the proxy naps as long as it ever does

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

// Nanoseconds from the wake-up until who was woken ran, by its own clock, and until who woke it saw that. The second is the
// longer one where they share a processor: then who was woken has also slept again. 0: not known.
struct Reached {
  uint64_t ran, seen;
};

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

  // By a host producer, to a proxy that sleeps.
  Reached push() {
    const mknet_command c = next();
    uint64_t position = 0;
    mknet_error e;
    mknet_stats stats;
    MKNET_INIT(&stats);
    const uint64_t t = now_ns();
    check(mknet_push(nets_[0], &c, kPatience, &position, &e), e);
    wait(position);
    const uint64_t seen = now_ns();
    check(mknet_statistics(nets_[0], &stats, &e), e);
    return {stats.woken_ns > t ? stats.woken_ns - t : 0, seen - t};
  }
  // As a kernel does: claim, fill the slot, the sequence last (fifo.h); nobody is woken.
  Reached store() {
    const mknet_command c = next();
    const uint64_t t = now_ns();
    const uint64_t p = __atomic_fetch_add(&fifo_->tail, 1, __ATOMIC_RELAXED);
    char* slot = reinterpret_cast<char*>(fifo_) + fifo_->slots + (p & (fifo_->capacity - 1)) * sizeof c;
    memcpy(slot + 8, reinterpret_cast<const char*>(&c) + 8, sizeof c - 8);
    __atomic_store_n(reinterpret_cast<uint64_t*>(slot), p + 1, __ATOMIC_RELEASE);
    wait(p);
    return {0, now_ns() - t};
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
  mknet_command next() {
    mknet_command c = {};
    c.op = MKNET_WRITE;
    c.peer = 1;
    c.rows = 1;
    c.bytes = 8;
    c.flag = kHeap - 8;
    c.value = ++value_;
    return c;
  }
  void wait(uint64_t position) const {
    while (__atomic_load_n(&fifo_->consumed, __ATOMIC_ACQUIRE) <= position) {
    }
  }

  mknet* nets_[2] = {};
  std::vector<uint64_t> heaps_[2];
  mknet_fifo* fifo_ = nullptr;
  uint64_t value_ = 0;
};

// A thread that sleeps on a futex until it is woken, and does nothing else.
class Sleeper {
 public:
  explicit Sleeper(const std::vector<int>& cpus) : thread_([this, cpus] {
    stay_on(cpus);
    for (uint32_t seen = 0; !stop_; woken_ = seen) {
      futex(FUTEX_WAIT_PRIVATE, seen);
      ran_ns_ = now_ns();
      seen = word_;
    }
  }) {}
  ~Sleeper() {
    stop_ = true;
    wake();
    thread_.join();
  }
  Reached wake() {
    const uint64_t t = now_ns();
    const uint32_t count = ++word_;
    futex(FUTEX_WAKE_PRIVATE, 1);
    while (woken_ != count && !stop_) {
    }
    const uint64_t seen = now_ns();
    return {ran_ns_ - t, seen - t};
  }

 private:
  void futex(int what, uint32_t value) { syscall(SYS_futex, &word_, what, value, nullptr, nullptr, 0); }

  std::atomic<uint32_t> word_{0}, woken_{0};
  std::atomic<uint64_t> ran_ns_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

using Wake = std::function<Reached()>;

std::string spread(std::vector<double>& us) {
  std::sort(us.begin(), us.end());
  const auto part = [&](double p) { return us[static_cast<size_t>(p * static_cast<double>(us.size() - 1))]; };
  char text[120];
  snprintf(text, sizeof text, "p50 %.1f, p90 %.1f, p99 %.1f, longest %.1f us", part(0.5), part(0.9), part(0.99), us.back());
  return text;
}

// Wakes all of them in turns, so that what else the machine does meets all. `rest`: between two wake-ups, so that who is woken
// sleeps.
void report_wakes(uint64_t rest, int count, const std::vector<std::pair<const char*, Wake>>& ways) {
  std::vector<std::vector<double>> ran(ways.size()), seen(ways.size());
  for (int i = 0; i < count; ++i)
    for (size_t w = 0; w < ways.size(); ++w) {
      sleep_ns(rest + static_cast<uint64_t>(i) * 7919 % 1000000);  // not in step with its naps
      const Reached r = ways[w].second();
      if (r.ran != 0) ran[w].push_back(static_cast<double>(r.ran) / 1e3);
      seen[w].push_back(static_cast<double>(r.seen) / 1e3);
    }
  for (size_t w = 0; w < ways.size(); ++w) {
    if (!ran[w].empty()) printf("  %-42s %s, of %zu\n", ways[w].first, spread(ran[w]).c_str(), ran[w].size());
    printf("  %-42s %s, of %zu\n", ran[w].empty() ? ways[w].first : "  seen by who woke it", spread(seen[w]).c_str(), seen[w].size());
  }
}

// A thread that only sleeps, as often as a proxy does; % of a processor.
double bare_sleeps(const std::vector<int>& cpus, uint64_t ns) {
  double percent = 0;
  std::thread thread([&] {
    stay_on(cpus);
    prctl(PR_SET_TIMERSLACK, 1ul);
    const auto used_ns = [] {
      timespec t;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
      return static_cast<uint64_t>(t.tv_sec) * kSecond + static_cast<uint64_t>(t.tv_nsec);
    };
    const uint64_t begun = now_ns(), before = used_ns();
    const timespec t = {0, static_cast<long>(ns)};
    while (now_ns() - begun < kIdleNs) nanosleep(&t, nullptr);
    percent = 100 * static_cast<double>(used_ns() - before) / static_cast<double>(now_ns() - begun);
  });
  thread.join();
  return percent;
}

// Of each proxy, of which there are two.
double idle_proxies() {
  const uint64_t begun = now_ns(), before = proxy_cpu_ns();
  sleep_ns(kIdleNs);
  return 100 * static_cast<double>(proxy_cpu_ns() - before) / 2 / static_cast<double>(now_ns() - begun);
}

}  // namespace

void measure_proxy() {
  const std::vector<int> all = processors();
  const std::vector<int> producers = {all.front()}, woken = {all[all.size() > 1 ? 1 : 0]};
  printf("proxy: all where the scheduler chooses, of processors %s\n", list_of(all).c_str());
  {
    Two two(false, all);
    Sleeper bare(all);
    report_wakes(5000000, kWakes, {{"a thread that only sleeps: runs", [&] { return bare.wake(); }},
                                   {"host producer, sleeping proxy: taken", [&] { return two.push(); }}});
  }
  printf("proxy: producers on processor %s, those whom they wake on %s\n", list_of(producers).c_str(), list_of(woken).c_str());
  stay_on(producers);
  {
    Two two(false, woken);
    Sleeper bare(woken);
    report_wakes(5000000, kWakes, {{"a thread that only sleeps: runs", [&] { return bare.wake(); }},
                                   {"host producer, sleeping proxy: taken", [&] { return two.push(); }}});
    sleep_ns(kSettledNs);
    printf("  %-42s %.3f %% of a core each\n", "host producers, idle", idle_proxies());
  }
  {
    Two two(true, woken);
    report_wakes(1000000, kWakes, {{"GPU-like producer, spinning proxy: taken", [&] { return two.store(); }}});
    report_wakes(150000000, kWakes / 10, {{"GPU-like producer, proxy that naps: taken", [&] { return two.store(); }}});
    report_wakes(kSettledNs, kWakes / 40, {{"GPU-like producer, after seconds: taken", [&] { return two.store(); }}});
    sleep_ns(kSettledNs);
    for (int round = 0; round < kIdleRounds; ++round) {
      const double proxies = idle_proxies();
      printf("  %-42s %.3f %% of a core each; a thread that only sleeps 4 ms %.3f %%, 1 ms %.3f %%\n", "GPU-like producers, idle", proxies,
             bare_sleeps(woken, 4000000), bare_sleeps(woken, 1000000));
    }
  }
}

}  // namespace bench
