// Public faults, by the numbers of the project's list, that need whole networks of ranks; and what happens at the moment
// of a failure.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "net/rdma_port.h"
#include "tests/net_fake_efa.h"
#include "tests/net_fake_ofi.h"

using namespace test;

namespace {

void set(const std::function<void(fake::Settings&)>& f) {
  const auto lock = quiet();
  f(control().settings);
}

struct Backend {
  const char* name;
  void (*use)(mknet_desc&);
  void (*prepare)();  // the fake
  void (*spoil)();    // the next write fails, whose ever it is; NULL: there is no way to
};

const auto kFreshVerbs = [] { fresh(); };
const auto kSpoilVerbs = [] { set([](fake::Settings& s) { s.status = mk::net::verbs::kWcRetries; }); };
const auto kFreshEFA = [] { fresh_efa(); };
const auto kSpoilEFA = [] { set([](fake::Settings& s) { s.efa_status = mk::net::verbs::kEfaUnresponsive; }); };
const auto kSpoilOFI = [] {
  const std::lock_guard<std::mutex> lock(fabric::control().mutex);
  fabric::control().settings.bad_write = fabric::seen().writes + 1;
  fabric::control().settings.bad_err = ECONNRESET;
};

// Those that run here; each writes 4 KiB pieces or larger ones.
const Backend kBackends[] = {
    {"emu", [](mknet_desc& d) { d.emu.direct = 1; }, kFreshVerbs, nullptr},
    {"emu, unordered", [](mknet_desc& d) { d.emu.direct = 1, d.emu.unordered = 1, d.emu.jitter_ns = 20000; }, kFreshVerbs, nullptr},
    {"ibverbs", use_fake, kFreshVerbs, kSpoilVerbs},
    {"ibverbs, relaxed", [](mknet_desc& d) { use_fake(d), d.rdma.relaxed = 1; }, kFreshVerbs, kSpoilVerbs},
    {"ibverbs, several queue pairs", [](mknet_desc& d) { use_fake(d), d.rdma.qps = 3; }, kFreshVerbs, kSpoilVerbs},
    {"efa", [](mknet_desc& d) { use_efa(d); }, kFreshEFA, kSpoilEFA},
    {"efa, late and mixed, two NICs", [](mknet_desc& d) { use_efa(d, true); }, [] { fresh_efa().slow = control().settings.early_completion = true; }, kSpoilEFA},
    // One write fills its queue: one of an earlier life that were still counted would be seen.
    {"ofi", fabric::use_fake, [] { fabric::fresh().tx_size = 1; }, kSpoilOFI},
    {"ofi, manual progress, two NICs", fabric::use_fake,
     [] {
       fakefabric::Settings& s = fabric::fresh();
       s.data_progress = mk::net::ofi::kProgressManual;
       s.domains.push_back({"fake", "fake1", "", true, false, 99});
     },
     kSpoilOFI},
    {"ofi, ordered", fabric::use_fake,
     [] {
       fakefabric::Settings& s = fabric::fresh();
       s.ordered = true, s.msg_order = mk::net::ofi::kOrderRmaWaw, s.comp_order = mk::net::ofi::kOrderData, s.max_order_waw_size = SIZE_MAX;
     },
     kSpoilOFI},
};

// Sends one message each way and waits for both.
bool exchange(Ranks& ranks, uint64_t value) {
  for (int r = 0; r < 2; ++r) {
    std::fill(ranks[r].sources.begin(), ranks[r].sources.begin() + 4096, static_cast<char>(value + static_cast<uint64_t>(r)));
    const mknet_command c = command(1 - r, 0, 0, 4096, 8192, value);
    mknet_error e;
    if (mknet_push(ranks[r].net, &c, kPatience, nullptr, &e) != MKNET_OK) return false;
  }
  for (int r = 0; r < 2; ++r) {
    if (!ranks[r].wait(8192, value)) return false;
    const char want = static_cast<char>(value + static_cast<uint64_t>(1 - r));
    if (!std::all_of(ranks[r].data(), ranks[r].data() + 4096, [&](char x) { return x == want; })) return false;
  }
  return true;
}

std::string restart(Ranks& ranks, uint64_t job) {
  for (int r = 0; r < 2; ++r) {
    mknet_error e;
    if (mknet_reset(ranks[r].net, job, &e) != MKNET_OK) return e.text;
    std::fill(ranks[r].heap.begin(), ranks[r].heap.end(), 0);
  }
  std::string text = ranks.start();
  return text.empty() ? ranks.verify() : text;
}

}  // namespace

