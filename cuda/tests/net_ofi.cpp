// Backend ofi over the real libfabric and its provider tcp, within this host. Its faults on demand are in net_ofi_faults.cpp.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "net/ofi.h"
#include "net/ofi_choice.h"
#include "tests/net_model.h"
#include "tests/net_pair.h"

using namespace mk::net;
using namespace test;

namespace {

// libfabric is there; where tests must not be left out (CI), its lack is a failure.
bool installed() {
  static const bool there = [] {
    try {
      ofi::load(nullptr, nullptr);
      return true;
    } catch (const Error& e) {
      printf("not run, %s\n", e.what());
      CHECK(getenv("CI") == nullptr);
      return false;
    }
  }();
  return there;
}

void use_tcp(mknet_desc& d) {
  d.backend = "ofi";
  d.ofi.provider = "tcp";
  d.ofi.address = "127.0.0.1";
}

bool has(const std::string& text, const char* part) {
  if (text.find(part) != std::string::npos) return true;
  printf("not there: \"%s\" in: %s\n", part, text.c_str());
  return false;
}

std::string refusal(const std::function<void(mknet_desc&)>& change) {
  mknet_desc d;
  MKNET_INIT(&d);
  d.backend = "ofi";
  d.world = 1;
  change(d);
  char text[1024] = "";
  mknet_error e;
  return mknet_usable(&d, text, sizeof text, &e) == MKNET_OK ? std::string("usable: ") + text : e.text;
}

}  // namespace

TEST(ofi_session_over_tcp) {
  if (!installed()) return;
  Ranks ranks(3, 1 << 20, use_tcp);
  for (const uint64_t job : {77, 78}) {  // the second after a reset
    CHECK(ranks.start() == "");
    CHECK(ranks.verify() == "");
    constexpr uint64_t kBytes = 100000, kFlag = 900000;
    for (int r = 0; r < 3; ++r) {
      const int peer = (r + 1) % 3;
      std::fill(ranks[r].sources.begin(), ranks[r].sources.end(), static_cast<char>(r + job));
      for (uint64_t i = 1; i <= 20; ++i) {
        const mknet_command c = command(peer, i * 8, i * 8, kBytes, kFlag, job * 100 + i);
        NET_OK([&](mknet_error* e) { return mknet_push(ranks[r].net, &c, kPatience, nullptr, e); });
      }
    }
    for (int r = 0; r < 3; ++r) {
      CHECK(ranks[r].wait(kFlag, job * 100 + 20));
      const char from = static_cast<char>((r + 2) % 3 + job);
      CHECK(ranks[r].data()[8] == from && ranks[r].data()[kBytes + 159] == from);
    }
    ranks.drain();
    for (int r = 0; r < 3; ++r) NET_OK([&](mknet_error* e) { return mknet_reset(ranks[r].net, job + 1, e); });
  }
}

// The provider shm has a file for each endpoint, which would outlive a process that is killed: there is none once all peers have it.
// Numbers of endpoints have one digit or two, and so are their addresses of different lengths.
TEST(ofi_shm_leaves_no_files) {
  if (!installed()) return;
  const auto use_shm = [](mknet_desc& d) { d.backend = "ofi", d.ofi.provider = "shm"; };
  if (!has(refusal(use_shm), "usable: shm ")) {
    CHECK(getenv("CI") == nullptr);
    return;
  }
  const std::string mine = std::to_string(getpid()) + ":";
  const auto files = [&] {
    int n = 0;
    DIR* dir = opendir("/dev/shm");
    for (const dirent* e = nullptr; dir != nullptr && (e = readdir(dir)) != nullptr;) n += mine.compare(0, mine.size(), e->d_name, mine.size()) == 0;
    if (dir != nullptr) closedir(dir);
    return n;
  };
  Ranks ranks(3, 1 << 16, use_shm);
  for (uint64_t job = 77; job < 82; ++job) {
    CHECK(ranks.start() == "");
    CHECK(files() == 3);
    CHECK(ranks.verify() == "");
    CHECK(files() == 0);
    for (int r = 0; r < 3; ++r) {
      const mknet_command c = command((r + 1) % 3, 8, 8, 20000, 60000, job);
      ranks[r].sources[8] = static_cast<char>(r + job);
      NET_OK([&](mknet_error* e) { return mknet_push(ranks[r].net, &c, kPatience, nullptr, e); });
    }
    for (int r = 0; r < 3; ++r) CHECK(ranks[r].wait(60000, job) && ranks[r].data()[8] == static_cast<char>((r + 2) % 3 + job));
    ranks.drain();
    for (int r = 0; r < 3; ++r) NET_OK([&](mknet_error* e) { return mknet_reset(ranks[r].net, job + 1, e); });
  }
}

