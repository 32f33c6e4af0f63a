// Backend efa over the fake's EFA devices. Names with V and a number are public faults, by the project's list.
#include <sys/stat.h>
#include <unistd.h>

#include "net/efa.h"
#include "net/efa_device.h"
#include "tests/net_fake_efa.h"
#include "tests/net_model.h"

using namespace mk::net;
using namespace test;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kSchedules = 200;
#else
constexpr uint64_t kSchedules = 3000;
#endif

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
  Model model(seed, o, [&](uint32_t rank, ClockRef, const Device&) {
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