// After an abort by either side, and after a write that failed, the same process runs again; as often as it likes.
TEST(failure_then_again_over_every_backend) {
  for (const Backend& b : kBackends) {
    b.prepare();
    {
      Ranks ranks(2, 1 << 16, b.use);
      std::string text = ranks.start();
      if (text.empty()) text = ranks.verify();
      for (uint64_t round = 1; round <= 4 && text.empty(); ++round) {
        if (!exchange(ranks, 1)) text = "nothing came";
        ranks.drain();
        const int first = static_cast<int>(round % 2);
        mknet_error e;
        if (round <= 2 || b.spoil == nullptr) {
          mknet_abort(ranks[first].net, "as the test wants");
          if (mknet_status(ranks[first].net, kPatience, &e) != MKNET_ERROR_ABORTED) text = std::string("not aborted: ") + e.text;
        } else {
          b.spoil();
          const mknet_command c = command(1 - first, 0, 0, 4096, 8192, 2);
          NET_OK([&](mknet_error* f) { return mknet_push(ranks[first].net, &c, kPatience, nullptr, f); });
          if (mknet_status(ranks[first].net, kPatience, &e) != MKNET_ERROR_PEER) text = std::string("no failure: ") + e.text;
        }
        // The other side keeps working or fails in its turn; both are reset.
        if (text.empty()) text = restart(ranks, 100 + round);
      }
      if (text.empty() && !exchange(ranks, 1)) text = "nothing came at last";
      if (!text.empty()) printf("%s: %s\n", b.name, text.c_str());
      CHECK(text.empty());
    }
    CHECK(nothing_left() && fabric::nothing_left());
  }
}

// The proxy tells of a failure before it looks at any NIC again: kernels leave their waits at the same moment.
TEST(failure_is_told_before_anything_else) {
  struct Told {
    std::atomic<mknet*> net{nullptr};
    std::atomic<uint64_t> polls{0}, calls{0};
    std::atomic<uint32_t> fifo_said{0};
    std::string text;
  } told;
  fresh();
  const std::string text = session(
      [&](mknet_desc& d) {
        if (d.rank != 0) return;
        d.failed_user = &told;
        d.failed = [](void* user, const mknet_error* e) {
          Told& t = *static_cast<Told*>(user);
          {
            const auto lock = quiet();
            t.polls = seen().polls_after_error;
          }
          t.fifo_said = __atomic_load_n(&mknet_queue(t.net)->abort, __ATOMIC_ACQUIRE);
          t.text = e->text;
          ++t.calls;
        };
      },
      [&](Ranks& ranks) {
        told.net = ranks[0].net;
        {
          const auto lock = quiet();
          seen().polls_after_error = 0;
          control().settings.status = mk::net::verbs::kWcRetries;
        }
        const mknet_command c = command(1, 0, 0, 64, 8192, 1);
        NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
        mknet_error e;
        mknet_status(ranks[0].net, kPatience, &e);
        while (told.calls == 0) std::this_thread::yield();
        CHECK(has(e.text, "status 12") && told.text == e.text);
      });
  CHECK(text == "");
  CHECK(told.calls == 1 && told.fifo_said != 0 && told.polls == 0);
}

