// Device memory: over ibverbs by dma-buf, else by peer memory, else bounced through pinned memory; over efa by dma-buf, else
// bounced; over ofi bounced. The fake verbs library registers no memory that this process cannot read, as a kernel without
// nvidia-peermem.
#include <cerrno>

#include "net/memory.h"
#include "tests/net_devices.h"
#include "tests/net_fake_efa.h"
#include "tests/net_fake_ofi.h"

using namespace test;

TEST(bounce_dma_buf_first) {
  fresh();
  {
    Devices d(false, [](mknet_desc& s) { s.bounce = 0; });
    CHECK(d.start() == "");
    CHECK(has(d.describe(0), "heap dma-buf"));
    // The proxy does not touch device memory: flags are written by the NIC.
    send(d);
    CHECK(d[1].memory.copies() == 0 && d[0].memory.pins() == 0);
  }
  CHECK(nothing_left());
}

TEST(bounce_then_peer_memory) {
  fresh().no_dma_buf = true;
  Devices d(true, [](mknet_desc& s) { s.bounce = 0; });
  CHECK(d.start() == "");
  CHECK(has(d.describe(0), "heap peer memory (dma-buf: Operation not supported)"));
  send(d);
  CHECK(d[1].memory.copies() == 0);
}

TEST(bounce_V38_V43_then_pinned_memory) {
  for (const bool with_fd : {true, false}) {
    fresh().no_dma_buf = true;
    {
      Devices d(false, [](mknet_desc&) {}, with_fd);
      CHECK(d.start() == "");
      const char* why = with_fd ? "dma-buf: Operation not supported; peer memory: Bad address" : "it came without a dma-buf; peer memory: Bad address";
      CHECK(has(d.describe(0), "the heap is bounced through pinned memory: fake0: ") && has(d.describe(0), why));
      send(d);
      CHECK(d[0].memory.copies() > 0 && d[1].memory.copies() > 0 && d[0].memory.pins() == 2);
    }
    CHECK(nothing_left());
  }
}

TEST(bounce_over_efa) {
  // One NIC and two; the device as it is, and one whose writes land in pieces and in any order.
  for (const bool both : {false, true})
    for (const bool slow : {false, true}) {
      fake::Settings& s = fresh_efa();
      s.no_dma_buf = true, s.slow = s.early_completion = slow;
      {
        Devices d(false, [&](mknet_desc& x) { use_efa(x, both); });
        CHECK(d.start() == "");
        CHECK(has(d.describe(0), "the heap is bounced through pinned memory: efa00: ") && has(d.describe(0), "dma-buf: Operation not supported"));
        send(d);
        CHECK(d[0].memory.copies() > 0 && d[1].memory.copies() > 0 && d[0].memory.pins() == 2);
      }
      CHECK(nothing_left());
    }
  // One side's device takes its memory, the other's does not.
  fresh_efa().fail["reg_dmabuf_mr efa00"] = EOPNOTSUPP;
  {
    Devices d(false, [](mknet_desc& x) { use_efa(x); });
    CHECK(d.start() == "");
    CHECK(has(d.describe(0), "the heap is bounced") && has(d.describe(1), "heap dma-buf"));
    send(d);
    CHECK(d[1].memory.copies() == 0);
  }
  fresh_efa().no_dma_buf = true;
  Devices d(false, [](mknet_desc& x) { use_efa(x), x.bounce = 0; });
  CHECK(has(d.start(), "bytes of device memory: dma-buf: Operation not supported"));
}

TEST(bounce_over_ofi) {
  for (const bool manual : {false, true}) {
    fakefabric::Settings& s = fabric::fresh();
    if (manual) s.data_progress = mk::net::ofi::kProgressManual;
    {
      Devices d(false, fabric::use_fake);
      CHECK(d.start() == "");
      CHECK(has(d.describe(0), "the heap is bounced through pinned memory: fake fake0: libfabric is given host memory only"));
      send(d);
      CHECK(d[0].memory.copies() > 0 && d[1].memory.copies() > 0 && d[0].memory.pins() == 2);
    }
    CHECK(fabric::nothing_left());
  }
  fabric::fresh();
  Devices d(false, [](mknet_desc& x) { fabric::use_fake(x), x.bounce = 0; });
  CHECK(has(d.start(), "libfabric is given host memory only"));
}

TEST(bounce_is_asked_for) {
  fresh().no_dma_buf = true;
  Devices d(false, [](mknet_desc& s) { s.bounce = 0; });
  CHECK(has(d.start(), "bytes of device memory: dma-buf: Operation not supported; peer memory: Bad address"));
}

