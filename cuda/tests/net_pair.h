// Ranks of one process that talk through the C interface, for tests with real threads.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "include/mknet.h"
#include "tests/check.h"

namespace test {

constexpr uint64_t kSecond = 1000000000u;
constexpr uint64_t kPatience = 60 * kSecond;  // for what must come; sanitizers are slow

#define NET_OK(call)                                                               \
  do {                                                                             \
    mknet_error net_error;                                                         \
    if ((call(&net_error)) != MKNET_OK) {                                          \
      ++test::failures();                                                          \
      printf("%s:%d: code %d: %s\n", __FILE__, __LINE__, net_error.code, net_error.text); \
    }                                                                              \
  } while (0)

struct RankNet {
  mknet* net = nullptr;
  std::vector<uint64_t> heap;
  std::vector<char> sources;

  char* data() { return reinterpret_cast<char*>(heap.data()); }
  uint64_t flag(uint64_t offset) const { return __atomic_load_n(&heap[offset / 8], __ATOMIC_ACQUIRE); }
  bool wait(uint64_t offset, uint64_t value) const {
    for (int i = 0; i < 600000; ++i) {
      if (flag(offset) >= value) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return false;
  }
};

class Ranks {
 public:
  // `change` adapts the description of each rank.
  Ranks(int world, uint64_t heap_bytes, const std::function<void(mknet_desc&)>& change) : ranks_(static_cast<size_t>(world)) {
    for (int r = 0; r < world; ++r) {
      RankNet& k = ranks_[static_cast<size_t>(r)];
      k.heap.assign(heap_bytes / 8, 0);
      k.sources.assign(heap_bytes, 0);
      mknet_desc d;
      MKNET_INIT(&d);
      d.backend = "emu";
      d.rank = r;
      d.world = world;
      d.job = 77;
      d.timeout_ns = kPatience;
      change(d);
      NET_OK([&](mknet_error* e) { return mknet_create(&d, &k.net, e); });
      add(k, k.heap.data(), heap_bytes);
      add(k, k.sources.data(), heap_bytes);
    }
  }
  ~Ranks() {
    for (RankNet& k : ranks_) mknet_destroy(k.net, nullptr);
  }

  RankNet& operator[](int r) { return ranks_[static_cast<size_t>(r)]; }
  int size() const { return static_cast<int>(ranks_.size()); }

  // Endpoint data; with an error, none, and its text.
  static std::vector<unsigned char> endpoint(RankNet& k, int peer, std::string* text = nullptr) {
    uint64_t n = 0;
    mknet_error e;
    std::vector<unsigned char> blob;
    if (mknet_endpoint(k.net, peer, nullptr, &n, &e) == MKNET_OK) {
      blob.resize(n);
      mknet_endpoint(k.net, peer, blob.data(), &n, &e);
    }
    if (text != nullptr) *text = e.text;
    else CHECK(e.code == MKNET_OK);
    return blob;
  }

  // Connects all with all; the text of the first error, or "".
  std::string connect() {
    mknet_error e;
    for (int r = 0; r < size(); ++r)
      for (int p = 0; p < size(); ++p)
        if (p != r) {
          std::string text;
          endpoint((*this)[r], p, &text);
          if (!text.empty()) return text;
        }
    for (int r = 0; r < size(); ++r)
      for (int p = 0; p < size(); ++p) {
        if (p == r) continue;
        const auto common = endpoint((*this)[p], -1), own = endpoint((*this)[p], r);
        if (mknet_connect((*this)[r].net, p, common.data(), common.size(), own.data(), own.size(), nullptr, &e) != MKNET_OK)
          return e.text;
      }
    return "";
  }
  std::string start() {
    mknet_error e;
    const std::string fault = connect();
    if (!fault.empty()) return fault;
    for (RankNet& k : ranks_)
      if (mknet_start(k.net, &e) != MKNET_OK) return e.text;
    return "";
  }
  // Verifies on all ranks at once.
  std::string verify(uint64_t timeout_ns = kPatience) {
    std::vector<std::string> texts(ranks_.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks_.size(); ++r)
      threads.emplace_back([&, r] {
        mknet_error e;
        if (mknet_verify(ranks_[r].net, timeout_ns, &e) != MKNET_OK) texts[r] = e.text;
      });
    for (auto& t : threads) t.join();
    std::string all;
    for (const std::string& t : texts)
      if (!t.empty()) all += (all.empty() ? "" : " | ") + t;
    return all;
  }
  void drain() {
    for (RankNet& k : ranks_) NET_OK([&](mknet_error* e) { return mknet_drain(k.net, kPatience, e); });
  }

 private:
  static void add(RankNet& k, void* base, uint64_t bytes) {
    mknet_range range;
    MKNET_INIT(&range);
    range.base = base;
    range.bytes = bytes;
    range.fd = -1;
    NET_OK([&](mknet_error* e) { return mknet_register(k.net, &range, nullptr, e); });
  }

  std::vector<RankNet> ranks_;
};

inline mknet_command command(int peer, uint64_t source, uint64_t target, uint64_t bytes, uint64_t flag, uint64_t value) {
  mknet_command c = {};
  c.op = MKNET_WRITE;
  c.region = 1;
  c.peer = static_cast<uint16_t>(peer);
  c.rows = 1;
  c.source = source;
  c.target = target;
  c.bytes = bytes;
  c.flag = flag;
  c.value = value;
  return c;
}

inline uint64_t nic_wakes(RankNet& k) {
  mknet_stats s;
  MKNET_INIT(&s);
  NET_OK([&](mknet_error* e) { return mknet_statistics(k.net, &s, e); });
  return s.nic_wakes;
}

// Rank 0 sends to rank 1, whose proxy sleeps, again and again until a NIC has woken it, but not more than `most` times; how often.
inline uint64_t sends_until_woken(Ranks& ranks, uint64_t most) {
  for (uint64_t i = 1; i <= most; ++i) {
    const mknet_fifo* fifo = mknet_queue(ranks[1].net);
    while (__atomic_load_n(&fifo->sleeping, __ATOMIC_ACQUIRE) == 0) std::this_thread::yield();
    const mknet_command c = command(1, 0, 0, 8, 1024, i);
    NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
    CHECK(ranks[1].wait(1024, i));
    if (nic_wakes(ranks[1]) > 0) return i;
  }
  return most;
}

}  // namespace test
