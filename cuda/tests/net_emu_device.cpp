// Emulated nodes of GPUs: emu between ranks whose heaps are device memory, which producers on the device fill.
#include <atomic>
#include <utility>

#include "net/emu.h"
#include "tests/net_devices.h"

using namespace test;

namespace {

// Two ranks whose kernels produce, each of which sees the other's heap.
struct Pair : Devices {
  explicit Pair(bool unordered = false)
      : Devices(false, [=](mknet_desc& d) {
          d.backend = "emu", d.bounce = 0, d.device_producers = 1;
          d.emu.direct = 1, d.emu.piece = 1024, d.emu.unordered = unordered ? 1 : 0;
        }, false) {}
  void connect() {
    const std::string text = Devices::connect(true);
    if (!text.empty()) printf("%s\n", text.c_str());
    CHECK(text.empty());
  }
};

// The way of a kernel into the FIFO: its positions are its own, and it wakes nobody.
class Kernel {
 public:
  explicit Kernel(mknet* net) : fifo_(mknet_queue(net)), next_(fifo_->start) {}
  void push(mknet_command c) {
    while (next_ - __atomic_load_n(&fifo_->consumed, __ATOMIC_ACQUIRE) >= fifo_->capacity) std::this_thread::yield();
    auto* slot = reinterpret_cast<mknet_command*>(reinterpret_cast<char*>(fifo_) + fifo_->slots) + (next_ & (fifo_->capacity - 1));
    memcpy(reinterpret_cast<char*>(slot) + 8, reinterpret_cast<const char*>(&c) + 8, sizeof c - 8);
    __atomic_store_n(&slot->sequence, ++next_, __ATOMIC_RELEASE);
  }

 private:
  mknet_fifo* const fifo_;
  uint64_t next_;
};

mknet_command send_of(const Side& from, uint64_t target, uint64_t bytes, uint64_t flag, uint64_t value) {
  mknet_command c = command(1, 0, target, bytes, flag, value);
  c.region = static_cast<uint8_t>(from.region);
  return c;
}

}  // namespace

// A drain waits for what kernels pushed, although nobody counts at `tail`, and for no more.
TEST(emu_device_drain_with_kernels) {
  for (const bool unordered : {false, true}) {
    Pair p(unordered);
    p.connect();
    Kernel kernel(p[0].net);
    for (uint64_t i = 1; i <= 300; ++i) kernel.push(send_of(p[0], 4096, 3000, 1024, i));
    NET_OK([&](mknet_error* e) { return mknet_drain(p[0].net, kPatience, e); });
    CHECK(p[1].wait(1024, 300));
  }
}

// Behind a reset, and behind the end, the device writes no more into memory of peers.
TEST(emu_device_nothing_is_copied_behind_a_reset) {
  for (const bool unordered : {false, true})
    for (const bool destroy : {false, true}) {
      Pair p(unordered);
      p.connect();
      memset(p[0].sources(), 7, 4096);
      p[0].memory.stall(true);
      Kernel(p[0].net).push(send_of(p[0], 4096, 4096, 1024, 1));
      while (p[0].memory.waiting() == 0) std::this_thread::yield();
      std::thread device([&] {
        // As a device that is busy for a while.
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        p[0].memory.stall(false);
      });
      if (destroy)
        mknet_destroy(std::exchange(p[0].net, nullptr), nullptr);
      else
        NET_OK([&](mknet_error* e) { return mknet_reset(p[0].net, 6, e); });
      CHECK(p[0].memory.waiting() == 0);
      device.join();
    }
}

// A device that does not come to an end is said to be one, and the reset is none.
TEST(emu_device_that_hangs_is_not_reset) {
  Pair p;
  p.connect();
  p[0].memory.stall(true);
  Kernel(p[0].net).push(send_of(p[0], 4096, 4096, 1024, 1));
  while (p[0].memory.waiting() == 0) std::this_thread::yield();
  mknet_error e;
  CHECK(mknet_reset(p[0].net, 6, &e) == MKNET_ERROR_SYSTEM && has(e.text, "the device does not end the copies"));
  CHECK(mknet_start(p[0].net, &e) == MKNET_ERROR_SYSTEM && has(e.text, "the device does not end the copies"));
  p[0].memory.stall(false);
  NET_OK([&](mknet_error* f) { return mknet_reset(p[0].net, 6, f); });
  NET_OK([&](mknet_error* f) { return mknet_reset(p[1].net, 6, f); });
  p.connect();
  Kernel(p[0].net).push(send_of(p[0], 4096, 4096, 1024, 2));
  CHECK(p[1].wait(1024, 2));
}

// The device executes in order, so what was marked later than a copy that is not done is not asked for.
TEST(emu_device_is_asked_seldom) {
  for (const bool unordered : {false, true}) {
    static std::atomic<uint64_t> asked;
    asked = 0;
    mknet_device f = {};
    f.copy = [](void*, void*, const void*, uint64_t) { return 0; };
    f.store = [](void*, void*, uint64_t) { return 0; };
    f.mark = [](void*, uint64_t* ticket) {
      static uint64_t marks;
      *ticket = ++marks;
      return 0;
    };
    f.done = [](void*, uint64_t) { return ++asked, 0; };
    using namespace mk::net;
    const Device device(&f);
    mknet_emu link = {};
    link.unordered = unordered ? 1 : 0;
    std::vector<std::unique_ptr<Nic>> nics;
    link.direct = 1;
    std::vector<std::vector<uint64_t>> memory(4, std::vector<uint64_t>(512));
    for (uint32_t r = 0; r < 2; ++r) {
      nics.push_back(make_emu({link, 0, r, 2, {}}, device));
      for (const bool heap : {true, false}) {
        auto& at = memory[r * 2 + (heap ? 0 : 1)];
        Region region;
        region.base = reinterpret_cast<char*>(at.data()), region.bytes = at.size() * 8;
        region.memory = heap ? MKNET_DEVICE : MKNET_HOST;
        nics[r]->add_region(heap ? kHeap : kInbox, region);
      }
    }
    nics[0]->connect(1, 1, nics[1]->common(1), {}, memory[2].data());
    constexpr uint64_t kPieces = 100, kLooks = 50;
    Completion found[64];
    for (uint64_t i = 0; i < kPieces; ++i) {
      Write w;
      w.id = i + 1, w.peer = 1, w.bytes = 64;
      CHECK(nics[0]->post(&w, 1) == 1);
      CHECK(nics[0]->poll(found, 64) == 0);  // each gets a mark of its own
    }
    asked = 0;
    for (uint64_t i = 0; i < kLooks; ++i) CHECK(nics[0]->poll(found, 64) == 0);
    CHECK(asked <= kLooks);
  }
}