// One rank's NIC knows its memory and the other's does not; of two NICs, one.
TEST(bounce_mixed) {
  fresh().fail["reg_dmabuf_mr"] = EOPNOTSUPP;
  {
    Devices d(false, [](mknet_desc&) {});
    CHECK(d.start() == "");
    CHECK(has(d.describe(0), "the heap is bounced") && has(d.describe(1), "heap dma-buf"));
    send(d);
    CHECK(d[1].memory.copies() == 0);
  }
  fresh({fake::roce("fake0", 1), fake::roce("fake1", 2), fake::roce("fake2", 3), fake::roce("fake3", 4)}).fail["reg_dmabuf_mr fake3"] = EOPNOTSUPP;
  {
    Devices d(false, [](mknet_desc& s) { s.rdma.devices = s.rank == 0 ? "fake0,fake1" : "fake2,fake3"; });
    CHECK(d.start() == "");
    CHECK(has(d.describe(1), "fake3: registering"));
    send(d);
  }
  CHECK(nothing_left());
}

// Sources that come while the network works, in the place of others, too.
TEST(bounce_sources_come_later) {
  // By dma-buf; none of it; and only what comes later has no dma-buf, so that pinned memory is made while the proxy runs.
  for (const int kind : {0, 1, 2}) {
    fresh().no_dma_buf = kind == 1;
    Devices d(false, [&](mknet_desc& s) { s.bounce = kind == 1 ? 1 : 0; });
    CHECK(d.start() == "");
    {
      const auto lock = quiet();
      control().settings.no_dma_buf = kind != 0;
    }
    CHECK(d[0].memory.pins() == (kind == 1 ? 2u : 0u));
    for (int i = 0; i < 2; ++i) {
      mknet_range range = range_of(d[0], 16384 + static_cast<uint64_t>(i) * 8192, 8192);
      range.replaces = i == 0 ? 0 : 1 + 2;
      uint32_t region = 0;
      NET_OK([&](mknet_error* e) { return mknet_register(d[0].net, &range, &region, e); });
      CHECK(region == 2);
    }
    memcpy(d[0].heap() + 24576, "from here", 10);
    mknet_command c = command(1, 0, 4096, 10, 1024, 1);
    c.region = 2;
    NET_OK([&](mknet_error* e) { return mknet_push(d[0].net, &c, kPatience, nullptr, e); });
    CHECK(d[1].wait(1024, 1) && memcmp(d[1].heap() + 4096, "from here", 10) == 0);
    const uint64_t pins[] = {0, 2, 1};
    CHECK(d[0].memory.pins() == pins[kind]);
  }
}

// What the device has not taken has a deadline, and nothing is freed that it may still use.
TEST(bounce_device_that_hangs) {
  fresh().no_dma_buf = true;
  Devices d(false, [](mknet_desc& s) { s.timeout_ns = s.rank == 1 ? kSecond / 5 : kPatience; });
  CHECK(d.start() == "");
  d[1].memory.stall(true);
  mknet_command c = command(1, 0, 4096, 64, 1024, 1);
  NET_OK([&](mknet_error* e) { return mknet_push(d[0].net, &c, kPatience, nullptr, e); });
  mknet_error e;
  mknet_status(d[1].net, kPatience, &e);
  CHECK(has(e.text, "rank 1: the device has not taken command") && has(e.text, "of rank 0, which is whole"));
  d[1].memory.stall(false);
}

TEST(bounce_V41_whole_pages) {
  const auto is = [](mk::net::Pages p, uint64_t base, uint64_t bytes, uint64_t offset) { return p.base == base && p.bytes == bytes && p.offset == offset; };
  CHECK(is(mk::net::pages_around(0x10000, 0x10000, 0x10000), 0x10000, 0x10000, 0));
  CHECK(is(mk::net::pages_around(0x11234, 0x100, 0x10000), 0x10000, 0x10000, 0x1234));
  CHECK(is(mk::net::pages_around(0x1fff0, 0x20, 0x10000), 0x10000, 0x20000, 0xfff0));
  CHECK(is(mk::net::pages_around(0x1fff0, 0x20, 0x1000), 0x1f000, 0x2000, 0xff0));
  // And the offset is where the NIC looks.
  fresh();
  Devices d(false, [](mknet_desc&) {});
  CHECK(d.start() == "");
  const mknet_range range = range_of(d[0], kDeviceHeap + 5000, 100);
  uint32_t region = 0;
  NET_OK([&](mknet_error* e) { return mknet_register(d[0].net, &range, &region, e); });
  memcpy(d[0].sources() + 5000, "at its offset", 14);
  mknet_command c = command(1, 0, 4096, 14, 1024, 1);
  c.region = static_cast<uint8_t>(region);
  NET_OK([&](mknet_error* e) { return mknet_push(d[0].net, &c, kPatience, nullptr, e); });
  CHECK(d[1].wait(1024, 1) && memcmp(d[1].heap() + 4096, "at its offset", 14) == 0);
}
