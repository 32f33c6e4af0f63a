// Backend ibverbs over the fake verbs library. Names with V and a number are public faults, by the project's list.
#include <algorithm>
#include <cerrno>

#include "net/verbs.h"
#include "net/verbs_port.h"
#include "tests/net_fake.h"
#include "tests/net_model.h"

using namespace mk::net;
using namespace test;

namespace {

// What ports are found, or why none.
std::string ports(const std::function<void(mknet_rdma&)>& change = [](mknet_rdma&) {}) {
  mknet_rdma s = {};
  change(s);
  try {
    std::string text;
    for (const verbs::Port& p : verbs::find_ports(verbs::load(library().c_str()), s))
      text += p.name + " " + std::to_string(p.gid.gid_index) + " " + verbs::text_of(p.gid.gid) + ";";
    return text;
  } catch (const Error& e) {
    return e.what();
  }
}

std::string schedule(uint64_t seed, bool relaxed) {
  fake::Settings& s = fresh({fake::roce("fake0", 1), fake::roce("fake1", 2), fake::roce("fake2", 3)});
  s.slow = true;
  s.seed = seed;
  Rng rng{seed};
  for (auto& d : s.devices) d.ports[0].attr.max_msg_sz = static_cast<uint32_t>(128 + seed % 5 * 8), d.max_inline = seed % 2 == 0 ? 64 : 0;
  ModelOptions o;
  o.ranks = 2 + static_cast<uint32_t>(seed % 2);
  o.ordered = !relaxed;
  if (seed % 4 == 0) o.start = (uint64_t{1} << 32) - 20;
  const uint32_t depth = 1 + static_cast<uint32_t>(rng.below(20)), lanes = 1 + static_cast<uint32_t>(rng.below(3));
  Model model(seed, o, [&](uint32_t rank, ClockRef, const Device&) {
    mknet_desc d;
    MKNET_INIT(&d);
    d.rank = static_cast<int32_t>(rank), d.world = static_cast<int32_t>(o.ranks);
    use_fake(d);
    d.rdma.depth = depth;
    d.rdma.qps = lanes;
    d.rdma.relaxed = relaxed ? 1 : 0;
    return open_verbs(d);
  });
  return model.run();
}

}  // namespace

TEST(verbs_schedules) {
  uint64_t wrong = 0;
  for (uint64_t seed = 1; seed <= 150 && wrong < 3; ++seed)
    for (const bool relaxed : {false, true}) {
      const std::string fault = schedule(seed, relaxed);
      if (!fault.empty() && ++wrong > 0) printf("seed %llu, relaxed %d: %s\n", static_cast<unsigned long long>(seed), relaxed, fault.c_str());
    }
  CHECK(wrong == 0);
  CHECK(seen().zero_ids == 0 && seen().without_rts == 0);
  CHECK(nothing_left());
}

TEST(verbs_session) {
  fresh();
  CHECK(session([](mknet_desc&) {}) == "");
  CHECK(seen().inlined > 0 && seen().signalled <= seen().writes && seen().relaxed_mrs == 0);
  CHECK(seen().mr_access_of_readers == 0);  // what is only sent from, nobody may write
  CHECK(nothing_left());
  fresh({fake::infiniband("fake0", 7), fake::infiniband("fake1", 9)});
  CHECK(session([](mknet_desc&) {}) == "");
  CHECK(seen().last_rtr.ah_attr.is_global == 0 && seen().last_rtr.ah_attr.dlid != 0);
  fresh();
  CHECK(session([](mknet_desc& d) { d.rdma.relaxed = 1; }) == "");
  CHECK(seen().relaxed_mrs == 4);  // heap and sources of both ranks, never inbox or outbox
}

TEST(verbs_V1_link_local_gid_only_without_a_better_one) {
  fresh();
  CHECK(has(ports(), "fake0 3 10.9.1.1;"));
  control().settings.devices.resize(1);
  control().settings.devices[0].ports[0].gids.resize(2);
  CHECK(has(ports(), "fake0 1 fe80::1;"));
  CHECK(has(ports([](mknet_rdma& s) { s.gid = 1; }), "GID 0 (fe80::1) is not RoCE v2"));
  CHECK(has(ports([](mknet_rdma& s) { s.gid = 1000; }), "GID 999 is an empty slot"));
  CHECK(has(ports([](mknet_rdma& s) { s.gid = 2; }), "fake0 1 fe80::1;"));
  CHECK(has(ports([](mknet_rdma& s) { s.gid_family = 4; }), "none of its 2 GIDs is RoCE v2 of a network interface here of the wanted"));
}

