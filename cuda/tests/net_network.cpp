// Whole networks over emu, with proxies and producers in threads of their own.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "tests/net_pair.h"

using namespace test;

namespace {

// Each rank sends `rounds` numbered messages to each other rank; the receiver returns a credit for every one. Many
// messages and flags as in an operator: nothing is sent before the credit of the round before.
void ping(Ranks& ranks, uint64_t rounds) {
  constexpr uint64_t kBytes = 4096, kLine = kBytes + 128;
  std::atomic<bool> right{true};
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks.size(); ++r)
    for (int p = 0; p < ranks.size(); ++p) {
      if (p == r) continue;
      threads.emplace_back([&, r, p] {  // sender r to p, and receiver of p at r
        const uint64_t out = static_cast<uint64_t>(r) * kLine, in = static_cast<uint64_t>(p) * kLine;
        for (uint64_t round = 1; round <= rounds && right; ++round) {
          RankNet& k = ranks[r];
          std::fill_n(k.sources.begin() + static_cast<ptrdiff_t>(in), kBytes, static_cast<char>(round * 7 + static_cast<uint64_t>(r)));
          mknet_command c = command(p, in, out, kBytes, out + kBytes, round);
          uint64_t position = 0;
          NET_OK([&](mknet_error* e) { return mknet_push(k.net, &c, kPatience, &position, e); });
          if (!k.wait(in + kBytes, round)) right = false;
          const char want = static_cast<char>(round * 7 + static_cast<uint64_t>(p));
          if (!std::all_of(k.data() + in, k.data() + in + kBytes, [&](char x) { return x == want; })) right = false;
          c = command(p, 0, 0, 0, out + kBytes + 64, round);
          NET_OK([&](mknet_error* e) { return mknet_push(k.net, &c, kPatience, nullptr, e); });
          NET_OK([&](mknet_error* e) { return mknet_flush(k.net, -1, position + 1, kPatience, e); });
          if (!k.wait(in + kBytes + 64, round)) right = false;
        }
      });
    }
  for (auto& t : threads) t.join();
  CHECK(right);
}

void emu(mknet_desc& d, bool unordered) {
  d.emu.direct = 1;
  d.emu.unordered = unordered;
  d.emu.nics = 2;
  d.emu.piece = 1024;
  d.emu.latency_ns = 2000;
  d.emu.jitter_ns = unordered ? 30000 : 0;
  d.capacity = 8;
}

}  // namespace

TEST(network_ordered) {
  Ranks ranks(3, 1 << 16, [](mknet_desc& d) { emu(d, false); });
  CHECK(ranks.start() == "");
  CHECK(ranks.verify() == "");
  ping(ranks, 50);
  ranks.drain();
  for (int r = 0; r < 3; ++r) NET_OK([&](mknet_error* e) { return mknet_status(ranks[r].net, 0, e); });
}

TEST(network_unordered) {
  Ranks ranks(3, 1 << 16, [](mknet_desc& d) { emu(d, true); });
  CHECK(ranks.start() == "");
  CHECK(ranks.verify() == "");
  ping(ranks, 50);
  ranks.drain();
}

TEST(network_counters_pass_2_32) {
  for (const bool unordered : {false, true}) {
    Ranks ranks(2, 1 << 16, [&](mknet_desc& d) {
      emu(d, unordered);
      d.start = (uint64_t{1} << 32) - 40;
    });
    CHECK(ranks.start() == "" && ranks.verify() == "");
    ping(ranks, 60);
    CHECK(__atomic_load_n(&mknet_queue(ranks[0].net)->completed, __ATOMIC_ACQUIRE) > uint64_t{1} << 32);
  }
}

TEST(network_device_producers) {
  Ranks ranks(2, 1 << 16, [](mknet_desc& d) {
    emu(d, false);
    d.device_producers = 1;
  });
  CHECK(ranks.start() == "" && ranks.verify() == "");
  ping(ranks, 20);
}

