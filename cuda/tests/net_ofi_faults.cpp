// Backend ofi over the fake libfabric. Names with V and a number are public faults, by the project's list.
#include <poll.h>

#include <cerrno>

#include "net/ofi.h"
#include "net/ofi_choice.h"
#include "tests/net_fake_ofi.h"
#include "tests/net_model.h"

using namespace mk::net;
using namespace test;
using namespace test::fabric;

namespace {

bool has(const std::string& text, const char* part) {
  if (text.find(part) != std::string::npos) return true;
  printf("not there: \"%s\" in: %s\n", part, text.c_str());
  return false;
}

// What is chosen, or why nothing.
std::string chosen(const std::function<void(mknet_ofi&)>& change = [](mknet_ofi&) {}) {
  mknet_ofi s = {};
  change(s);
  try {
    std::string text;
    for (const ofi::InfoPtr& i : ofi::choose(ofi::load(library().c_str(), nullptr), s)) text += ofi::name_of(*i) + ";";
    return text;
  } catch (const Error& e) {
    return e.what();
  }
}

// Two ranks, started and verified; the error text, or "".
std::string session(const std::function<void(Ranks&)>& then = [](Ranks&) {}, const std::function<void(mknet_desc&)>& change = [](mknet_desc&) {},
                    uint64_t patience = kPatience) {
  Ranks ranks(2, 1 << 16, [&](mknet_desc& d) {
    use_fake(d);
    change(d);
  });
  if (ranks[0].net == nullptr || ranks[1].net == nullptr) return "not created";
  std::string text = ranks.start();
  if (text.empty()) text = ranks.verify(patience);
  if (text.empty()) then(ranks);
  return text;
}

// Rank 0 sends until it fails; the error text.
std::string provoke(const std::function<void(fakefabric::Settings&)>& fault, const std::function<void(mknet_desc&)>& change = [](mknet_desc&) {}) {
  std::string text = "the session did not start";
  const std::string before = session(
      [&](Ranks& ranks) {
        {
          std::lock_guard<std::mutex> lock(control().mutex);
          fault(control().settings);
        }
        mknet_error e;
        e.code = MKNET_OK;
        for (uint64_t i = 1; i < 50 && e.code == MKNET_OK; ++i) {
          const mknet_command c = command(1, 0, 0, 256, 1024, i);
          mknet_push(ranks[0].net, &c, kPatience, nullptr, &e);
        }
        mknet_status(ranks[0].net, kPatience, &e);
        text = e.text;
      },
      change);
  return before.empty() ? text : before;
}

// What creating a network and its endpoint says when a call fails.
std::string failing(const char* call, int result) {
  fresh().fail[call] = result;
  mknet_desc d;
  MKNET_INIT(&d);
  d.world = 2;
  use_fake(d);
  uint64_t heap[8] = {};
  std::string text = "nothing failed";
  try {
    auto nics = open_ofi(d);
    Region region;
    region.base = reinterpret_cast<char*>(heap), region.bytes = sizeof heap, region.writable = true;
    nics[0]->add_region(kHeap, region);
    nics[0]->add_region(kInbox, region);
    const Blob common = nics[0]->common(1), own = nics[0]->endpoint(1);
    nics[0]->connect(1, 1, common, own, nullptr);
  } catch (const Error& e) {
    text = e.what();
  }
  CHECK(nothing_left());
  return text;
}

std::string schedule(uint64_t seed, bool ordered) {
  fakefabric::Settings& s = fresh();
  Rng rng{seed};
  s.seed = seed;
  s.max_msg_size = sizeof(Credit) + rng.below(10) * 8;
  s.tx_size = 1 + rng.below(40);
  s.busy = static_cast<uint32_t>(rng.below(3) == 0 ? 2 + rng.below(5) : 0);
  s.cq_data_size = rng.below(2) == 0 ? 4 : 8;
  s.mr_key_size = 2 + rng.below(7);
  constexpr int kModes[] = {ofi::kMrLocal, ofi::kMrVirtAddr, ofi::kMrProvKey, ofi::kMrEndpoint, ofi::kMrAllocated};
  s.mr_mode = 0;
  for (const int mode : kModes) s.mr_mode |= rng.below(2) == 0 ? mode : 0;
  s.data_progress = rng.below(2) == 0 || ordered ? ofi::kProgressAuto : ofi::kProgressManual;
  if (ordered) s.ordered = true, s.msg_order = ofi::kOrderRmaWaw, s.comp_order = ofi::kOrderData, s.max_order_waw_size = rng.below(2) == 0 ? SIZE_MAX : sizeof(Credit) + 1;
  if (rng.below(2) == 0) s.domains.push_back({"fake", "fake1", "", true, false, 99});
  ModelOptions o;
  o.ranks = 2 + static_cast<uint32_t>(seed % 2);
  o.ordered = ordered;
  if (seed % 4 == 0) o.start = (uint64_t{1} << 32) - 20;
  Model model(seed, o, [&](uint32_t rank, ClockRef, const Device&) {
    mknet_desc d;
    MKNET_INIT(&d);
    d.rank = static_cast<int32_t>(rank), d.world = static_cast<int32_t>(o.ranks);
    use_fake(d);
    auto nics = open_ofi(d);
    CHECK(nics[0]->properties().ordered == ordered);
    CHECK(!ordered || nics[0]->properties().max_write < s.max_order_waw_size);
    CHECK(nics[0]->listens() == (!ordered || s.data_progress == ofi::kProgressManual));
    return nics;
  });
  return model.run();
}

}  // namespace