TEST(verbs_V2_probe_before_up) {
  // The control plane is content; the peer's GID is on another network.
  fake::Settings& s = fresh();
  s.devices[1].ports[0].gids[3] = fake::ipv4(verbs::kGidRoceV2, 7, 2);
  const std::string good = session([](mknet_desc&) {});
  CHECK(good == "");
  s.lose = true;
  const std::string text = session([](mknet_desc&) {}, [](Ranks&) {}, kSecond);
  CHECK(has(text, "no probe came from rank") && has(text, "GID 10.9.1.1 to GID 10.9.7.2"));
}

TEST(verbs_V4_empty_gid_slots) {
  fake::Settings& s = fresh();
  s.devices[0].ports[0].gids[0] = s.devices[0].ports[0].gids[2] = {};
  CHECK(has(ports(), "fake0 3 10.9.1.1;fake1 3"));
}

TEST(verbs_V7_gid_of_another_namespace) {
  fake::Settings& s = fresh();
  s.devices.resize(1);
  s.devices[0].ports[0].gids[3].ndev_ifindex = 99999;
  CHECK(has(ports(), "fake0 1 fe80::1;"));
  s.devices[0].ports[0].gids[1].ndev_ifindex = 99999;
  CHECK(has(ports(), "none of its 4 GIDs is RoCE v2 of a network interface here"));
  fresh().fail["RTR"] = ENODEV;
  CHECK(has(session([](mknet_desc&) {}), "not in this network namespace"));
}

TEST(verbs_V5_V20_V25_rtr_time_out_is_explained) {
  fresh().fail["RTR"] = ETIMEDOUT;
  const std::string text = session([](mknet_desc&) {});
  CHECK(has(text, "no answer to ARP") && has(text, "GID 10.9.1.1 here, 10.9.1.2 at rank 1") && has(text, "another rail"));
  fresh().fail["RTR"] = ENETUNREACH;
  CHECK(has(session([](mknet_desc&) {}), "no route to the peer's GID"));
}

TEST(verbs_V8_V29_link_layers) {
  fake::Settings& s = fresh({fake::roce("fake0", 1), fake::infiniband("fake1", 2)});
  CHECK(has(session([](mknet_desc&) {}), "fake0 is Ethernet and its fake1 is InfiniBand"));
  s.devices[0].ports[0].attr.link_layer = 0;
  CHECK(has(ports(), "fake1 0 fe80::2;"));
}

TEST(verbs_V10_every_field_of_the_address_vector) {
  fresh();
  CHECK(session([](mknet_desc& d) { d.rdma.traffic_class = 104, d.rdma.service_level = 3; }) == "");
  const auto& a = seen().last_rtr.ah_attr;
  CHECK(a.is_global == 1 && a.sgid_index == 3 && a.hop_limit == 255 && a.traffic_class == 104 && a.sl == 3 && a.port_num == 1 && a.dlid == 0);
  CHECK(verbs::text_of(a.dgid) == "10.9.1.1" || verbs::text_of(a.dgid) == "10.9.1.2");
}

TEST(verbs_V11_V31_no_lid_no_session) {
  fake::Settings& s = fresh({fake::infiniband("fake0", 0)});
  CHECK(has(ports(), "it has no LID: no subnet manager"));
  s.devices[0].ports[0].attr.lid = 5;
  s.devices[0].ports[0].attr.state = verbs::kPortInit;
  CHECK(has(ports(), "no subnet manager"));
}

TEST(verbs_V13_mtu_is_the_smaller_one) {
  fake::Settings& s = fresh();
  s.devices[1].ports[0].attr.active_mtu = 3;
  CHECK(session([](mknet_desc&) {}) == "");
  CHECK(seen().last_rtr.path_mtu == 3);
  CHECK(session([](mknet_desc& d) { d.rdma.mtu = d.rank == 0 ? 256 : 0; }) == "");
  CHECK(seen().last_rtr.path_mtu == 1);
  CHECK(has(ports([](mknet_rdma& r) { r.mtu = 1000; }), "a path MTU of 1000 bytes"));
}