TEST(network_lost_write_ends_it_and_reset_starts_again) {
  Ranks ranks(2, 1 << 16, [](mknet_desc& d) {
    emu(d, false);
    d.emu.drop_after = d.rank == 0 ? 20 : 0;
  });
  CHECK(ranks.start() == "" && ranks.verify() == "");
  mknet_error e;
  e.code = MKNET_OK;
  for (uint64_t i = 0; i < 100 && e.code == MKNET_OK; ++i) {
    const mknet_command c = command(1, 0, 0, 64, 1024, i + 1);
    mknet_push(ranks[0].net, &c, kPatience, nullptr, &e);
  }
  CHECK(mknet_status(ranks[0].net, kPatience, &e) == MKNET_ERROR_PEER);
  CHECK(std::string(e.text).find("emu ") == 0 && std::string(e.text).find("rank 1") != std::string::npos);
  // A producer does not wait any more, and is told why.
  const mknet_command c = command(1, 0, 0, 64, 1024, 1000);
  CHECK(mknet_push(ranks[0].net, &c, kPatience, nullptr, &e) == MKNET_ERROR_PEER);
  CHECK(mknet_flush(ranks[0].net, 1, 1000, kPatience, &e) == MKNET_ERROR_PEER);
  CHECK(mknet_drain(ranks[0].net, kPatience, &e) == MKNET_ERROR_PEER);
  // The other rank is told by the session; here by us.
  mknet_abort(ranks[1].net, "rank 0 failed");
  CHECK(mknet_status(ranks[1].net, kPatience, &e) == MKNET_ERROR_ABORTED && std::string(e.text) == "rank 0 failed");
  for (int r = 0; r < 2; ++r) {
    std::fill(ranks[r].heap.begin(), ranks[r].heap.end(), 0);
    NET_OK([&](mknet_error* f) { return mknet_reset(ranks[r].net, 78, f); });
  }
  CHECK(ranks.start() == "" && ranks.verify() == "");
  ping(ranks, 10);  // `drop_after` counts from the beginning of the NIC's life: nothing is lost any more
}

// Who aborts without a word is quoted as such, not with an empty text.
TEST(network_abort_without_a_reason) {
  for (const char* reason : {static_cast<const char*>(nullptr), ""}) {
    Ranks ranks(2, 1 << 12, [](mknet_desc& d) { emu(d, false); });
    CHECK(ranks.start() == "");
    mknet_abort(ranks[0].net, reason);
    mknet_error e;
    CHECK(mknet_status(ranks[0].net, kPatience, &e) == MKNET_ERROR_ABORTED && std::string(e.text) == "aborted");
  }
}

TEST(network_failed_is_called) {
  static std::atomic<int> calls;
  calls = 0;
  Ranks ranks(2, 1 << 16, [](mknet_desc& d) {
    emu(d, true);
    d.failed = [](void*, const mknet_error* e) { calls += e->code == MKNET_ERROR_ARGUMENT ? 1 : 100; };
  });
  CHECK(ranks.start() == "" && ranks.verify() == "");
  const mknet_command bad = command(1, 0, (1 << 16) - 32, 64, MKNET_NO_FLAG, 0);
  NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &bad, kPatience, nullptr, e); });
  mknet_error e;
  CHECK(mknet_status(ranks[0].net, kPatience, &e) == MKNET_ERROR_ARGUMENT);
  CHECK(std::string(e.text).find("not inside rank 1's heap") != std::string::npos);
  mknet_reset(ranks[0].net, 1, nullptr);  // joins the proxy
  CHECK(calls == 1);
}

TEST(network_bad_commands) {
  struct Case {
    const char* what;
    std::function<void(mknet_command&)> change;
  };
  const Case cases[] = {
      {"unknown operation", [](mknet_command& c) { c.op = 9; }},
      {"not connected", [](mknet_command& c) { c.peer = 0; }},
      {"not connected", [](mknet_command& c) { c.peer = 700; }},
      {"not registered", [](mknet_command& c) { c.region = 7; }},
      {"not registered", [](mknet_command& c) { c.region = 255; }},
      {"not inside region", [](mknet_command& c) { c.source = UINT64_MAX - 7; }},
      {"not inside region", [](mknet_command& c) { c.rows = UINT32_MAX, c.source_stride = UINT32_MAX; }},
      {"not inside rank", [](mknet_command& c) { c.target = (1 << 16) - 63; }},
      {"not an aligned word", [](mknet_command& c) { c.flag = 4; }},
      {"not an aligned word", [](mknet_command& c) { c.flag = 1 << 16; }},
  };
  for (const Case& t : cases) {
    Ranks ranks(2, 1 << 16, [](mknet_desc& d) { emu(d, false); });
    CHECK(ranks.start() == "");
    mknet_command c = command(1, 0, 0, 64, 1024, 1);
    t.change(c);
    mknet_push(ranks[0].net, &c, kPatience, nullptr, nullptr);
    mknet_error e;
    CHECK(mknet_status(ranks[0].net, kPatience, &e) == MKNET_ERROR_ARGUMENT);
    if (std::string(e.text).find(t.what) == std::string::npos) {
      ++failures();
      printf("%s: %s\n", t.what, e.text);
    }
  }
}

