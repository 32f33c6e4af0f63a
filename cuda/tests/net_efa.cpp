// Backend efa over the fake's EFA devices. Names with V and a number are public faults, by the project's list.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "net/efa.h"
#include "net/efa_device.h"
#include "net/emu_wire.h"
#include "tests/net_fake.h"
#include "tests/net_model.h"

using namespace mk::net;
using namespace test;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kSchedules = 200;
#else
constexpr uint64_t kSchedules = 3000;
#endif

// Rank r has the devices r0 and r1.
std::vector<fake::DeviceSettings> all_devices() {
  std::vector<fake::DeviceSettings> all;
  for (const int rank : {0, 1, 2})
    for (const int n : {0, 1}) all.push_back(fake::efa("efa" + std::to_string(rank) + std::to_string(n), static_cast<uint8_t>(16 * rank + n + 1)));
  return all;
}
fake::Settings& fresh_efa() { return fresh(all_devices()); }

void use_efa(mknet_desc& d, bool both = false) {
  static const char* const one[] = {"efa00", "efa10", "efa20"};
  static const char* const two[] = {"efa00,efa01", "efa10,efa11", "efa20,efa21"};
  d.backend = "efa";
  d.rdma.library = library().c_str();
  d.rdma.devices = (both ? two : one)[d.rank];
}
Change with_efa(const Change& change) {
  return [change](mknet_desc& d) {
    use_efa(d);
    change(d);
  };
}
const Change kAsIs = [](mknet_desc&) {};
std::string efa_session(const Change& change = kAsIs, const std::function<void(Ranks&)>& then = [](Ranks&) {}, uint64_t patience = kPatience) {
  return session_of(with_efa(change), then, patience);
}
std::string efa_provoke(const std::function<void(fake::Settings&)>& fault, const Change& change = kAsIs) {
  return provoke_in(with_efa(change), fault);
}

std::string usable(const Change& change = kAsIs) {
  mknet_desc d;
  MKNET_INIT(&d);
  d.world = 2;
  use_efa(d);
  change(d);
  char line[1000];
  mknet_error e;
  return mknet_usable(&d, line, sizeof line, &e) == MKNET_OK ? line : e.text;
}

std::string schedule(uint64_t seed, bool ordered) {
  fake::Settings& s = fresh_efa();
  s.slow = true;
  s.seed = seed;
  s.early_full = seed % 3 == 0;
  s.early_completion = seed % 5 < 2;
  Rng rng{seed};
  for (auto& d : s.devices) {
    d.efa.max_rdma_size = static_cast<uint32_t>(128 + seed % 6 * 24);
    d.efa.max_rq_wr = 2 + static_cast<uint32_t>(rng.below(60));
    d.efa.inline_buf_size_ex = seed % 4 == 1 ? 80 : 0;
  }
  ModelOptions o;
  o.ranks = 2 + static_cast<uint32_t>(seed % 2);
  o.ordered = ordered;
  o.commands = 40;
  if (seed % 4 == 0) o.start = (uint64_t{1} << 32) - 20;
  if (seed % 4 == 1) o.start = (uint64_t{1} << 20) - 20;  // the low bits in the immediate
  const uint32_t depth = 1 + static_cast<uint32_t>(rng.below(20)), lanes = 1 + static_cast<uint32_t>(rng.below(2));
  Model model(seed, o, [&](uint32_t rank, ClockRef) {
    mknet_desc d;
    MKNET_INIT(&d);
    d.rank = static_cast<int32_t>(rank), d.world = static_cast<int32_t>(o.ranks);
    use_efa(d, seed % 3 != 1);
    d.rdma.depth = depth;
    d.rdma.qps = lanes;
    return open_efa(d);
  });
  return model.run();
}

// Sends `bytes` in one command and looks at what came.
void send_and_compare(Ranks& ranks, uint64_t bytes) {
  for (size_t i = 0; i < bytes; ++i) ranks[0].sources[i] = static_cast<char>(i * 7);
  const mknet_command c = command(1, 0, 8, bytes, 32768, 1);
  NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
  CHECK(ranks[1].wait(32768, 1));
  CHECK(std::equal(ranks[0].sources.begin(), ranks[0].sources.begin() + static_cast<ptrdiff_t>(bytes), ranks[1].data() + 8));
  ranks.drain();
}

}  // namespace

TEST(efa_schedules) {
  uint64_t wrong = 0, mixed = 0;
  for (uint64_t seed = 1; seed <= kSchedules && wrong < 3; ++seed) {
    const std::string fault = schedule(seed, false);
    mixed += seen().out_of_order;
    if (!fault.empty() && ++wrong > 0) printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), fault.c_str());
    CHECK(seen().zero_ids == 0 && seen().without_rts == 0);
  }
  CHECK(wrong == 0);
  CHECK(mixed > 20 * kSchedules);  // writes really passed each other
  CHECK(nothing_left());
}