TEST(verbs_V14_reads_are_clamped) {
  fake::Settings& s = fresh();
  s.devices[1].attr.max_qp_init_rd_atom = 0;
  CHECK(session([](mknet_desc&) {}) == "");
  CHECK(seen().last_rts.max_rd_atomic == 0);
}

TEST(verbs_V17_settings_are_read_back) {
  fresh().drop_attribute = true;
  CHECK(has(session([](mknet_desc&) {}), "was not set up as asked"));
}

TEST(verbs_V19_partition_by_value) {
  fake::Settings& s = fresh();
  for (auto& d : s.devices) d.ports[0].pkeys = {0x1234, 0, 0x7fff};
  CHECK(session([](mknet_desc&) {}) == "");
  CHECK(seen().last_rtr.pkey_index == 2);
  CHECK(session([](mknet_desc& d) { d.rdma.pkey = 0x9234; }) == "");
  CHECK(seen().last_rtr.pkey_index == 0);
  CHECK(has(ports([](mknet_rdma& r) { r.pkey = 0x8001; }), "not in partition 0x8001"));
}

TEST(verbs_V26_rails_are_the_names_that_were_given) {
  fresh({fake::roce("fake10", 3), fake::roce("fake9", 2), fake::roce("fake1", 1)});
  CHECK(has(ports(), "fake1 3 10.9.1.1;fake9 3 10.9.1.2;fake10 3 10.9.1.3;"));
  CHECK(has(ports([](mknet_rdma& r) { r.devices = "fake10,fake1"; }), "fake10 3 10.9.1.3;fake1 3 10.9.1.1;"));
  CHECK(has(ports([](mknet_rdma& r) { r.devices = "fake10,fake2"; }), "of the NICs fake10,fake2, 1 can be used: there are fake1, fake9, fake10"));
  CHECK(has(ports([](mknet_rdma& r) { r.devices = "fake9:2"; }), "of the NICs fake9:2, 0 can be used: there are fake1, fake9, fake10"));
  // One that is here and cannot be used is said by itself.
  fake::Settings& s = fresh({fake::roce("fake0", 1)});
  s.devices[0].ports[0].attr.state = 1;
  CHECK(ports([](mknet_rdma& r) { r.devices = "fake0"; }) == "of the NICs fake0, 0 can be used: fake0: the port is down");
  fresh({});
  CHECK(ports([](mknet_rdma& r) { r.devices = "fake0"; }) == "of the NICs fake0, 0 can be used: there is none");
}

TEST(verbs_V28_ports_that_are_down) {
  fake::Settings& s = fresh({fake::roce("fake0", 1)});
  s.devices[0].ports.push_back(s.devices[0].ports[0]);
  s.devices[0].ports[0].attr.state = 1;
  CHECK(has(ports(), "fake0:2 3 10.9.1.1;"));
  s.devices[0].ports[1].attr.state = 1;
  CHECK(has(ports(), "fake0: the port is down; fake0:2: the port is down"));
}

TEST(verbs_V34_device_that_cannot_be_opened) {
  fake::Settings& s = fresh();
  s.devices[0].openable = false;
  CHECK(has(ports(), "fake1 3 10.9.1.2;"));
  s.devices[1].openable = false;
  CHECK(has(ports(), "fake0: it cannot be opened (No such file or directory)"));
  fresh({});
  CHECK(has(ports(), "no RDMA device can be used: there is none"));
  fresh().fail["get_device_list"] = ENOSYS;
  CHECK(has(ports(), "no ib_uverbs module"));
}

// Every branch of failure, with sanitizers: an error with a text, and nothing left.
TEST(verbs_V35_V37_V43_V44_failures_of_set_up) {
  for (const char* call : {"get_device_list", "open_device", "query_device", "query_port", "query_gid_table", "alloc_pd", "reg_mr"}) {
    fresh().fail[call] = ENOMEM;
    mknet_desc d;
    MKNET_INIT(&d);
    d.world = 2;
    use_fake(d);
    mknet* net = nullptr;
    mknet_error e;
    CHECK(mknet_create(&d, &net, &e) != MKNET_OK && e.text[0] != '\0');
    CHECK(nothing_left());
  }
  for (const char* call : {"create_cq", "create_qp", "INIT", "RTR", "RTS", "post_recv"}) {
    fresh().fail[call] = ENOMEM;
    Ranks ranks(2, 4096, [](mknet_desc& d) {
      use_fake(d);
      d.rdma.relaxed = 1;
    });
    mknet_error e;
    uint64_t n = 0;
    e.code = MKNET_OK;
    mknet_endpoint(ranks[0].net, 1, nullptr, &n, &e);
    if (e.code == MKNET_OK) snprintf(e.text, sizeof e.text, "%s", ranks.connect().c_str());
    // A queue pair is tried again without inline data.
    if (std::string(call) != "create_qp") CHECK(has(e.text, "fake0"));
  }
  CHECK(nothing_left());
  fresh().devices[0].attr.max_qp = 0;
  CHECK(has(session([](mknet_desc&) {}), "queue pair 1"));
}

