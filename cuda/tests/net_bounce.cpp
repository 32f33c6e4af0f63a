// Device memory over ibverbs: by dma-buf, else by peer memory, else bounced through pinned memory. The fake verbs
// library registers no memory that this process cannot read, as a kernel without nvidia-peermem.
#include <algorithm>
#include <memory>

#include "net/memory.h"
#include "tests/net_device.h"
#include "tests/net_fake.h"
#include "tests/net_model.h"

using namespace test;

namespace {

constexpr uint64_t kHeap = 1 << 18, kSources = 3 << 20;

struct Side {
  explicit Side(bool readable) : memory(kHeap + kSources, readable) {}
  TestDevice memory;  // the heap, then the sources
  mknet_device functions = {};
  mknet* net = nullptr;
  uint32_t region = 0;

  // As kernels see them.
  char* heap() const { return memory.shadow(); }
  char* sources() const { return memory.shadow() + kHeap; }
  bool wait(uint64_t offset, uint64_t value) const {
    const auto* word = reinterpret_cast<const uint64_t*>(heap() + offset);
    for (int i = 0; i < 600000; ++i) {
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= value) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return false;
  }
};

mknet_range range_of(const Side& s, uint64_t at, uint64_t bytes) {
  mknet_range range;
  MKNET_INIT(&range);
  range.base = s.memory.base() + at, range.bytes = bytes, range.memory = MKNET_DEVICE;
  range.fd = s.memory.fd(), range.fd_offset = at;
  return range;
}

// Two ranks with heap and sources in device memory.
class Devices {
 public:
  Devices(bool readable, const std::function<void(mknet_desc&)>& change, bool with_fd = true) {
    for (int r = 0; r < 2; ++r) {
      sides_.push_back(std::make_unique<Side>(readable));
      Side& s = *sides_.back();
      s.functions = s.memory.functions();
      mknet_desc d;
      MKNET_INIT(&d);
      d.rank = r, d.world = 2, d.job = 5;
      d.timeout_ns = kPatience;
      use_fake(d);
      d.device = &s.functions;
      d.bounce = 1;
      change(d);
      mknet_error e;
      if (mknet_create(&d, &s.net, &e) != MKNET_OK || !add(s, 0, kHeap, with_fd, &e) || !add(s, kHeap, kSources, with_fd, &e)) text_ = e.text;
    }
  }
  ~Devices() {
    for (auto& s : sides_) mknet_destroy(s->net, nullptr);
  }
  Side& operator[](int r) { return *sides_[static_cast<size_t>(r)]; }

  // Connects, starts and verifies; the text of the first error.
  std::string start() {
    if (!text_.empty()) return text_;
    mknet_error e;
    for (int r = 0; r < 2; ++r) blob(r, 1 - r);
    for (int r = 0; r < 2; ++r) {
      const auto common = blob(1 - r, -1), own = blob(1 - r, r);
      if (mknet_connect((*this)[r].net, 1 - r, common.data(), common.size(), own.data(), own.size(), nullptr, &e) != MKNET_OK) return e.text;
    }
    for (auto& s : sides_)
      if (mknet_start(s->net, &e) != MKNET_OK) return e.text;
    std::string other;
    std::thread t([&] {
      mknet_error e1;
      if (mknet_verify((*this)[1].net, kPatience, &e1) != MKNET_OK) other = e1.text;
    });
    const int code = mknet_verify((*this)[0].net, kPatience, &e);
    t.join();
    return code != MKNET_OK ? e.text : other;
  }
  std::string describe(int r) {
    char text[2000] = "";
    mknet_describe((*this)[r].net, text, sizeof text, nullptr);
    return text;
  }

 private:
  static bool add(Side& s, uint64_t at, uint64_t bytes, bool with_fd, mknet_error* e) {
    mknet_range range = range_of(s, at, bytes);
    if (!with_fd) range.fd = -1;
    return mknet_register(s.net, &range, &s.region, e) == MKNET_OK;
  }
  std::vector<unsigned char> blob(int r, int peer) {
    uint64_t n = 0;
    mknet_endpoint((*this)[r].net, peer, nullptr, &n, nullptr);
    std::vector<unsigned char> b(n);
    NET_OK([&](mknet_error* e) { return mknet_endpoint((*this)[r].net, peer, b.data(), &n, e); });
    return b;
  }

  std::vector<std::unique_ptr<Side>> sides_;
  std::string text_;
};

// Rank 0 sends messages of many sizes, rows and flags from its sources or its heap; rank 1 sees each one whole.
void send(Devices& d) {
  Side &from = d[0], &to = d[1];
  for (uint64_t round = 1; round <= 30; ++round) {
    const uint64_t rows = 1 + round % 3, bytes = round % 7 == 0 ? 50000 : 8 + round * 40, stride = bytes + round % 2 * 64;
    const bool own_heap = round % 4 == 0;
    char* source = own_heap ? from.heap() + 65536 : from.sources();
    // What was sent before is complete, so the source is ours.
    for (uint64_t i = 0; i < rows * stride; ++i) source[i] = static_cast<char>(i * 31 + round * 7);
    mknet_command c = command(1, own_heap ? 65536 : 0, 4096, bytes, 1024, round);
    c.region = own_heap ? 0 : static_cast<uint8_t>(from.region);
    c.rows = static_cast<uint32_t>(rows);
    c.source_stride = c.target_stride = static_cast<uint32_t>(stride);
    uint64_t position = 0;
    NET_OK([&](mknet_error* e) { return mknet_push(from.net, &c, kPatience, &position, e); });
    NET_OK([&](mknet_error* e) { return mknet_flush(from.net, 1, position + 1, kPatience, e); });
    // A flag that says of a command that was complete: it must not overtake its bytes on their way to the device.
    c = command(1, 0, 0, 0, 1088, round);
    NET_OK([&](mknet_error* e) { return mknet_push(from.net, &c, kPatience, nullptr, e); });
    CHECK(to.wait(1088, round));
    CHECK(*reinterpret_cast<uint64_t*>(to.heap() + 1024) == round);
    for (uint64_t row = 0; row < rows; ++row) CHECK(memcmp(to.heap() + 4096 + row * stride, source + row * stride, bytes) == 0);
  }
  for (int r = 0; r < 2; ++r) NET_OK([&](mknet_error* e) { return mknet_drain(d[r].net, kPatience, e); });
}

}  // namespace

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
  const mknet_range range = range_of(d[0], kHeap + 5000, 100);
  uint32_t region = 0;
  NET_OK([&](mknet_error* e) { return mknet_register(d[0].net, &range, &region, e); });
  memcpy(d[0].sources() + 5000, "at its offset", 14);
  mknet_command c = command(1, 0, 4096, 14, 1024, 1);
  c.region = static_cast<uint8_t>(region);
  NET_OK([&](mknet_error* e) { return mknet_push(d[0].net, &c, kPatience, nullptr, e); });
  CHECK(d[1].wait(1024, 1) && memcmp(d[1].heap() + 4096, "at its offset", 14) == 0);
}
