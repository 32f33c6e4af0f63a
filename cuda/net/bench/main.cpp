// net-bench: what the ways between two ranks do: latency, message rate, bandwidth against message size. The ways take
// turns, so that what else the machine does meets all of them.
//
//   mkrun launch --nodes 2 -- build/net-bench [-r ROUNDS] [-t MILLISECONDS] WAY...
//
// WAY: tcp (a bare socket), emu-cx7, emu-efa, ibverbs[:DEVICE], ofi[:PROVIDER]. Rank 0 prints, for each measurement,
// median, smallest and largest of the rounds. `net-bench proxy` measures the proxy of one rank alone (see proxy.cpp).
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "net/bench/pair.h"
#include "net/bench/proxy.h"

namespace bench {

namespace {

using mk::net::now_ns;

constexpr uint64_t kSmall = 8;
constexpr uint64_t kSizes[] = {4u << 10, 16u << 10, 64u << 10, 256u << 10, 1u << 20, 4u << 20, 16u << 20};

// What rank 0 asks of rank 1.
struct Order {
  uint32_t way;
  uint32_t echo;   // 1: answer each of `count` flags; 0: answer the last
  uint64_t count;  // 0: the end
};

struct Measured {
  std::string way;
  std::vector<double> latency_us, rate, bandwidth[std::size(kSizes)];
};

class Bench {
 public:
  Bench(const Control& control, std::vector<std::unique_ptr<Way>> ways, uint64_t slice_ns)
      : control_(control), ways_(std::move(ways)), sent_(ways_.size()), got_(ways_.size()), slice_ns_(slice_ns) {}

  // Rank 1: does what it is asked for.
  void serve() {
    for (;;) {
      Order o;
      control_.receive(&o, sizeof o);
      if (o.count == 0) return;
      Way& w = *ways_[o.way];
      if (o.echo != 0)
        for (uint64_t i = 0; i < o.count; ++i) w.wait(++got_[o.way]), w.write(kSmall, ++sent_[o.way]);
      else
        w.wait(got_[o.way] += o.count), w.write(kSmall, ++sent_[o.way]);
    }
  }
  void end() { order(0, 0, 0); }

  // Half of a round trip of a small write with its flag: the median of as many as the time allows.
  double latency_us(uint32_t way) {
    const uint64_t count = fit([&](uint64_t n) { return round_trips(way, n, nullptr); }, 1u << 14);
    std::vector<double> all;
    round_trips(way, count, &all);
    std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(all.size() / 2), all.end());
    return all[all.size() / 2] / 2e3;
  }

  // Writes with flags per second, until the last has arrived and its answer is back.
  double rate(uint32_t way, uint64_t bytes) {
    const uint64_t count = fit([&](uint64_t n) { return stream(way, bytes, n); }, 1u << 18);
    return static_cast<double>(count) / (static_cast<double>(stream(way, bytes, count)) / 1e9);
  }

 private:
  // How many fill the slice of time, by trying with more and more.
  template <class F>
  uint64_t fit(F&& run, uint64_t most) const {
    for (uint64_t n = 1;; n *= 4) {
      const uint64_t took = run(n);
      if (took >= slice_ns_ / 8 || n >= most) return std::max<uint64_t>(1, std::min(most, n * slice_ns_ / std::max<uint64_t>(took, 1)));
    }
  }
  void order(uint32_t way, uint32_t echo, uint64_t count) const {
    const Order o = {way, echo, count};
    control_.send(&o, sizeof o);
  }
  uint64_t round_trips(uint32_t way, uint64_t count, std::vector<double>* all) {
    order(way, 1, count);
    const uint64_t begun = now_ns();
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t t = now_ns();
      ways_[way]->write(kSmall, ++sent_[way]);
      ways_[way]->wait(++got_[way]);
      if (all != nullptr) all->push_back(static_cast<double>(now_ns() - t));
    }
    return now_ns() - begun;
  }
  uint64_t stream(uint32_t way, uint64_t bytes, uint64_t count) {
    order(way, 0, count);
    const uint64_t begun = now_ns();
    for (uint64_t i = 0; i < count; ++i) ways_[way]->write(bytes, ++sent_[way]);
    ways_[way]->wait(++got_[way]);
    return now_ns() - begun;
  }