TEST(verbs_V50_completions_never_overrun) {
  fake::Settings& s = fresh();
  for (auto& d : s.devices) d.attr.max_cqe = 40;
  s.slow = true;
  CHECK(session([](mknet_desc& d) { d.rdma.depth = 4; }, [](Ranks& ranks) {
          for (uint64_t i = 1; i <= 300; ++i) {
            const mknet_command c = command(1, 0, 0, 64, 1024 + i % 8 * 8, i);
            NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
          }
          ranks.drain();
        }) == "");
  // Where someone else's fault did it, the asynchronous event is an error.
  fresh();
  const std::string text = provoke([](fake::Settings&) { control().event("fake0", verbs::kEventCq, 0); });
  CHECK(has(text, "fake0: the device reports: CQ error"));
  fresh();
  for (auto& d : control().settings.devices) d.attr.max_cqe = 100;
  CHECK(has(session([](mknet_desc& d) { d.rdma.relaxed = 1; }), "too small for 1 queue pairs"));
}

TEST(verbs_V52_V53_refused_posts) {
  fresh();
  CHECK(has(provoke([](fake::Settings& s) { s.fail["post_send fake0"] = ENOMEM; }), "posting"));
  fresh();
  const std::string text = provoke([](fake::Settings& s) { s.negative = true, s.fail["post_send fake0"] = EINVAL; });
  CHECK(has(text, "fake0, queue pair") && has(text, "to rank 1") && has(text, "Invalid argument"));
  fresh().devices[0].attr.max_qp_wr = 64;
  mknet_desc d;
  MKNET_INIT(&d);
  d.world = 2;
  use_fake(d);
  mknet* net = nullptr;
  mknet_error e;
  CHECK(mknet_create(&d, &net, &e) == MKNET_ERROR_ARGUMENT && has(e.text, "queue pairs of 128 slots; the device has up to 64"));
}

TEST(verbs_V56_V58_V59_large_offsets_and_pieces) {
  fake::Settings& s = fresh();
  for (auto& d : s.devices) d.ports[0].attr.max_msg_sz = 1000;
  CHECK(session([](mknet_desc&) {}, [](Ranks& ranks) {
          for (size_t i = 0; i < 5000; ++i) ranks[0].sources[i] = static_cast<char>(i * 7);
          const mknet_command c = command(1, 0, 8, 5000, 8192, 1);
          NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
          CHECK(ranks[1].wait(8192, 1));
          CHECK(std::equal(ranks[0].sources.begin(), ranks[0].sources.begin() + 5000, ranks[1].data() + 8));
        }) == "");
  CHECK(seen().largest <= 1000);
}

// The texts of what can become of a write.
TEST(verbs_completion_errors_name_all) {
  const struct {
    int status;
    const char* hint;
  } cases[] = {{verbs::kWcRetries, "the peer or the path to it is gone"},
               {verbs::kWcRemoteAccess, "of an earlier job?"},
               {verbs::kWcRemoteRequest, "does not allow it"},
               {verbs::kWcNotReady, "no receive posted"},
               {verbs::kWcLocalProtection, "own memory region"}};
  for (const auto& c : cases) {
    fresh();
    const std::string text = provoke([&](fake::Settings& s) { s.status = c.status; });
    CHECK(has(text, "fake0, queue pair ") && has(text, " to rank 1 (GID 10.9.1.1 to GID 10.9.1.2 of fake1, MTU 4096)"));
    CHECK(has(text, ("status " + std::to_string(c.status)).c_str()) && has(text, "vendor 0x81") && has(text, c.hint));
  }
}

TEST(verbs_V55_flushes_are_not_the_cause) {
  fresh();
  CHECK(has(provoke([](fake::Settings&) { control().kill_qps("fake0"); }), "status 5"));
  fresh();
  CHECK(has(provoke([](fake::Settings& s) { s.status = verbs::kWcRetries; }), "status 12"));
}