// A flag that is written behind its data, as reliable connections allow, comes too early here, and the checks see it.
TEST(efa_schedules_find_a_flag_that_overtakes) {
  uint64_t wrong = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) wrong += schedule(seed, true).empty() ? 0 : 1;
  CHECK(wrong > 25);
}

TEST(efa_sessions) {
  fresh_efa();
  CHECK(efa_session(kAsIs, [](Ranks& ranks) { send_and_compare(ranks, 5000); }) == "");
  CHECK(seen().signalled == seen().writes && seen().zero_ids == 0 && seen().inlined == 0);
  CHECK(seen().mr_access_of_readers == verbs::kLocalWrite);  // what is only sent from, no peer may write; the device writes where receives are
  CHECK(nothing_left());
  // Two queue pairs on each of two NICs; one credit returned too few or too many would show.
  fresh_efa();
  CHECK(efa_session([](mknet_desc& d) { use_efa(d, true), d.rdma.qps = 2, d.start = (uint64_t{1} << 32) - 100; },
                [](Ranks& ranks) {
                  {
                    const auto lock = quiet();
                    CHECK(seen().live_qps == 8);
                  }
                  for (uint64_t i = 1; i <= 300; ++i) {
                    const mknet_command c = command(1, 0, 64, 200, 1024, i);
                    NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
                  }
                  CHECK(ranks[1].wait(1024, 300));
                  ranks.drain();
                }) == "");
  CHECK(seen().refills < seen().receives);  // receives are posted many at a time
}

TEST(efa_description) {
  fresh_efa();
  CHECK(has(usable(), "efa00: EFA (device 0xefa2), fe80::234:56ff:fe00:1, 1 queue pair of 512 sends, 128 receives per peer, writes of up to 1073741824 bytes"));
  CHECK(nothing_left());
  fresh({fake::roce("mlx5_0", 1)});
  CHECK(has(usable([](mknet_desc& d) { d.rdma.devices = nullptr; }), "no RDMA device can be used: mlx5_0: it is no EFA device (its PCI vendor is 0x15b3)"));
  fresh({});
  CHECK(has(usable([](mknet_desc& d) { d.rdma.devices = nullptr; }), "no RDMA device can be used: there is none"));
  // All of a host, in the order of their names, as they have no PCI addresses here; NICs of others are passed over.
  fresh({fake::efa("efa_10", 3), fake::roce("mlx5_0", 1), fake::efa("efa_9", 2)});
  const std::string all = usable([](mknet_desc& d) { d.rdma.devices = nullptr; });
  CHECK(has(all, "efa_9: EFA") && has(all, "; efa_10: EFA") && all.find("mlx5") == std::string::npos);
}

TEST(efa_devices_that_cannot_write) {
  const auto text = [](const std::function<void(fake::Settings&)>& change) {
    change(fresh_efa());
    return usable();
  };
  const auto caps = [](uint32_t part) {
    return [part](fake::Settings& s) { s.devices[0].attr.vendor_part_id = part, s.devices[0].efa.device_caps &= ~verbs::kEfaHasWrite; };
  };
  CHECK(has(text(caps(0xefa0)), "efa00: its device 0xefa0 shows no RDMA writes: the first two generations of the device (0xefa0, 0xefa1) have none"));
  CHECK(has(text(caps(0xefa2)), "its device 0xefa2 shows no RDMA writes: libefa (rdma-core 46 and newer) and the efa driver may be too old"));
  CHECK(has(text([](fake::Settings& s) { s.old_library = 44; }), "rdma-core 46 and newer"));
  CHECK(has(text([](fake::Settings& s) { s.old_library = 46; }), "efa00: EFA"));
  CHECK(has(text([](fake::Settings& s) { s.devices[0].attr.vendor_part_id = 0xefa9; }), "EFA (device 0xefa9)"));  // a later one
  CHECK(has(text([](fake::Settings& s) { s.devices[0].efa.max_rdma_size = 0; }), "takes writes of up to 0 bytes"));
  CHECK(has(text([](fake::Settings& s) { s.devices[0].ports[0].gids[0] = {}; }), "it has no address (GID 0 is empty)"));
  CHECK(has(text([](fake::Settings& s) { s.devices[0].ports[0].attr.state = 1; }), "the port is down"));
  CHECK(has(text([](fake::Settings& s) { s.devices[0].efa.max_rq_wr = 0; }), "0 receives"));
}