  const Control& control_;
  std::vector<std::unique_ptr<Way>> ways_;
  std::vector<uint64_t> sent_, got_;  // flags, by way
  const uint64_t slice_ns_;
};

void print(const char* what, std::vector<double> values, const char* unit) {
  std::sort(values.begin(), values.end());
  printf("  %-22s %10.2f  %10.2f  %10.2f  %s\n", what, values[values.size() / 2], values.front(), values.back(), unit);
}

const char* need_env(const char* name) {
  const char* value = getenv(name);
  if (value == nullptr) die("%s is not set: start it by mkrun launch --nodes 2 -- net-bench ...", name);
  return value;
}

// Whether both ranks have a way; rank 0 says why not.
bool both_have(const std::string& spec, const Control& control) {
  const std::string why = spec == "tcp" ? "" : missing(spec);
  control.send_blob(std::vector<char>(why.begin(), why.end()));
  const std::vector<char> theirs = control.receive_blob();
  if (control.rank() == 0 && (!why.empty() || !theirs.empty()))
    printf("%-10s is not measured: %s\n", spec.c_str(), why.empty() ? std::string(theirs.begin(), theirs.end()).c_str() : why.c_str());
  return why.empty() && theirs.empty();
}

int pair(int rounds, uint64_t slice_ns, std::vector<std::string> specs) {
  const int rank = atoi(need_env("RANK"));
  if (atoi(need_env("WORLD_SIZE")) != 2) die("two ranks are needed");
  const Control control(rank, need_env("MASTER_ADDR"), need_env("MASTER_PORT"));
  specs.erase(std::remove_if(specs.begin(), specs.end(), [&](const std::string& s) { return !both_have(s, control); }), specs.end());
  std::vector<std::unique_ptr<Way>> ways;
  for (const std::string& spec : specs) {
    ways.push_back(spec == "tcp" ? open_socket(control, need_env("MASTER_ADDR")) : open_mknet(spec, control));
    if (rank == 0) printf("%-10s %s\n", spec.c_str(), ways.back()->describe().c_str());
  }
  std::vector<Measured> all(specs.size());
  Bench b(control, std::move(ways), slice_ns);
  if (rank != 0) return b.serve(), 0;
  for (int round = 0; round < rounds; ++round)
    for (uint32_t w = 0; w < specs.size(); ++w) {
      all[w].latency_us.push_back(b.latency_us(w));
      all[w].rate.push_back(b.rate(w, kSmall) / 1e3);
      for (size_t s = 0; s < std::size(kSizes); ++s)
        all[w].bandwidth[s].push_back(b.rate(w, kSizes[s]) * static_cast<double>(kSizes[s]) / 1e6);
    }
  b.end();
  for (size_t w = 0; w < specs.size(); ++w) {
    printf("%-24s %10s  %10s  %10s\n", specs[w].c_str(), "median", "smallest", "largest");
    print("latency, 8 B + flag", all[w].latency_us, "us");
    print("messages, 8 B + flag", all[w].rate, "1000/s");
    for (size_t s = 0; s < std::size(kSizes); ++s) {
      char what[32];
      snprintf(what, sizeof what, "%llu KiB", static_cast<unsigned long long>(kSizes[s] >> 10));
      print(what, all[w].bandwidth[s], "MB/s");
    }
  }
  return 0;
}

}  // namespace

}  // namespace bench

int main(int argc, char** argv) {
  int rounds = 5;
  uint64_t slice_ns = 100000000;
  for (int option; (option = getopt(argc, argv, "r:t:")) != -1;) {
    if (option == 'r') rounds = std::max(1, atoi(optarg));
    else if (option == 't') slice_ns = strtoull(optarg, nullptr, 10) * 1000000;
    else return 2;
  }
  std::vector<std::string> specs(argv + optind, argv + argc);
  if (specs.empty()) bench::die("which ways? tcp, emu-cx7, emu-efa, ibverbs[:DEVICE], ofi[:PROVIDER]; or proxy");
  if (specs[0] == "proxy") return bench::measure_proxy(), 0;
  return bench::pair(rounds, slice_ns, specs);
}
