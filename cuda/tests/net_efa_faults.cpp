// Faults of backend efa, over the fake's EFA devices. Names with V and a number are public faults, by the project's list.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "net/efa.h"
#include "net/efa_device.h"
#include "net/emu_wire.h"
#include "tests/net_fake_efa.h"

using namespace mk::net;
using namespace test;

TEST(efa_V10_V70_address_handles_on_both_sides) {
  fresh_efa();
  CHECK(efa_session() == "");
  const verbs::AhAttr& a = seen().last_handle;
  CHECK(a.is_global == 1 && a.port_num == 1 && a.dlid == 0 && verbs::text_of(a.dgid) == "fe80::234:56ff:fe00:1" && seen().handles == 2);
  fresh_efa();
  const std::string text = efa_provoke([](fake::Settings& s) { s.forget_handles = true; });
  CHECK(has(text, "status 11, EFA status 14") && has(text, "the peer has no address handle for this device"));
}

TEST(efa_V16_no_reads_is_no_limit) {
  fake::Settings& s = fresh_efa();
  for (const auto& d : s.devices) CHECK(d.attr.max_qp_rd_atom == 0 && d.attr.max_qp_init_rd_atom == 0);
  CHECK(efa_session() == "");
}

TEST(efa_V17_settings_are_read_back) {
  fresh_efa().drop_key = true;
  CHECK(has(efa_session(), "was not set up as asked"));
}

// Whether immediates take receives is agreed on before anything is sent; if a peer breaks that, it is said.
TEST(efa_V71_unsolicited_immediates) {
  fresh_efa();
  CHECK(efa_session() == "" && seen().last_efa_qp.flags == 0);
  Ranks ranks(2, 4096, with_efa(kAsIs));
  auto common = Ranks::endpoint(ranks[1], -1);
  const auto own = Ranks::endpoint(ranks[1], 0);
  Ranks::endpoint(ranks[0], 1);
  const std::string nic = "efa10";  // the flag stands before the device's name and its length
  const auto at = std::search(common.begin(), common.end(), nic.begin(), nic.end()) - common.begin();
  common[static_cast<size_t>(at) - 5] = 1;
  mknet_error e;
  CHECK(mknet_connect(ranks[0].net, 1, common.data(), common.size(), own.data(), own.size(), nullptr, &e) == MKNET_ERROR_PEER);
  CHECK(has(e.text, "its immediates take no receives, those of this rank do"));
  fresh_efa();
  std::string text;
  CHECK(efa_session(kAsIs, [&](Ranks& pair) {
          {
            const auto lock = quiet();
            control().settings.unsolicited = true;
          }
          const mknet_command c = command(1, 0, 0, 256, 1024, 1);
          mknet_push(pair[0].net, &c, kPatience, nullptr, &e);
          mknet_status(pair[1].net, kPatience, &e);
          text = e.text;
        }) == "");
  CHECK(has(text, "an immediate came that took no receive"));
}

TEST(efa_V73_security_group) {
  fresh_efa();
  CHECK(has(efa_provoke([](fake::Settings& s) { s.efa_status = verbs::kEfaUnreachable; }), "does the security group allow all traffic from and to itself"));
  // The device says nothing at all: the probe does.
  fresh_efa().lose = true;
  const std::string text = efa_session(kAsIs, [](Ranks&) {}, kSecond / 2);
  CHECK(has(text, "no probe came from rank") && has(text, "does the security group allow"));
}

TEST(efa_completion_errors_name_all) {
  const struct {
    uint32_t status;
    int verbs;
    const char* hint;
  } cases[] = {{verbs::kEfaBadHandle, 2, "address handle"},   {verbs::kEfaBadLocalKey, 4, "own memory region"},
               {verbs::kEfaTooLong, 1, "of this size"},       {verbs::kEfaBadAddress, 10, "of an earlier job?"},
               {verbs::kEfaAborted, 16, "reset"},             {verbs::kEfaBadQp, 15, "has ended"},
               {verbs::kEfaNotReady, 13, "receive posted"},   {verbs::kEfaUnresponsive, 20, "does not answer any more"},
               {verbs::kEfaFeatures, 9, "same versions"}};
  for (const auto& c : cases) {
    fresh_efa();
    const std::string text = efa_provoke([&](fake::Settings& s) { s.efa_status = c.status; });
    CHECK(has(text, "efa00 to rank 1 (fe80::234:56ff:fe00:1 queue pair ") && has(text, " to fe80::234:56ff:fe00:11 queue pair ") && has(text, "of efa10"));
    CHECK(has(text, format("(status %d, EFA status %u)", c.verbs, c.status).c_str()) && has(text, c.hint));
  }
}