// An installation of its own is searched before the usual places; without any library the text says where it was looked.
TEST(efa_library_is_searched) {
  fresh_efa();
  char home[] = "/tmp/mknet-efa-XXXXXX";
  CHECK(mkdtemp(home) != nullptr);
  const std::string lib = std::string(home) + "/lib", link = lib + "/libefa.so.1";
  const auto here = [&](mknet_desc& d) { d.rdma.library = nullptr, d.rdma.efa_home = home; };
  CHECK(mkdir(lib.c_str(), 0700) == 0 && symlink(library().c_str(), link.c_str()) == 0);
  CHECK(has(usable(here), "efa00: EFA"));
  CHECK(unlink(link.c_str()) == 0 && rmdir(lib.c_str()) == 0 && rmdir(home) == 0);
  CHECK(has(usable([](mknet_desc& d) { d.rdma.library = "/nothing/libefa.so.1", d.rdma.efa_home = "/nothing/efa"; }),
            "no EFA library: /nothing/libefa.so.1: cannot open shared object file: No such file or directory (also looked for in /nothing/efa, "
            "/opt/amazon/efa)"));
}

TEST(efa_settings) {
  const auto text = [](const Change& change) {
    fresh_efa();
    return creation_of(with_efa(change));
  };
  CHECK(has(text([](mknet_desc& d) { d.rdma.depth = 5000; }), "efa00: queue pairs of 5000 slots; the device has up to 4096"));
  CHECK(has(text([](mknet_desc& d) { d.rdma.qps = 9; }), "up to 8"));
  CHECK(has(text([](mknet_desc& d) { d.rdma.devices = "efa00,efa99"; }), "of the NICs efa00,efa99, 1 can be used"));
  CHECK(efa_session([](mknet_desc& d) { d.rdma.service_level = 8, d.rdma.depth = 64, d.rdma.rnr_retries = 3; }) == "");
  CHECK(seen().last_efa_qp.sl == 8 && seen().last_qp.cap.max_send_wr == 64 && seen().last_rts.rnr_retry == 3);
  fresh_efa().old_library = 46;
  CHECK(has(efa_session([](mknet_desc& d) { d.rdma.service_level = 8; }), "service levels need rdma-core 55"));
  fresh_efa().old_library = 46;
  CHECK(efa_session() == "");
  for (auto& d : fresh_efa().devices) d.efa.device_caps &= ~verbs::kEfaHasRnrRetry;
  CHECK(efa_session() == "");
}

// Many peers share what a device has of receives and completions.
TEST(efa_V44_V50_receives_are_shared_by_all_peers) {
  fake::Settings& s = fresh_efa();
  const auto line = [](int world) { return usable([world](mknet_desc& d) { d.world = world; }); };
  CHECK(has(line(2048), "4 receives per peer"));
  s.devices[0].efa.max_rq_wr = 32768, s.devices[0].attr.max_cqe = 4096;
  CHECK(has(line(33), "111 receives per peer"));  // (4096 - 512 - 16) / 32
  CHECK(has(line(2048), "1 receives per peer"));
  s.devices[0].efa.max_rq_wr = 2000;
  CHECK(has(line(2048), "efa00: 2000 receives and 4096 completions, as the device has, are too few for 1 queue pairs and 2047 peers"));
  // One queue pair and one address handle serve all ranks behind a device.
  fresh_efa();
  {
    Ranks ranks(3, 4096, [](mknet_desc& d) {
      use_efa(d);
      if (d.rank == 2) d.rdma.devices = "efa10";
    });
    CHECK(ranks.start() == "" && ranks.verify() == "");
    const auto lock = quiet();
    CHECK(seen().live_qps == 3 && seen().live_ahs == 1 + 2 + 2);
  }
  fresh_efa().devices[0].attr.max_qp = 0;
  CHECK(has(efa_session(), "efa00: queue pair 1 of 512 sends and 128 receives: Cannot allocate memory"));
}

// Immediates outrun receives only if credits are wrong: with as few as the protocol needs all is well.
TEST(efa_V50_V62_few_receives_and_slots) {
  for (const uint32_t credits : {1u, 2u, 5u}) {
    fake::Settings& s = fresh_efa();
    s.slow = true;
    for (auto& d : s.devices) d.efa.max_rq_wr = credits, d.efa.max_rdma_size = 128;
    CHECK(efa_session([](mknet_desc& d) { use_efa(d, true), d.rdma.depth = 2; }, [](Ranks& ranks) { send_and_compare(ranks, 5000); }) == "");
    CHECK(seen().last_qp.cap.max_recv_wr == credits && seen().largest <= 128);
  }
}

TEST(efa_inline_notices) {
  fake::Settings& s = fresh_efa();
  for (auto& d : s.devices) d.efa.inline_buf_size_ex = 80;
  CHECK(efa_session(kAsIs, [](Ranks& ranks) { send_and_compare(ranks, 5000); }) == "");
  CHECK(seen().inlined > 0 && seen().last_efa_qp.flags == verbs::kEfaInlineWrite);
  // A queue that deep has no room for it.
  fresh_efa();
  for (auto& d : s.devices) d.efa.inline_buf_size_ex = 80;
  CHECK(efa_session([](mknet_desc& d) { d.rdma.depth = 4096; }) == "");
  CHECK(seen().inlined == 0 && seen().last_efa_qp.flags == 0);
}

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