TEST(network_stuck_command_is_an_error) {
  Ranks ranks(2, 1 << 16, [](mknet_desc& d) {
    emu(d, false);
    d.emu.latency_ns = 1000 * kSecond;
    d.timeout_ns = kSecond / 20;
  });
  CHECK(ranks.start() == "");
  const mknet_command c = command(1, 0, 0, 64, 1024, 1);
  NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
  mknet_error e;
  CHECK(mknet_status(ranks[0].net, kPatience, &e) == MKNET_ERROR_TIMEOUT);
  CHECK(std::string(e.text).find("command 0 to rank 1 over emu 0") != std::string::npos);
}

// A producer that waits for room in the FIFO, or is about to ask for it, is told why there will be none.
TEST(network_producer_is_told_why_it_waited_in_vain) {
  Ranks ranks(2, 1 << 16, [](mknet_desc& d) {
    emu(d, false);
    d.emu.latency_ns = 1000 * kSecond;
    d.timeout_ns = kSecond / 20;
  });
  CHECK(ranks.start() == "");
  mknet_error e;
  const mknet_command c = command(1, 0, 0, 64, 1024, 1);
  while (mknet_push(ranks[0].net, &c, kPatience, nullptr, &e) == MKNET_OK) continue;  // until all rooms are full
  CHECK(e.code == MKNET_ERROR_TIMEOUT && std::string(e.text).find("command 0 to rank 1 over emu 0") != std::string::npos);
}

TEST(network_verify_names_the_path) {
  Ranks ranks(2, 1 << 16, [](mknet_desc& d) {
    emu(d, true);
    d.emu.latency_ns = d.rank == 1 ? 1000 * kSecond : 0;
  });
  CHECK(ranks.start() == "");
  const std::string text = ranks.verify(kSecond / 10);
  CHECK(text.find("no probe came from rank 1 over emu 0") != std::string::npos);
}

TEST(network_endpoints_of_others_are_refused) {
  Ranks a(2, 1 << 16, [](mknet_desc& d) { emu(d, false); });
  Ranks b(2, 1 << 16, [](mknet_desc& d) {
    emu(d, false);
    d.job = 78;
  });
  Ranks c(2, 1 << 15, [](mknet_desc& d) { emu(d, false); });
  Ranks u(2, 1 << 16, [](mknet_desc& d) { emu(d, true); });
  const auto refused = [&](Ranks& other, int rank, const char* why) {
    const auto common = Ranks::endpoint(other[rank], -1), own = Ranks::endpoint(other[rank], 1 - rank);
    mknet_error e;
    Ranks::endpoint(a[0], -1);
    const int code = mknet_connect(a[0].net, 1, common.data(), common.size(), own.data(), own.size(), nullptr, &e);
    if (code == MKNET_OK || std::string(e.text).find(why) == std::string::npos) {
      ++failures();
      printf("%s: code %d, %s\n", why, code, e.text);
    }
  };
  refused(b, 1, "another job or generation");
  refused(c, 1, "its heap has 32768 bytes");
  refused(u, 1, "order of writes");
  refused(a, 0, "the endpoint is rank 0's");
}

// Endpoint data comes from outside: truncated, flipped and stretched it is refused or harmless.
TEST(network_endpoints_are_not_believed) {
  Ranks ranks(2, 1 << 12, [](mknet_desc& d) { emu(d, false); });
  const auto common = Ranks::endpoint(ranks[1], -1), own = Ranks::endpoint(ranks[1], 0);
  Ranks::endpoint(ranks[0], -1);
  mknet_error e;
  for (size_t n = 0; n < common.size(); ++n)
    CHECK(mknet_connect(ranks[0].net, 1, common.data(), n, own.data(), own.size(), nullptr, &e) == MKNET_ERROR_PEER);
  for (size_t n = 0; n < own.size(); ++n)
    CHECK(mknet_connect(ranks[0].net, 1, common.data(), common.size(), own.data(), n, nullptr, &e) == MKNET_ERROR_PEER);
  auto longer = common;
  longer.push_back(0);
  CHECK(mknet_connect(ranks[0].net, 1, longer.data(), longer.size(), own.data(), own.size(), nullptr, &e) == MKNET_ERROR_PEER);
}