TEST(faults_V22_both_sides_open_at_once) {
  fresh();
  Ranks ranks(2, 1 << 16, use_fake);
  // Nobody opens first, and what was asked for twice is the same.
  std::vector<std::vector<unsigned char>> common(2), own(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      const auto first = Ranks::endpoint(ranks[r], 1 - r);
      own[static_cast<size_t>(r)] = Ranks::endpoint(ranks[r], 1 - r);
      common[static_cast<size_t>(r)] = Ranks::endpoint(ranks[r], -1);
      CHECK(first == own[static_cast<size_t>(r)]);
    });
  for (auto& t : threads) t.join();
  threads.clear();
  const auto connect = [&](int r) {
    const auto &c = common[static_cast<size_t>(1 - r)], &o = own[static_cast<size_t>(1 - r)];
    mknet_error e;
    mknet_connect(ranks[r].net, 1 - r, c.data(), c.size(), o.data(), o.size(), nullptr, &e);
    return std::string(e.text);
  };
  std::vector<std::string> texts(2);
  for (int r = 0; r < 2; ++r) threads.emplace_back([&, r] { texts[static_cast<size_t>(r)] = connect(r); });
  for (auto& t : threads) t.join();
  CHECK(texts[0] == "" && texts[1] == "");
  // A second time is refused and harms nothing.
  CHECK(has(connect(0), "rank 1 is connected already"));
  for (int r = 0; r < 2; ++r) NET_OK([&](mknet_error* e) { return mknet_start(ranks[r].net, e); });
  CHECK(ranks.verify() == "" && exchange(ranks, 1));
}

TEST(faults_V23_peer_that_came_back_is_another) {
  fresh();
  Ranks ranks(2, 1 << 16, use_fake);
  CHECK(ranks.start() == "" && ranks.verify() == "" && exchange(ranks, 1));
  // Rank 1's process ends and comes back; rank 0 has the old connection.
  mknet_destroy(ranks[1].net, nullptr);
  ranks[1].net = nullptr;
  mknet_desc d;
  MKNET_INIT(&d);
  d.rank = 1, d.world = 2, d.job = 78;
  use_fake(d);
  NET_OK([&](mknet_error* e) { return mknet_create(&d, &ranks[1].net, e); });
  for (void* base : {static_cast<void*>(ranks[1].heap.data()), static_cast<void*>(ranks[1].sources.data())}) {
    mknet_range range;
    MKNET_INIT(&range);
    range.base = base, range.bytes = 1 << 16, range.fd = -1;
    NET_OK([&](mknet_error* e) { return mknet_register(ranks[1].net, &range, nullptr, e); });
  }
  mknet_error e;
  const mknet_command c = command(1, 0, 0, 64, 8192, 2);
  mknet_push(ranks[0].net, &c, kPatience, nullptr, &e);
  mknet_status(ranks[0].net, kPatience, &e);
  CHECK(has(e.text, "status 12"));
  // Endpoints of its new life do not fit rank 0's old one.
  const auto own = Ranks::endpoint(ranks[1], 0), common = Ranks::endpoint(ranks[1], -1);
  NET_OK([&](mknet_error* x) { return mknet_reset(ranks[0].net, 77, x); });
  Ranks::endpoint(ranks[0], 1);
  CHECK(mknet_connect(ranks[0].net, 1, common.data(), common.size(), own.data(), own.size(), nullptr, &e) == MKNET_ERROR_PEER);
  CHECK(has(e.text, "another job or generation"));
  NET_OK([&](mknet_error* x) { return mknet_reset(ranks[0].net, 78, x); });
  CHECK(ranks.start() == "" && ranks.verify() == "" && exchange(ranks, 3));
}

TEST(faults_V32_path_bits_are_not_guessed) {
  fake::Settings& s = fresh({fake::infiniband("fake0", 8), fake::infiniband("fake1", 16)});
  for (auto& d : s.devices) d.ports[0].attr.lmc = 3;
  CHECK(session([](mknet_desc&) {}) == "");
  CHECK(seen().last_rtr.ah_attr.src_path_bits == 0);
}