TEST(verbs_V62_V64_lost_completion_has_a_deadline) {
  fresh();
  const std::string text = provoke([](fake::Settings& s) { s.lose = true; }, [](mknet_desc& d) {
    if (d.rank == 0) d.timeout_ns = kSecond / 10;
  });
  CHECK(has(text, "is not complete after") && has(text, "to rank 1 over fake0"));
}

TEST(verbs_V77_V80_every_verb_that_fails_is_seen) {
  for (const char* call : {"post_send fake0", "poll_cq fake0"}) {  // rank 0's: without a device, whichever proxy is first meets it
    fresh();
    CHECK(has(provoke([&](fake::Settings& s) { s.fail[call] = EIO; }), "fake0"));
  }
  fresh().no_receives = true;
  CHECK(has(session([](mknet_desc& d) { d.rdma.relaxed = 1; }), "status 13"));
}

TEST(verbs_V82_V85_reset_rebuilds_queue_pairs) {
  fresh();
  Ranks ranks(2, 1 << 16, [](mknet_desc& d) { use_fake(d); });
  CHECK(ranks.start() == "" && ranks.verify() == "");
  const auto stale_common = Ranks::endpoint(ranks[1], -1), stale = Ranks::endpoint(ranks[1], 0);
  {
    const auto lock = quiet();
    control().kill_qps("fake0");
  }
  for (int r = 0; r < 2; ++r) NET_OK([&](mknet_error* e) { return mknet_reset(ranks[r].net, 99, e); });
  CHECK(seen().live_qps == 0 && seen().live_cqs == 0);
  mknet_error e;
  Ranks::endpoint(ranks[0], 1);
  CHECK(mknet_connect(ranks[0].net, 1, stale_common.data(), stale_common.size(), stale.data(), stale.size(), nullptr, &e) == MKNET_ERROR_PEER);
  CHECK(has(e.text, "another job or generation"));
  CHECK(ranks.start() == "" && ranks.verify() == "");
}

TEST(verbs_V88_port_events_are_counted_and_filtered) {
  fresh();
  const std::string text = provoke([](fake::Settings& s) {
    for (int i = 0; i < 3; ++i) control().event("fake0", verbs::kEventPortError, 1);
    control().event("fake0", verbs::kEventPortError, 2);  // not ours
    s.status = verbs::kWcRetries;
  });
  CHECK(has(text, "3 port events, the last: port error"));
}

TEST(verbs_own_port_that_is_down_is_the_cause) {
  fresh();
  const std::string text = provoke([](fake::Settings& s) {
    s.devices[0].ports[0].attr.state = 1;  // down
    s.status = verbs::kWcLocalQp;
  });
  CHECK(has(text, "status 2") && has(text, ": the NIC's own port is down") && !has(text, "memory region"));
}

TEST(verbs_settings_are_checked) {
  const auto text = [](const std::function<void(mknet_rdma&)>& change) {
    fresh();
    mknet_desc d;
    MKNET_INIT(&d);
    d.world = 2;
    use_fake(d);
    change(d.rdma);
    mknet* net = nullptr;
    mknet_error e;
    if (mknet_create(&d, &net, &e) == MKNET_OK) mknet_destroy(net, nullptr);
    return std::string(e.text);
  };
  CHECK(has(text([](mknet_rdma& r) { r.retries = 7; }), "for ever"));
  CHECK(has(text([](mknet_rdma& r) { r.timeout = 32; }), "at most 31"));
  CHECK(has(text([](mknet_rdma& r) { r.qps = 9; }), "up to 8"));
  CHECK(has(text([](mknet_rdma& r) { r.gid_family = 5; }), "there are 4 and 6"));
  CHECK(has(text([](mknet_rdma& r) { r.library = "libnothere.so.9"; }), "no RDMA library"));
  fresh({fake::roce("fake0", 1)}).devices[0].attr.vendor_id = verbs::kVendorAmazon;
  mknet_desc d;
  MKNET_INIT(&d);
  d.world = 2;
  use_fake(d);
  char line[300];
  mknet_error e;
  CHECK(mknet_usable(&d, line, sizeof line, &e) == MKNET_ERROR_UNSUPPORTED && has(e.text, "use the efa backend"));
}