// Every byte of it with another value: it is refused, or connects, and nothing stays mapped.
TEST(network_endpoints_with_any_byte_changed) {
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    int n = 0;
    for (std::string line; std::getline(maps, line);) n += line.find("/memfd:mknet") != std::string::npos;
    return n;
  };
  Ranks ranks(2, 1 << 12, [](mknet_desc& d) { d.emu.nics = 2; });
  const auto common = Ranks::endpoint(ranks[1], -1), own = Ranks::endpoint(ranks[1], 0);
  Ranks::endpoint(ranks[0], -1);
  const int before = mapped();
  const auto connect = [&](const std::vector<unsigned char>& c, const std::vector<unsigned char>& o) {
    mknet_error e;
    if (mknet_connect(ranks[0].net, 1, c.data(), c.size(), o.data(), o.size(), nullptr, &e) == MKNET_OK) {
      NET_OK([&](mknet_error* f) { return mknet_reset(ranks[0].net, 77, f); });
      Ranks::endpoint(ranks[0], -1);
    }
    return std::string(e.text);
  };
  // But for the number of this process: another's files are not for tests.
  const int32_t pid = getpid();
  std::vector<bool> kept(common.size());
  for (size_t i = 0; i + sizeof pid <= common.size(); ++i)
    if (memcmp(&common[i], &pid, sizeof pid) == 0) std::fill_n(kept.begin() + static_cast<ptrdiff_t>(i), sizeof pid, true);
  for (const unsigned char other : {0x01, 0x02, 0xff}) {
    for (size_t i = 0; i < common.size(); ++i) {
      if (kept[i]) continue;
      auto c = common;
      c[i] ^= other;
      connect(c, own);
    }
    for (size_t i = 0; i < own.size(); ++i) {
      auto o = own;
      o[i] ^= other;
      connect(common, o);
    }
  }
  for (size_t n = 0; n < common.size(); ++n) connect({common.begin(), common.begin() + static_cast<ptrdiff_t>(n)}, own);
  // The first NIC's rail, 0, becomes the second's.
  constexpr size_t kRail = 4 + 4 + 8 + 4 + 4 + (4 + 3) + 1 + 8 + 8 + 4 + 4;
  auto c = common;
  c[kRail] ^= 1;
  CHECK(connect(c, own).find("it has two NICs of rail 1") != std::string::npos);
  NET_OK([&](mknet_error* f) { return mknet_reset(ranks[0].net, 77, f); });
  CHECK(mapped() == before);
  Ranks::endpoint(ranks[0], -1);
  CHECK(connect(common, own).empty());
}

TEST(network_arguments) {
  mknet_error e;
  mknet* net = nullptr;
  const auto code = [&](const std::function<void(mknet_desc&)>& change) {
    mknet_desc d;
    MKNET_INIT(&d);
    d.backend = "emu";
    d.world = 2;
    change(d);
    const int c = mknet_create(&d, &net, &e);
    if (c == MKNET_OK) mknet_destroy(net, nullptr);
    return c;
  };
  CHECK(code([](mknet_desc&) {}) == MKNET_OK);
  CHECK(code([](mknet_desc& d) { d.version = 0; }) == MKNET_ERROR_ARGUMENT);
  CHECK(code([](mknet_desc& d) { d.size = 8; }) == MKNET_ERROR_ARGUMENT);
  CHECK(code([](mknet_desc& d) { d.backend = "carrier pigeon"; }) == MKNET_ERROR_UNSUPPORTED);
  CHECK(code([](mknet_desc& d) { d.backend = nullptr; }) == MKNET_ERROR_ARGUMENT);
  CHECK(code([](mknet_desc& d) { d.rank = 2; }) == MKNET_ERROR_ARGUMENT);
  CHECK(code([](mknet_desc& d) { d.world = 2049; }) == MKNET_ERROR_ARGUMENT);
  CHECK(code([](mknet_desc& d) { d.world = 2048; }) == MKNET_OK);
  CHECK(code([](mknet_desc& d) { d.capacity = 12; }) == MKNET_ERROR_ARGUMENT);
  CHECK(code([](mknet_desc& d) { d.cpus = "0-3,x"; }) == MKNET_ERROR_ARGUMENT);
  CHECK(code([](mknet_desc& d) { d.cpus = "0,2-3"; }) == MKNET_OK);
  CHECK(code([](mknet_desc& d) { d.emu.bandwidth = -1; }) == MKNET_ERROR_ARGUMENT);
  CHECK(code([](mknet_desc& d) { d.emu.nics = 9; }) == MKNET_ERROR_ARGUMENT);
  CHECK(code([](mknet_desc& d) { d.emu.piece = 3; }) == MKNET_ERROR_ARGUMENT);
  CHECK(mknet_destroy(nullptr, &e) == MKNET_OK);
  CHECK(mknet_start(nullptr, &e) == MKNET_ERROR_ARGUMENT);
  char text[200];
  mknet_desc d;
  MKNET_INIT(&d);
  d.backend = "emu";
  d.world = 1;
  CHECK(mknet_usable(&d, text, sizeof text, &e) == MKNET_OK && std::string(text).find("emu 0") == 0);
}