TEST(ofi_schedules) {
  uint64_t wrong = 0;
  for (uint64_t seed = 1; seed <= 150 && wrong < 3; ++seed)
    for (const bool ordered : {false, true}) {
      const std::string fault = schedule(seed, ordered);
      if (!fault.empty() && ++wrong > 0) printf("seed %llu, ordered %d: %s\n", static_cast<unsigned long long>(seed), ordered, fault.c_str());
      CHECK(nothing_left());
    }
  CHECK(wrong == 0);
}

TEST(ofi_order_is_believed_only_of_nics) {
  const auto ordered = [](const std::function<void(fakefabric::Settings&)>& change) {
    fakefabric::Settings& s = fresh();
    s.msg_order = ofi::kOrderWaw, s.comp_order = ofi::kOrderData, s.max_order_waw_size = SIZE_MAX;
    change(s);
    return ofi::is_ordered(*ofi::choose(ofi::load(library().c_str(), nullptr), mknet_ofi{})[0]);
  };
  CHECK(ordered([](fakefabric::Settings&) {}));
  CHECK(!ordered([](fakefabric::Settings& s) { s.msg_order = 0; }));
  CHECK(!ordered([](fakefabric::Settings& s) { s.comp_order = 0; }));
  CHECK(!ordered([](fakefabric::Settings& s) { s.max_order_waw_size = 8; }));
  CHECK(!ordered([](fakefabric::Settings& s) { s.data_progress = ofi::kProgressManual; }));
  CHECK(!ordered([](fakefabric::Settings& s) { s.domains[0].hardware = false, s.domains[0].provider = "tcp"; }));
}

TEST(ofi_session_and_rights) {
  fresh();
  CHECK(session() == "");
  CHECK(nothing_left());
  // Heap and inbox may be written by peers; what is only sent from, by nobody.
  uint64_t open = 0;
  for (const uint64_t a : seen().access) open += (a & ofi::kRemoteWrite) != 0 ? 1 : 0;
  CHECK(open == 4 && seen().access.size() > 4);
  // Without FI_MR_LOCAL what is sent from is not registered at all; keys that we choose are random, and never the same.
  fresh().mr_mode = 0;
  CHECK(session([](Ranks& ranks) {
          for (int r = 0; r < 2; ++r) NET_OK([&](mknet_error* e) { return mknet_reset(ranks[r].net, 78, e); });
          CHECK(ranks.start() == "");
        }) == "");
  CHECK(seen().access.size() == 8 && seen().keys.size() == 8);
  if (seen().keys.size() != 8) return;
  std::sort(seen().keys.begin(), seen().keys.end());
  CHECK(std::adjacent_find(seen().keys.begin(), seen().keys.end()) == seen().keys.end() && seen().keys[0] > 1000);
  CHECK(nothing_left());
}