// The kernel has devices and the library shows none: its warning about that went to stderr only.
TEST(faults_V35_library_without_the_driver) {
  char folder[] = "/tmp/mknet-test-XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  CHECK(mk::net::verbs::unseen_devices(folder) == "");
  for (const char* name : {"/mlx5_10", "/mlx5_9"}) CHECK(mkdir((std::string(folder) + name).c_str(), 0700) == 0);
  CHECK(has(mk::net::verbs::unseen_devices(folder), "; the kernel has mlx5_9, mlx5_10, so this libibverbs is older"));
  for (const char* name : {"/mlx5_10", "/mlx5_9", ""}) CHECK(rmdir((std::string(folder) + name).c_str()) == 0);
  CHECK(mk::net::verbs::unseen_devices("/nowhere/at/all") == "");
}

TEST(faults_V37_memlock_is_named) {
  rlimit before, low;
  CHECK(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
  low = before;
  low.rlim_cur = 65536;
  CHECK(setrlimit(RLIMIT_MEMLOCK, &low) == 0);
  for (const char* call : {"create_cq", "create_qp"}) {
    fake::Settings& s = fresh();
    s.fail[call] = ENOMEM;
    if (std::string(call) == "create_qp") s.devices[0].attr.max_qp = 0;  // without inline data it fails, too
    CHECK(has(session([](mknet_desc&) {}), "at most 64 KiB of memory may be locked (ulimit -l)"));
  }
  CHECK(setrlimit(RLIMIT_MEMLOCK, &before) == 0);
}

// Pieces are counted for a command, over all NICs; one that never comes has a deadline.
TEST(faults_V62_piece_that_is_lost) {
  fresh({fake::roce("fake0", 1), fake::roce("fake1", 2), fake::roce("fake2", 3), fake::roce("fake3", 4)});
  for (auto& d : control().settings.devices) d.ports[0].attr.max_msg_sz = 256;
  const std::string text = session(
      [](mknet_desc& d) {
        d.rdma.devices = d.rank == 0 ? "fake0,fake1" : "fake2,fake3";
        d.rdma.relaxed = 1;
        if (d.rank == 1) d.timeout_ns = kSecond / 2;
      },
      [](Ranks& ranks) {
        set([](fake::Settings& f) { f.lost_immediates = 1; });
        const mknet_command c = command(1, 0, 0, 2560, 8192, 1);
        NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
        mknet_error e;
        mknet_status(ranks[1].net, kPatience, &e);
        CHECK(has(e.text, "of rank 0 is not whole after") && ranks[1].flag(8192) == 0);
      });
  CHECK(text == "");
}

TEST(faults_V67_relaxed_data_with_plain_flags_is_refused) {
  fresh();
  CHECK(has(session([](mknet_desc& d) { d.rdma.relaxed = d.rank == 0 ? 1 : 0; }), "one side keeps the order of writes, the other does not"));
  // With relaxed ordering on both, no flag is written behind its data: it comes by immediate.
  fresh();
  CHECK(session([](mknet_desc& d) { d.rdma.relaxed = 1; }, [](Ranks& ranks) {
          const auto plain = [] {
            const auto lock = quiet();
            return seen().plain_writes_to_relaxed;
          };
          const uint64_t before = plain();
          CHECK(exchange(ranks, 1) && plain() == before);
        }) == "");
}

// The proxy is inside the NIC's library and does not come back: an abort must not wait for it.
TEST(faults_V79_abort_waits_for_nobody) {
  fresh();
  CHECK(session([](mknet_desc&) {}, [](Ranks& ranks) {
          set([](fake::Settings& f) { f.hold = true; });
          const mknet_command c = command(1, 0, 0, 64, 8192, 1);
          NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
          const auto held = [] {
            const auto lock = quiet();
            return seen().held;
          };
          while (held() == 0) std::this_thread::yield();
          mknet_abort(ranks[0].net, "the user's wish");
          mknet_error e;
          CHECK(mknet_status(ranks[0].net, 0, &e) == MKNET_ERROR_ABORTED && has(e.text, "the user's wish"));
          CHECK(mknet_push(ranks[0].net, &c, kPatience, nullptr, &e) == MKNET_ERROR_ABORTED);
          CHECK(__atomic_load_n(&mknet_queue(ranks[0].net)->abort, __ATOMIC_ACQUIRE) != 0);
          set([](fake::Settings& f) { f.hold = false; });
        }) == "");
  CHECK(nothing_left());
}

// Calls of all kinds while the network ends and its queue pairs go.
TEST(faults_V83_calls_while_it_fails) {
  for (int round = 0; round < 5; ++round) {
    fresh();
    Ranks ranks(2, 1 << 16, use_fake);
    CHECK(ranks.start() == "" && ranks.verify() == "");
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        for (uint64_t i = 1; !stop; ++i) {
          mknet_error e;
          const mknet_command c = command(1, 0, 0, 64, 1024 + static_cast<uint64_t>(t) * 64, i);
          uint64_t position = 0;
          if (mknet_push(ranks[0].net, &c, kSecond / 100, &position, &e) == MKNET_OK && t == 0) mknet_flush(ranks[0].net, 1, position + 1, kSecond / 100, &e);
          mknet_status(ranks[0].net, 0, &e);
        }
      });
    {
      const auto lock = quiet();
      control().kill_qps("fake0");
    }
    mknet_error e;
    CHECK(mknet_status(ranks[0].net, kPatience, &e) != MKNET_OK && has(e.text, "status 5"));
    stop = true;
    for (auto& t : threads) t.join();
  }
  CHECK(nothing_left());
}