TEST(efa_V55_flushes_are_not_the_cause) {
  fresh_efa();
  CHECK(has(provoke_in(with_efa(kAsIs), [](fake::Settings&) { control().kill_qps("efa00"); }), "status 5"));
}

TEST(efa_V62_a_completion_counts_once) {
  fresh_efa();
  CHECK(has(efa_provoke([](fake::Settings& s) { s.repeat_completion = true; }), "which is not under way"));
}

TEST(efa_lost_completion_has_a_deadline) {
  fresh_efa();
  const std::string text = efa_provoke([](fake::Settings& s) { s.lose = true; }, [](mknet_desc& d) {
    if (d.rank == 0) d.timeout_ns = kSecond / 10;
  });
  CHECK(has(text, "is not complete after") && has(text, "to rank 1 over efa00"));
}

// Every branch of failure, with sanitizers: an error with a text, and nothing left.
TEST(efa_V35_V37_V43_failures_of_set_up) {
  for (const char* call : {"get_device_list", "open_device", "query_device", "query_port", "efadv_query_device", "query_gid", "alloc_pd", "reg_mr"}) {
    fresh_efa().fail[call] = ENOMEM;
    CHECK(creation_of(with_efa(kAsIs)) != "");
    CHECK(nothing_left());
  }
  for (const char* call : {"create_cq", "create_qp", "reg_mr", "qp_to_qp_ex", "INIT", "post_recv", "RTR", "RTS", "create_ah"}) {
    fresh_efa();
    Ranks ranks(2, 4096, with_efa(kAsIs));
    {
      const auto lock = quiet();
      control().settings.fail[call] = ENOMEM;
    }
    mknet_error e;
    uint64_t n = 0;
    const int code = mknet_endpoint(ranks[0].net, 1, nullptr, &n, &e);
    if (std::string(call) != "create_ah") CHECK(code != MKNET_OK && seen().live_qps == 0 && seen().live_cqs == 0);
    CHECK(has(code != MKNET_OK ? e.text : ranks.connect(), "efa"));
    // Again, all is well: nothing half made stayed.
    for (int r = 0; r < 2; ++r) NET_OK([&](mknet_error* f) { return mknet_reset(ranks[r].net, 78, f); });
    CHECK(ranks.start() == "" && ranks.verify() == "");
  }
  CHECK(nothing_left());
}

TEST(efa_V77_V80_every_verb_that_fails_is_seen) {
  for (const char* call : {"wr_start", "wr_complete", "start_poll", "next_poll", "post_recv"}) {
    fresh_efa();
    // Either rank may be the one that meets it.
    std::string text;
    CHECK(efa_session(kAsIs, [&](Ranks& ranks) {
            {
              const auto lock = quiet();
              control().settings.fail[call] = EIO;
            }
            mknet_error e;
            e.code = MKNET_OK;
            for (uint64_t i = 1; i < 100000 && e.code == MKNET_OK; ++i) {
              const mknet_command c = command(1, 0, 0, 256, 1024, i);
              for (int r = 1; r >= 0 && e.code == MKNET_OK; --r) mknet_status(ranks[r].net, 0, &e);
              if (e.code == MKNET_OK) mknet_push(ranks[0].net, &c, kPatience, nullptr, &e);
            }
            text = e.text;
          }) == "");
    CHECK(has(text, "efa") && has(text, "Input/output error"));
  }
  fresh_efa().no_receives = true;
  CHECK(has(efa_session(), "EFA status 10"));
}