TEST(ofi_schedules_over_tcp) {
  if (!installed()) return;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ModelOptions o;
    o.ranks = 2 + static_cast<uint32_t>(seed % 2);
    o.ordered = false;
    o.patience_ns = kPatience;
    if (seed == 2) o.start = (uint64_t{1} << 32) - 20;
    Model model(seed, o, [&](uint32_t rank, ClockRef, const Device&) {
      mknet_desc d;
      MKNET_INIT(&d);
      d.rank = static_cast<int32_t>(rank), d.world = static_cast<int32_t>(o.ranks);
      use_tcp(d);
      return open_ofi(d);
    });
    const std::string fault = model.run();
    if (!fault.empty()) printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), fault.c_str());
    CHECK(fault.empty());
  }
}

namespace {

// Two endpoints in one thread, which moves each when it wants to.
struct Two {
  std::vector<uint64_t> memory[2] = {std::vector<uint64_t>(1 << 17), std::vector<uint64_t>(1 << 17)};
  std::unique_ptr<Nic> nic[2];

  Two() {
    Blob common[2], own[2];
    for (uint32_t r = 0; r < 2; ++r) {
      mknet_desc d;
      MKNET_INIT(&d);
      d.rank = static_cast<int32_t>(r), d.world = 2;
      use_tcp(d);
      nic[r] = std::move(open_ofi(d)[0]);
      Region region;
      region.base = reinterpret_cast<char*>(memory[r].data()), region.bytes = memory[r].size() * 8, region.writable = true;
      nic[r]->add_region(kHeap, region);
      nic[r]->add_region(kInbox, region);
      common[r] = nic[r]->common(1);
      own[r] = nic[r]->endpoint(1 - r);
    }
    for (uint32_t r = 0; r < 2; ++r) nic[r]->connect(1 - r, 1, common[1 - r], own[1 - r], nullptr);
  }

  static Write write(uint64_t id, uint64_t bytes) {
    Write w;
    w.id = id, w.peer = 1, w.bytes = bytes, w.immediate = true, w.imm = static_cast<uint32_t>(id);
    return w;
  }
  // Endpoint 0 posts; both move until it is taken.
  void post(const Write& w) {
    Completion c[8];
    for (int i = 0; nic[0]->post(&w, 1) == 0 && i < 10000000; ++i)
      for (auto& n : nic) CHECK(n->poll(c, 8) == 0);
  }
  // Completions of endpoint 0 while it alone moves, or both do.
  size_t completions(bool both, int polls) {
    size_t found = 0;
    Completion c[8];
    for (int i = 0; i < polls && found == 0; ++i) {
      if (both) nic[1]->poll(c, 8);
      found += nic[0]->poll(c, 8);
    }
    return found;
  }
};

}  // namespace

// A completion says that the bytes are in the peer's memory: none comes while the peer takes nothing.
TEST(ofi_complete_means_delivered) {
  if (!installed()) return;
  Two two;
  two.post(Two::write(1, 8));
  CHECK(two.completions(true, 10000000) == 1);
  two.memory[0][0] = 5;
  two.post(Two::write(2, 8));
  CHECK(two.completions(false, 3000) == 0);
  CHECK(two.memory[1][0] == 0);
  CHECK(two.completions(true, 10000000) == 1);
  CHECK(two.memory[1][0] == 5);
}

// A proxy that sleeps is woken by what arrives.
TEST(ofi_provider_wakes_the_proxy) {
  if (!installed()) return;
  Ranks ranks(2, 1 << 16, use_tcp);
  CHECK(ranks.start() == "" && ranks.verify() == "");
  constexpr uint64_t kMost = 2000;
  CHECK(sends_until_woken(ranks, kMost) < kMost);
  ranks.drain();
}

// The peer closes with writes under way: the error names provider, both addresses, status and what it means.
TEST(ofi_peer_closes) {
  if (!installed()) return;
  Two two;
  two.post(Two::write(1, 8));
  CHECK(two.completions(true, 10000000) == 1);
  two.post(Two::write(2, 1 << 20));
  two.nic[1].reset();
  std::string text = "nothing";
  try {
    two.completions(false, 10000000);
  } catch (const Error& e) {
    text = e.what();
  }
  CHECK(has(text, "tcp;ofi_rxm") && has(text, "to rank 1 (127.0.0.1:") && has(text, "the peer is gone, or has closed"));
  CHECK(has(text, " s after the last success, 1 write done, 1 under way"));
}