// One peer that takes nothing does not hold up the others, nor those who wait for the end of what they send to others.
TEST(faults_V86_stuck_peer_stops_no_other) {
  for (const bool relaxed : {false, true}) {
    // Rank 0 reaches rank 1 over rail 0 and rank 2 over rail 1.
    fresh({fake::roce("fake0", 1), fake::roce("fake1", 2), fake::roce("fake2", 3), fake::roce("fake3", 4)});
    Ranks ranks(3, 1 << 16, [&](mknet_desc& d) {
      const char* const devices[] = {"fake0,fake1", "fake2", "fake3"};
      const char* const rails[] = {"0,1", "0", "1"};
      use_fake(d);
      d.rdma.devices = devices[d.rank], d.rails = rails[d.rank];
      d.rdma.relaxed = relaxed ? 1 : 0;
    });
    CHECK(ranks.start() == "" && ranks.verify() == "");
    set([](fake::Settings& f) { f.stuck = "fake0"; });
    mknet_command c = command(1, 0, 0, 1024, 8192, 1);
    NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
    uint64_t position = 0;
    for (uint64_t i = 1; i <= 500; ++i) {
      c = command(2, 0, 0, 1024, 8192, i);
      NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, &position, e); });
    }
    CHECK(ranks[2].wait(8192, 500) && ranks[1].flag(8192) == 0);
    NET_OK([&](mknet_error* e) { return mknet_flush(ranks[0].net, 2, position + 1, kPatience, e); });
    mknet_error e;
    CHECK(mknet_flush(ranks[0].net, 1, 1, 0, &e) == MKNET_ERROR_TIMEOUT && has(e.text, "commands to rank 1 below 0 are complete, waited for 1"));
    CHECK(mknet_flush(ranks[0].net, -1, position + 1, 0, &e) == MKNET_ERROR_TIMEOUT);
    set([](fake::Settings& f) { f.stuck = ""; });
    CHECK(ranks[1].wait(8192, 1));
    for (const int peer : {1, -1})
      NET_OK([&](mknet_error* f) { return mknet_flush(ranks[0].net, peer, peer < 0 ? position + 1 : 1, kPatience, f); });
    ranks.drain();
  }
}