TEST(ofi_every_call_that_fails) {
  CHECK(has(failing("getinfo", -ENODATA), "no provider can write to memory of peers with data for their completion queues, and tell when a write is delivered"));
  CHECK(has(failing("fabric", -EPERM), "fake fake0: opening the fabric: Operation not permitted (1)"));
  CHECK(has(failing("domain", -ENODEV), "opening the domain: No such device (19)"));
  CHECK(has(failing("cq", -ENOMEM), "a completion queue of 336 entries: Cannot allocate memory"));
  CHECK(has(failing("av", -ENOMEM), "an address vector: "));
  CHECK(has(failing("endpoint", -EBUSY), "an endpoint: Device or resource busy"));
  CHECK(has(failing("bind", -EINVAL), "giving the endpoint its address vector: "));
  CHECK(has(failing("enable", -ofi::kErrorOverrun), "an endpoint: an error of libfabric's own (268)"));
  CHECK(has(failing("getname", -EINVAL), "the endpoint's address: "));
  CHECK(has(failing("reg", -ENOMEM), "registering 64 bytes: Cannot allocate memory"));
  CHECK(has(failing("insert", -EHOSTUNREACH), "of rank 1 is refused: No route to host"));
  CHECK(has(failing("insert", 0), "nothing failed"));
  CHECK(has(provoke([](fakefabric::Settings& s) { s.fail["write"] = -ENOTCONN; }), "Transport endpoint is not connected (107)"));
  CHECK(nothing_left());
  fresh();
  CHECK(has(provoke([](fakefabric::Settings& s) { s.fail["read"] = -EIO; }), "reading completions: Input/output error (5)"));
  CHECK(nothing_left());
}

TEST(ofi_V28_a_link_that_is_down) {
  fakefabric::Settings& s = fresh();
  s.domains = {{"fake", "fake0", "", true, true, 99}, {"fake", "fake1", "", true, false, 99}};
  CHECK(chosen() == "fake fake1;");
  s.domains.resize(1);
  CHECK(has(chosen(), "no provider can be used: fake fake0: its link is down"));
  CHECK(has(chosen([](mknet_ofi& o) { o.devices = "fake0"; }), "of the NICs fake0, 0 can be used: fake fake0: its link is down"));
}

// Who mistypes a name is told what there is, in a line that can be read.
TEST(ofi_a_name_that_is_none) {
  fakefabric::Settings& s = fresh();
  s.domains.clear();
  const auto add = [&](int i) { s.domains.push_back({"fake", "fake" + std::to_string(i), "", true, false, 99}); };
  add(0);
  CHECK(has(chosen([](mknet_ofi& o) { o.devices = "foo"; }), "of the NICs foo, 0 can be used: there is fake0"));
  for (int i = 1; i < 300; ++i) add(i % 100);
  CHECK(has(chosen([](mknet_ofi& o) { o.devices = "foo"; }),
            "of the NICs foo, 0 can be used: there are fake0, fake1, fake2, fake3, fake4, fake5, fake6, fake7 and 92 more"));
  s.domains.resize(2);
  s.domains[1].down = true;
  CHECK(has(chosen([](mknet_ofi& o) { o.devices = "fake1"; }), "of the NICs fake1, 0 can be used: fake fake1: its link is down"));
}

TEST(ofi_choice) {
  fakefabric::Settings& s = fresh();
  s.domains = {{"sockets", "eth0", "10.0.0.1", false, false, 1}, {"tcp", "eth0", "10.0.0.1", false, false, 2}, {"tcp", "eth1", "10.0.1.1", false, false, 2}};
  CHECK(chosen() == "tcp eth0 10.0.0.1;");
  CHECK(chosen([](mknet_ofi& o) { o.address = "10.0.1.1"; }) == "tcp eth1 10.0.1.1;");
  CHECK(chosen([](mknet_ofi& o) { o.provider = "sockets"; }) == "sockets eth0 10.0.0.1;");
  CHECK(chosen([](mknet_ofi& o) { o.devices = "eth1,eth0", o.provider = "tcp"; }) == "tcp eth1 10.0.1.1;tcp eth0 10.0.0.1;");
  CHECK(has(chosen([](mknet_ofi& o) { o.hardware = 1; }), "tcp eth0 10.0.0.1: it is no NIC, but software"));
  // NICs come before software, all of one provider, and the job's address is not theirs.
  s.domains.push_back({"efa", "rdmap0-rdm", "", true, false, 3});
  s.domains.push_back({"verbs;ofi_rxm", "mlx5_0", "10.9.0.1", true, false, 4});
  s.domains.push_back({"efa", "rdmap1-rdm", "", true, false, 3});
  s.domains.push_back({"efa", "rdmap0-rdm", "", true, false, 3});
  CHECK(chosen([](mknet_ofi& o) { o.address = "10.0.1.1"; }) == "efa rdmap0-rdm;efa rdmap1-rdm;");
  CHECK(chosen([](mknet_ofi& o) { o.hardware = 1, o.devices = "mlx5_0"; }) == "verbs;ofi_rxm mlx5_0 10.9.0.1;");
  s.max_msg_size = sizeof(Credit) - 1;
  CHECK(has(chosen(), "its messages have at most 71 bytes"));
  s.cq_data_size = 0;
  CHECK(has(chosen(), "0 bytes of data with a write, and 4 are needed"));
}

