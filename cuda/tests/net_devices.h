// Two ranks with their heaps and sources in device memory.
#pragma once
#include <algorithm>
#include <memory>

#include "tests/net_device.h"
#include "tests/net_fake.h"

namespace test {

constexpr uint64_t kDeviceHeap = 1 << 18, kDeviceSources = 3 << 20;

struct Side {
  explicit Side(bool readable) : memory(kDeviceHeap + kDeviceSources, readable) {}
  TestDevice memory;  // the heap, then the sources
  mknet_device functions = {};
  mknet* net = nullptr;
  uint32_t region = 0;

  // As kernels see them.
  char* heap() const { return memory.shadow(); }
  char* sources() const { return memory.shadow() + kDeviceHeap; }
  bool wait(uint64_t offset, uint64_t value) const {
    const auto* word = reinterpret_cast<const uint64_t*>(heap() + offset);
    for (int i = 0; i < 600000; ++i) {
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= value) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return false;
  }
};

inline mknet_range range_of(const Side& s, uint64_t at, uint64_t bytes) {
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
      if (mknet_create(&d, &s.net, &e) != MKNET_OK || !add(s, 0, kDeviceHeap, with_fd, &e) || !add(s, kDeviceHeap, kDeviceSources, with_fd, &e)) text_ = e.text;
    }
  }
  ~Devices() {
    for (auto& s : sides_) mknet_destroy(s->net, nullptr);
  }
  Side& operator[](int r) { return *sides_[static_cast<size_t>(r)]; }

  // Connects and starts; the text of the first error. `direct`: each rank sees the other's heap where that one's kernels do.
  std::string connect(bool direct = false) {
    if (!text_.empty()) return text_;
    mknet_error e;
    for (int r = 0; r < 2; ++r) blob(r, 1 - r);
    for (int r = 0; r < 2; ++r) {
      const auto common = blob(1 - r, -1), own = blob(1 - r, r);
      char* heap = direct ? (*this)[1 - r].heap() : nullptr;
      if (mknet_connect((*this)[r].net, 1 - r, common.data(), common.size(), own.data(), own.size(), heap, &e) != MKNET_OK) return e.text;
    }
    for (auto& s : sides_)
      if (mknet_start(s->net, &e) != MKNET_OK) return e.text;
    return "";
  }
  // Connects, starts and verifies; the text of the first error.
  std::string start() {
    if (std::string text = connect(); !text.empty()) return text;
    mknet_error e;
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
inline void send(Devices& d) {
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

}  // namespace test