// What libfabric links takes SIGINT, SIGTERM and the signals of faults when it is loaded; the program's handlers stay.
TEST(ofi_leaves_signal_handlers_alone) {
  if (!installed()) return;
  struct sigaction a;
  for (const int s : {SIGINT, SIGTERM, SIGABRT, SIGILL}) {
    CHECK(sigaction(s, nullptr, &a) == 0);
    CHECK(a.sa_handler == SIG_DFL || a.sa_handler == SIG_IGN);
  }
}

TEST(ofi_choice_of_providers) {
  if (!installed()) return;
  CHECK(has(refusal([](mknet_desc&) {}), "usable: tcp;ofi_rxm "));
  CHECK(has(refusal([](mknet_desc& d) { d.ofi.address = "127.0.0.1"; }), " lo 127.0.0.1: libfabric 1."));
  CHECK(has(refusal([](mknet_desc& d) { d.ofi.address = "127.0.0.3"; }), " lo 127.0.0.3: libfabric 1."));
  CHECK(has(refusal([](mknet_desc& d) { d.ofi.address = "192.0.2.77"; }), "its address is not 192.0.2.77"));
  CHECK(has(refusal([](mknet_desc& d) { d.ofi.devices = "lo"; }), "usable: tcp;ofi_rxm "));
  CHECK(has(refusal([](mknet_desc& d) { d.ofi.devices = "lo,nothere0"; }), "of the NICs lo,nothere0, 1 can be used: there "));
  CHECK(has(refusal([](mknet_desc& d) { d.ofi.provider = "nothere"; }), "the provider nothere is not here, or not one that can write"));
  CHECK(has(refusal([](mknet_desc& d) { d.ofi.library = "/nothere/libfabric.so.1"; }), "no libfabric: /nothere/libfabric.so.1"));
  CHECK(has(refusal([](mknet_desc& d) { d.ofi.library = "libc.so.6"; }), "libc.so.6 has no fi_getinfo of version FABRIC_1.3"));
}

// Ranks at two ports: two get one each, the third is told. Ports that others of this machine have are passed over.
TEST(ofi_listens_in_the_range_of_ports) {
  if (!installed()) return;
  uint64_t word = 0;
  const auto listen = [&](uint32_t first) {
    mknet_desc d;
    MKNET_INIT(&d);
    d.world = 2;
    use_tcp(d);
    d.ofi.first_port = first, d.ofi.last_port = first + 1;
    std::unique_ptr<Nic> nic = std::move(open_ofi(d)[0]);
    Region region;
    region.base = reinterpret_cast<char*>(&word), region.bytes = sizeof word, region.writable = true;
    nic->add_region(kHeap, region);
    nic->common(1);
    return nic;
  };
  for (uint32_t first = 20001; first < 20101; first += 2) {
    std::vector<std::unique_ptr<Nic>> nics;
    std::string text;
    try {
      for (int i = 0; i < 3; ++i) nics.push_back(listen(first));
    } catch (const Error& e) {
      text = e.what();
    }
    CHECK(nics.size() <= 2 && has(text, "an endpoint at a port of 20") && has(text, "Address already in use"));
    if (nics.size() == 2) return;
  }
  CHECK(false);  // not one pair of ports was free
}

// What "auto" asks before it loads libfabric.
TEST(ofi_nics_that_the_kernel_knows) {
  char root[] = "/tmp/ofi-classes-XXXXXX";
  CHECK(mkdtemp(root) != nullptr);
  const std::string classes = root, nic = classes + "/cxi/cxi0";
  CHECK(!ofi::kernel_has_nics(classes));
  CHECK(mkdir((classes + "/cxi").c_str(), 0700) == 0 && !ofi::kernel_has_nics(classes));
  CHECK(mkdir(nic.c_str(), 0700) == 0 && ofi::kernel_has_nics(classes));
  for (const std::string& dir : {nic, classes + "/cxi", classes}) rmdir(dir.c_str());
}

TEST(ofi_places) {
  const std::vector<std::string> all = ofi::places("/efa");
  CHECK(all[0] == "/efa/lib/libfabric.so.1" && all[1] == "/efa/lib64/libfabric.so.1" && all[2] == "libfabric.so.1");
  CHECK(ofi::places(nullptr)[0] == "libfabric.so.1" && ofi::places(nullptr)[1] == "/opt/amazon/efa/lib/libfabric.so.1");
}