TEST(ofi_peers_that_do_not_fit) {
  fakefabric::Settings& s = fresh();
  s.domains = {{"fake", "fake0", "", true, false, 7}, {"other", "fake1", "", true, false, 8}};
  CHECK(has(session([](Ranks&) {}, [](mknet_desc& d) { d.ofi.provider = d.rank == 0 ? "fake" : "other"; }),
            "rank 0 cannot connect to rank 1 by ofi: fake fake0 here and other fake1 there speak different protocols"));
  CHECK(nothing_left());
}

// V50: as many writes and immediates as may be under way, and every queue has room for their completions.
TEST(ofi_V50_completion_queues_have_room) {
  fresh();
  CHECK(session([](Ranks& ranks) {
          for (uint64_t i = 1; i <= 2000; ++i)
            for (int r = 0; r < 2; ++r) {
              const mknet_command c = command(1 - r, 0, 0, 64, 1024, i);
              NET_OK([&](mknet_error* e) { return mknet_push(ranks[r].net, &c, kPatience, nullptr, e); });
            }
          CHECK(ranks[0].wait(1024, 2000) && ranks[1].wait(1024, 2000));
          ranks.drain();
        }) == "");
  CHECK(seen().most_queued <= seen().cq_size && seen().most_queued > 0);
}

// A receiver's proxy sleeps until its NIC wakes it, if the provider's queues have descriptors; else it looks now and then.
TEST(ofi_NICs_wake_the_proxy) {
  for (const bool descriptors : {true, false}) {
    fakefabric::Settings& s = fresh();
    s.data_progress = ofi::kProgressManual;
    s.no_descriptors = !descriptors;
    CHECK(session([&](Ranks& ranks) {
            const uint64_t most = descriptors ? 2000 : 20;
            CHECK((sends_until_woken(ranks, most) < most) == descriptors);
            CHECK((nic_wakes(ranks[1]) > 0) == descriptors);
          }) == "");
    CHECK(nothing_left());
  }
}

// Who may sleep: nobody for whom something has come, or whose writes are on their way.
TEST(ofi_sleep_is_asked_for) {
  fresh();
  uint64_t heap[2][8] = {};
  std::unique_ptr<Nic> nics[2];
  for (int32_t r = 0; r < 2; ++r) {
    mknet_desc d;
    MKNET_INIT(&d);
    d.rank = r, d.world = 2;
    use_fake(d);
    nics[r] = std::move(open_ofi(d)[0]);
    Region region;
    region.base = reinterpret_cast<char*>(heap[r]), region.bytes = sizeof heap[r], region.writable = true;
    for (const uint32_t number : {kHeap, kInbox}) nics[r]->add_region(number, region);
    CHECK(nics[r]->wait_fd() < 0);  // of a generation
    nics[r]->common(1);
  }
  for (uint32_t r = 0; r < 2; ++r) nics[r]->connect(1 - r, 1, nics[1 - r]->common(1), nics[1 - r]->endpoint(r), nullptr);
  const auto readable = [&](int r) {
    pollfd p = {nics[r]->wait_fd(), POLLIN, 0};
    return poll(&p, 1, 0) == 1;
  };
  for (int r = 0; r < 2; ++r) CHECK(nics[r]->wait_fd() >= 0 && nics[r]->may_sleep() && !readable(r));
  Write w;
  w.id = 1, w.peer = 1, w.bytes = 8, w.immediate = true;
  CHECK(nics[0]->post(&w, 1) == 1);
  CHECK(!nics[0]->may_sleep());  // it is on its way
  Completion c[8];
  size_t done = 0;
  for (int i = 0; i < 1000 && done == 0; ++i) done = nics[0]->poll(c, 8);
  CHECK(done == 1 && readable(1) && !nics[1]->may_sleep());
  CHECK(nics[1]->poll(c, 8) == 1 && c[0].kind == Completion::kArrived);
  CHECK(nics[1]->may_sleep() && !readable(1) && nics[0]->may_sleep());
  for (auto& nic : nics) nic.reset();
  CHECK(nothing_left());
}