// Device memory: by dma-buf, or refused with the reason.
TEST(efa_V38_V43_device_memory) {
  const auto text = [](int fd, bool fails) {
    fresh_efa();
    if (fails) control().settings.fail["reg_dmabuf_mr"] = EOPNOTSUPP;
    mknet_desc d;
    MKNET_INIT(&d);
    d.world = 2;
    use_efa(d);
    Region r;
    std::vector<uint64_t> memory(512);
    r.base = reinterpret_cast<char*>(memory.data()), r.bytes = 4096, r.memory = MKNET_DEVICE, r.fd = fd, r.writable = true;
    try {
      const auto nics = open_efa(d);
      nics[0]->add_region(kHeap, r);
      return nics[0]->describe();
    } catch (const Error& e) {
      return std::to_string(e.code) + " " + e.what();
    }
  };
  const int fd = new_memfd("device", 4096);
  CHECK(has(text(fd, false), "heap dma-buf"));
  CHECK(has(text(-1, false), "2 efa00: registering 4096 bytes of device memory: it came without a dma-buf"));
  CHECK(has(text(fd, true), "2 efa00: registering 4096 bytes of device memory: dma-buf: Operation not supported"));
  close(fd);
  CHECK(nothing_left());
}

TEST(efa_V82_V85_reset_makes_all_anew) {
  fresh_efa();
  Ranks ranks(2, 1 << 16, with_efa(kAsIs));
  CHECK(ranks.start() == "" && ranks.verify() == "");
  const auto stale_common = Ranks::endpoint(ranks[1], -1), stale = Ranks::endpoint(ranks[1], 0);
  {
    const auto lock = quiet();
    control().kill_qps("efa00");
  }
  for (int r = 0; r < 2; ++r) NET_OK([&](mknet_error* e) { return mknet_reset(ranks[r].net, 99, e); });
  CHECK(seen().live_qps == 0 && seen().live_cqs == 0 && seen().live_ahs == 0);
  mknet_error e;
  Ranks::endpoint(ranks[0], 1);
  CHECK(mknet_connect(ranks[0].net, 1, stale_common.data(), stale_common.size(), stale.data(), stale.size(), nullptr, &e) == MKNET_ERROR_PEER);
  CHECK(has(e.text, "another job or generation"));
  CHECK(ranks.start() == "" && ranks.verify() == "");
  // Keys are drawn again: what knew the old ones reaches nobody.
  CHECK(Ranks::endpoint(ranks[1], 0) != stale);
}

// Peers of an earlier generation are gone with their address handles: nothing is sent to them, and no message says they are there.
TEST(efa_knows_no_peer_behind_a_disconnect) {
  fresh_efa();
  std::vector<uint64_t> memory[2];
  std::unique_ptr<Nic> nics[2];
  for (int r = 0; r < 2; ++r) {
    mknet_desc d;
    MKNET_INIT(&d);
    d.rank = r, d.world = 2;
    use_efa(d);
    nics[r] = std::move(open_efa(d).at(0));
    memory[r].assign(512, 0);
    Region region;
    region.base = reinterpret_cast<char*>(memory[r].data()), region.bytes = 4096, region.writable = true;
    for (const uint32_t number : {kHeap, kInbox, kOutbox}) nics[r]->add_region(number, region);
  }
  const Blob common[2] = {nics[0]->common(1), nics[1]->common(1)};
  nics[0]->connect(1, 1, common[1], nics[1]->endpoint(0), nullptr);
  CHECK(has(nics[0]->path(1, 0), "of efa10"));
  Write w;
  w.id = 4, w.peer = 1, w.bytes = 8;
  for (const bool reopened : {false, true}) {
    nics[0]->disconnect();
    if (reopened) nics[0]->common(2);
    CHECK(nics[0]->path(1, 0) == "not connected");
    std::string text;
    try {
      nics[0]->post(&w, 1);
    } catch (const Error& e) {
      text = e.what();
    }
    CHECK(has(text, "there is no connection to rank 1"));
  }
}

// Endpoint data comes from outside: truncated, flipped and stretched it is refused.
TEST(efa_endpoints_are_not_believed) {
  fresh_efa();
  Ranks ranks(2, 1 << 12, with_efa(kAsIs));
  const auto common = Ranks::endpoint(ranks[1], -1), own = Ranks::endpoint(ranks[1], 0);
  Ranks::endpoint(ranks[0], 1);
  mknet_error e;
  for (size_t n = 0; n < common.size(); ++n)
    CHECK(mknet_connect(ranks[0].net, 1, common.data(), n, own.data(), own.size(), nullptr, &e) == MKNET_ERROR_PEER);
  for (size_t n = 0; n < own.size(); ++n)
    CHECK(mknet_connect(ranks[0].net, 1, common.data(), common.size(), own.data(), n, nullptr, &e) == MKNET_ERROR_PEER);
}
