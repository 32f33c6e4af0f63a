// Which NICs of two ranks are connected, and where the proxy runs.
#include <sched.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/net_fake.h"

using namespace test;

namespace {

// Two ranks, rank 0 with fake0 and fake1, rank 1 with fake2 and fake3.
std::string pair(const char* rails0, const char* rails1, const std::function<void(Ranks&)>& then = [](Ranks&) {},
                 const std::function<void(mknet_desc&)>& change = [](mknet_desc&) {}, uint64_t patience = kPatience) {
  return session(
      [&](mknet_desc& d) {
        d.rdma.devices = d.rank == 0 ? "fake0,fake1" : "fake2,fake3";
        d.rails = d.rank == 0 ? rails0 : rails1;
        change(d);
      },
      then, patience);
}

fake::Settings& four() { return fresh({fake::roce("fake0", 10), fake::roce("fake1", 11), fake::roce("fake2", 12), fake::roce("fake3", 13)}); }

// What probes run over, when none comes.
std::string ways(const char* rails0, const char* rails1) {
  four().lose = true;
  return pair(rails0, rails1, [](Ranks&) {}, [](mknet_desc&) {}, kSecond / 2);
}

// The CPUs on which the proxies of this process may run, by thread.
std::vector<std::string> proxy_cpus() {
  std::vector<std::string> all;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name, line;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
    if (name != "mknet-proxy") continue;
    std::ifstream status(task.path() / "status");
    while (std::getline(status, line))
      if (line.rfind("Cpus_allowed_list:", 0) == 0) all.push_back(line.substr(line.find('\t') + 1));
  }
  return all;
}

}  // namespace

TEST(rails_V26_same_rail_is_connected) {
  // Without rails, by position.
  CHECK(has(ways(nullptr, nullptr), "over fake0 (GID 10.9.1.10 to GID 10.9.1.12 of fake2"));
  // By number, whatever the positions.
  CHECK(has(ways("4,5", "5,4"), "over fake0 (GID 10.9.1.10 to GID 10.9.1.13 of fake3"));
  // Only what both have, of the numbers that nodes count absolutely.
  CHECK(has(ways("4,5", "5,6"), "over fake1 (GID 10.9.1.11 to GID 10.9.1.12 of fake2"));
  four();
  CHECK(pair("4,5", "5,6", [](Ranks& ranks) {
          const mknet_command c = command(1, 0, 0, 4096, 8192, 1);
          NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
          CHECK(ranks[1].wait(8192, 1));
        }) == "");
}

// Immediates are counted for pairs of NICs, not for places.
TEST(rails_unordered_over_other_places) {
  for (const char* rails1 : {"9,2", "2,9", "7,2"}) {
    four();
    CHECK(pair("2,9", rails1,
               [](Ranks& ranks) {
                 for (uint64_t i = 1; i <= 400; ++i)
                   for (int r = 0; r < 2; ++r) {
                     const mknet_command c = command(1 - r, 0, 0, 512, 8192, i);
                     NET_OK([&](mknet_error* e) { return mknet_push(ranks[r].net, &c, kPatience, nullptr, e); });
                   }
                 CHECK(ranks[0].wait(8192, 400) && ranks[1].wait(8192, 400));
                 ranks.drain();
               },
               [](mknet_desc& d) { d.rdma.relaxed = 1; }) == "");
  }
}

TEST(rails_V20_V25_errors_name_the_rail) {
  // Ranks that share no rail are connected by position, and a fabric that does not carry it is said to be the cause.
  CHECK(has(ways("0,1", "2,3"), "of fake2, MTU 4096; rail 0 here, rail 2 there"));
  four().fail["RTR"] = ETIMEDOUT;
  CHECK(has(pair("0,1", "2,3"), "another rail; GID 10.9.1.10 here, 10.9.1.12 at rank 1; this is rail 0 here and rail 2 there, which may not be connected"));
  // Of two NICs the one is named that has no way.
  four().fail["RTR fake1"] = ETIMEDOUT;
  const std::string text = pair(nullptr, nullptr);
  CHECK(has(text, "fake1: queue pair") && text.find("which may not be connected") == std::string::npos);
}

TEST(rails_are_checked) {
  const auto text = [](const char* rails) {
    four();
    mknet_desc d;
    MKNET_INIT(&d);
    d.world = 2;
    use_fake(d);
    d.rdma.devices = "fake0,fake1";
    d.rails = rails;
    mknet* net = nullptr;
    mknet_error e;
    if (mknet_create(&d, &net, &e) == MKNET_OK) mknet_destroy(net, nullptr);
    return std::string(e.text);
  };
  CHECK(text("0,1") == "" && text("7,3") == "");
  CHECK(has(text("0"), "\"0\" names 1 rail, for 2 NICs"));
  CHECK(has(text("2,2"), "rail 2 has two NICs"));
  CHECK(has(text("a,b"), "no list of rails") && has(text("1;2"), "no list of rails"));
}

TEST(proxy_runs_where_it_is_told) {
  // The mask of the thread that starts it is that of the rank's own work: the proxy leaves it.
  cpu_set_t before, own;
  CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
  int first = -1, last = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &before)) first = first < 0 ? cpu : first, last = cpu;
  CPU_ZERO(&own);
  CPU_SET(first, &own);
  CHECK(sched_setaffinity(0, sizeof own, &own) == 0);
  const std::string wanted = std::to_string(last);
  {
    Ranks ranks(2, 4096, [&](mknet_desc& d) {
      d.emu.direct = 1;
      d.cpus = wanted.c_str();
    });
    CHECK(ranks.start() == "" && ranks.verify() == "");
    // Threads of earlier tests that were joined may be listed for a moment more.
    const std::vector<std::string> both(2, wanted);
    for (int i = 0; proxy_cpus() != both && i < 60000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(proxy_cpus() == both);
    char text[1000] = "";
    mknet_describe(ranks[0].net, text, sizeof text, nullptr);
    CHECK(has(text, ("; proxy on CPUs " + wanted).c_str()));
  }
  // CPUs that there are not: it runs, and says so.
  {
    Ranks ranks(2, 4096, [&](mknet_desc& d) {
      d.emu.direct = 1;
      d.cpus = "1000-1001,1003";
    });
    CHECK(ranks.start() == "" && ranks.verify() == "");
    char text[1000] = "";
    mknet_describe(ranks[0].net, text, sizeof text, nullptr);
    CHECK(has(text, "; proxy on any CPU (pinning it: Invalid argument), not 1000-1001,1003"));
  }
  CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}