// V53: any result but 0 is an error, also -1 with the number in errno.
TEST(ofi_V53_minus_one_and_errno) {
  fresh();
  CHECK(has(provoke([](fakefabric::Settings& s) { s.fail["write"] = -1; }), "bytes: Cannot allocate memory (12)"));
}

// V77, V80: what the provider says of a write that failed ends the network, with all that is known.
TEST(ofi_V80_errors_of_the_provider) {
  const auto said = [](int err, int prov, bool canceled) {
    fresh();
    return provoke([&](fakefabric::Settings& s) { s.bad_write = seen().writes + 20, s.bad_err = err, s.bad_prov = prov, s.canceled_first = canceled; });
  };
  const std::string text = said(ECONNRESET, 7, false);
  CHECK(has(text, "fake fake0 to rank 1 (") && has(text, "Connection reset by peer (status 104, provider's 7: the provider's words)"));
  CHECK(has(text, " s after the last success, ") && has(text, " under way: the peer is gone, or has closed"));
  CHECK(has(said(EACCES, 0, false), "(status 13, provider's 0)") && has(said(EACCES, 0, false), "of an earlier job?"));
  CHECK(has(said(ECANCELED, ENOTCONN, false), "the peer is gone, or has closed"));
  CHECK(has(said(ETIMEDOUT, 0, true), "Connection timed out (status 110"));  // the cause, not what followed from it
  CHECK(has(said(ofi::kErrorOverrun, 0, false), "a completion queue was too small"));
  CHECK(nothing_left());
}

// Writes that never end: the command's time is over, and the message names peer and NIC.
TEST(ofi_lost_writes_time_out) {
  fresh();
  const std::string text = provoke([](fakefabric::Settings& s) { s.lose = true; }, [](mknet_desc& d) {
    if (d.rank == 0) d.timeout_ns = kSecond / 2;
  });
  CHECK(has(text, "command 0 to rank 1 over fake fake0 (") && has(text, ") is not complete after "));
  CHECK(nothing_left());
}

// A key of an earlier opening is no key: memory is registered anew for each.
TEST(ofi_stale_keys_are_refused) {
  fresh();
  CHECK(session([](Ranks& ranks) {
          const auto common = Ranks::endpoint(ranks[1], -1), own = Ranks::endpoint(ranks[1], 0);
          for (int r = 0; r < 2; ++r) NET_OK([&](mknet_error* e) { return mknet_reset(ranks[r].net, 78, e); });
          mknet_error e;
          Ranks::endpoint(ranks[0], 1);
          CHECK(mknet_connect(ranks[0].net, 1, common.data(), common.size(), own.data(), own.size(), nullptr, &e) != MKNET_OK);
          CHECK(has(e.text, "its endpoint belongs to another job or generation"));
        }) == "");
}

// An endpoint whose port another process has is closed and made anew, with a completion queue that knows nothing of it.
TEST(ofi_ports_that_are_taken_leave_nothing) {
  fakefabric::Settings& s = fresh();
  s.domains[0].hardware = false, s.domains[0].address = "127.0.0.1";
  s.ports_taken = 3;
  mknet_desc d;
  MKNET_INIT(&d);
  d.world = 2;
  use_fake(d);
  d.ofi.provider = "fake", d.ofi.first_port = 20000, d.ofi.last_port = 20009;
  uint64_t heap[8] = {};
  {
    auto nics = open_ofi(d);
    Region region;
    region.base = reinterpret_cast<char*>(heap), region.bytes = sizeof heap, region.writable = true;
    nics[0]->add_region(kHeap, region);
    nics[0]->add_region(kInbox, region);
    nics[0]->common(1);
    CHECK(s.ports_taken == 0 && nics[0]->wait_fd() >= 0 && nics[0]->may_sleep());
  }
  CHECK(nothing_left());
}
