// A world of ranks that send to each other in one thread, on a clock that the test moves: every schedule comes from a
// seed. Receivers look at their flags after every step; a flag that is up with data not in place, a flag that goes
// down, a source that was still needed when its command was complete, all show.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "net/control.h"
#include "net/error.h"
#include "net/transfer.h"

namespace test {

struct Rng {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t n) { return next() % n; }
};

struct ModelOptions {
  uint32_t ranks = 2;
  uint32_t slots = 6;        // landing slots of each sender at each receiver
  uint64_t commands = 60;    // per rank
  uint64_t start = 0;
  bool ordered = true;       // which transfer
  uint64_t max_step = 400;   // ns that the clock moves at most
  bool bounce = false;       // heap and sources are memory of a device, which NICs do not know
  bool device = false;       // they are, and NICs move it with the device's functions
  uint64_t patience_ns = 0;  // real time that the world may take at least: over a real network, the kernel has its own pace
};

// A device that executes copies and stores in order, when the test lets it.
class ModelDevice {
 public:
  mknet_device functions() {
    mknet_device f = {};
    f.user = this;
    f.copy = [](void* user, void* to, const void* from, uint64_t bytes) { return add(user, [=] { memcpy(to, from, bytes); }); };
    f.store = [](void* user, void* to, uint64_t value) { return add(user, [=] { memcpy(to, &value, sizeof value); }); };
    f.mark = [](void* user, uint64_t* ticket) {
      *ticket = of(user).added_;
      return 0;
    };
    f.done = [](void* user, uint64_t ticket) { return of(user).executed_ >= ticket ? 1 : 0; };
    return f;
  }
  void step() {
    if (work_.empty()) return;
    work_.front()();
    work_.pop_front();
    ++executed_;
  }

 private:
  static ModelDevice& of(void* user) { return *static_cast<ModelDevice*>(user); }
  static int add(void* user, std::function<void()> f) {
    of(user).work_.push_back(std::move(f));
    ++of(user).added_;
    return 0;
  }
  std::deque<std::function<void()>> work_;
  uint64_t added_ = 0, executed_ = 0;
};

// Makes rank r's NICs; they read the clock given, and have the functions of the rank's device, if it has one.
using MakeNics = std::function<std::vector<std::unique_ptr<mk::net::Nic>>(uint32_t rank, mk::net::ClockRef clock, const mk::net::Device& device)>;

class Model {
 public:
  static constexpr uint64_t kSlot = 512, kSlotStride = 576, kFlagAt = 520, kSourceStride = 1024;

  Model(uint64_t seed, const ModelOptions& o, const MakeNics& make) : o_(o), rng_{seed}, ranks_(o.ranks) {
    using namespace mk::net;
    const ClockRef clock = {[](void* user) { return static_cast<Model*>(user)->now_; }, this};
    for (uint32_t r = 0; r < o.ranks; ++r) {
      Rank& k = ranks_[r];
      k.heap.assign(o.ranks * o.slots * kSlotStride / 8, 0);
      k.sources.assign(o.commands * kSourceStride, 0);
      k.inbox.assign(inbox_bytes(o.ranks) / 8, 0);
      k.outbox.assign(outbox_bytes(o.ranks) / 8, 0);
      k.regions.resize(kRegions);
      k.regions[kHeap] = region(k.heap.data(), k.heap.size() * 8, true);
      k.regions[1] = region(k.sources.data(), k.sources.size(), false);
      k.regions[kInbox] = region(k.inbox.data(), k.inbox.size() * 8, true);
      k.regions[kOutbox] = region(k.outbox.data(), k.outbox.size() * 8, false);
      k.functions = k.gpu.functions();
      k.device = std::make_unique<Device>(o.bounce || o.device ? &k.functions : nullptr);
      k.nics = make(r, clock, *k.device);
      if (o.bounce || o.device) {
        k.bounce = std::make_unique<Bounce>(*k.device);
        for (const uint32_t n : {kHeap, 1u}) k.regions[n].memory = MKNET_DEVICE, k.regions[n].bounced = o.bounce;
      }
      std::vector<Region> known = k.regions;
      if (o.bounce) {
        known[kHeap] = k.bounce->make_mirror(k.regions[kHeap].bytes);
        known[1] = known[kStage] = k.regions[kStage] = k.bounce->make_stage();
      }
      for (auto& nic : k.nics)
        for (const uint32_t n : {kHeap, 1u, kStage, kInbox, kOutbox})
          if (known[n].base != nullptr) nic->add_region(n, known[n]);
      k.sent.resize(o.ranks);
      k.epoch.assign(o.ranks, std::vector<uint64_t>(o.slots, 0));
      k.free.assign(o.ranks, std::vector<bool>(o.slots, true));
      k.expected.assign(o.ranks, std::vector<std::vector<unsigned char>>(o.slots, std::vector<unsigned char>(kSlot, 0)));
      k.seen.assign(o.ranks, std::vector<uint64_t>(o.slots, 0));
    }
    for (uint32_t r = 0; r < o.ranks; ++r) {
      Rank& k = ranks_[r];
      TransferSettings s;
      s.rank = r, s.world = o.ranks, s.start = o.start, s.timeout_ns = UINT64_MAX, s.clock = clock;
      for (auto& nic : k.nics) s.nics.push_back(nic.get());
      s.regions = &k.regions;
      s.device = k.device.get(), s.bounce = k.bounce.get();
      k.transfer = o.ordered ? make_ordered(s) : make_unordered(s);
    }
    std::vector<std::vector<Blob>> common(o.ranks);
    std::vector<std::vector<std::vector<Blob>>> own(o.ranks);  // rank, peer, NIC
    for (uint32_t r = 0; r < o.ranks; ++r) {
      for (auto& nic : ranks_[r].nics) common[r].push_back(nic->common(1));
      own[r].resize(o.ranks);
      for (uint32_t p = 0; p < o.ranks; ++p)
        if (p != r)
          for (auto& nic : ranks_[r].nics) own[r][p].push_back(nic->endpoint(p));
    }
    for (uint32_t r = 0; r < o.ranks; ++r)
      for (uint32_t p = 0; p < o.ranks; ++p) {
        if (p == r) continue;
        PeerSettings s;
        s.credits = UINT32_MAX;
        for (uint32_t n = 0; n < std::min(ranks_[r].nics.size(), ranks_[p].nics.size()); ++n) {
          s.nics.push_back(n);
          s.credits = std::min({s.credits, ranks_[r].nics[n]->properties().credits, ranks_[p].nics[n]->properties().credits});
          ranks_[r].nics[n]->connect(p, 1, common[p][n], own[p][r][n], nullptr);
        }
        ranks_[r].transfer->add_peer(p, s);
      }
  }

  // Runs to the end; the text of the first fault, or "".
  std::string run() {
    try {
      const uint64_t begun = mk::net::now_ns();
      for (uint64_t steps = 0; !finished(); ++steps) {
        if (steps > 2000 * o_.commands * o_.ranks && mk::net::now_ns() - begun >= o_.patience_ns) return "the world came to no end";
        now_ += rng_.below(o_.max_step) + 1;
        Rank& k = ranks_[rng_.below(o_.ranks)];
        const uint32_t r = static_cast<uint32_t>(&k - ranks_.data());
        if (rng_.below(3) == 0 && k.pushed < o_.commands) push(r, k);
        k.transfer->progress();
        for (uint64_t n = rng_.below(4); (o_.bounce || o_.device) && n > 0; --n) ranks_[rng_.below(o_.ranks)].gpu.step();
        if (!reuse_sources(k)) return fault_;
        for (uint32_t p = 0; p < o_.ranks; ++p)
          if (!look(p)) return fault_;
      }
    } catch (const mk::net::Error& e) {
      return e.what();
    }
    return "";
  }

  uint64_t writes() const {
    uint64_t n = 0;
    for (const Rank& k : ranks_) n += k.transfer->counts().writes;
    return n;
  }

 private:
  struct Rank {
    std::vector<uint64_t> heap, inbox, outbox;
    std::vector<unsigned char> sources;
    std::vector<mk::net::Region> regions;
    ModelDevice gpu;
    mknet_device functions = {};
    std::unique_ptr<mk::net::Device> device;
    std::unique_ptr<mk::net::Bounce> bounce;
    std::vector<std::unique_ptr<mk::net::Nic>> nics;
    std::unique_ptr<mk::net::Transfer> transfer;
    uint64_t pushed = 0, reused = 0;
    // As a sender, by peer and slot.
    std::vector<std::vector<uint64_t>> epoch;
    std::vector<std::deque<uint64_t>> sent;  // by peer: commands whose sources may not be reused yet
    // As a receiver, by sender and slot.
    std::vector<std::vector<bool>> free;
    std::vector<std::vector<std::vector<unsigned char>>> expected;
    std::vector<std::vector<uint64_t>> seen;
  };

  static mk::net::Region region(void* base, uint64_t bytes, bool writable) {
    mk::net::Region r;
    r.base = static_cast<char*>(base), r.bytes = bytes, r.writable = writable;
    return r;
  }

  uint64_t slot_at(uint32_t sender, uint32_t slot) const { return (sender * o_.slots + slot) * kSlotStride; }

  void push(uint32_t r, Rank& k) {
    if (!k.transfer->room()) return;
    uint32_t peer = static_cast<uint32_t>(rng_.below(o_.ranks - 1));
    if (peer >= r) ++peer;
    const uint32_t slot = static_cast<uint32_t>(rng_.below(o_.slots));
    Rank& to = ranks_[peer];
    if (!to.free[r][slot]) return;
    to.free[r][slot] = false;
    mknet_command c = {};
    c.op = MKNET_WRITE;
    c.region = 1;
    c.peer = static_cast<uint16_t>(peer);
    c.source = k.pushed * kSourceStride;
    c.rows = static_cast<uint32_t>(rng_.below(4));
    c.bytes = rng_.below(4) == 0 ? rng_.below(9) : rng_.below(kSlot / 4 + 1);
    if (rng_.below(8) == 0) c.rows = 1, c.bytes = kSlot;
    c.source_stride = static_cast<uint32_t>(c.bytes + rng_.below(2) * 32);
    c.target_stride = static_cast<uint32_t>(rng_.below(2) == 0 ? c.bytes : kSlot / 4);
    if (rng_.below(16) == 0) c.rows = 0;
    const uint64_t at = rng_.below(kSlot - (c.rows > 0 ? (c.rows - 1) * uint64_t{c.target_stride} + c.bytes : 0) + 1);
    c.target = slot_at(r, slot) + at;
    c.flag = slot_at(r, slot) + kFlagAt;
    c.value = ++k.epoch[peer][slot];
    std::vector<unsigned char>& want = to.expected[r][slot];
    for (uint64_t row = 0; row < c.rows; ++row)
      for (uint64_t i = 0; i < c.bytes; ++i) {
        const auto byte = static_cast<unsigned char>(rng_.next());
        k.sources[c.source + row * c.source_stride + i] = byte;
        want[at + row * c.target_stride + i] = byte;
      }
    k.sent[peer].push_back(k.pushed);
    k.transfer->submit(c, o_.start + k.pushed);
    ++k.pushed;
  }

  // A source may be overwritten once its command is complete, whatever those to others do; none is told late.
  bool reuse_sources(Rank& k) {
    k.transfer->completions([&](uint32_t peer, uint64_t position) {
      for (auto& sent = k.sent[peer]; !sent.empty() && sent.front() < position - o_.start; sent.pop_front(), ++k.reused)
        std::fill_n(k.sources.begin() + static_cast<ptrdiff_t>(sent.front() * kSourceStride), kSourceStride, 0xee);
    });
    const uint64_t complete = k.transfer->completed() - o_.start;
    for (const auto& sent : k.sent)
      if (!sent.empty() && sent.front() < complete) return fault("command %llu is complete, all below %llu are, and its peer's mark says no", sent.front(), complete);
    return true;
  }

  bool look(uint32_t receiver) {
    Rank& k = ranks_[receiver];
    const auto* heap = reinterpret_cast<const unsigned char*>(k.heap.data());
    for (uint32_t sender = 0; sender < o_.ranks; ++sender)
      for (uint32_t slot = 0; slot < o_.slots; ++slot) {
        const uint64_t flag = k.heap[(slot_at(sender, slot) + kFlagAt) / 8];
        uint64_t& seen = k.seen[sender][slot];
        if (flag == seen) continue;
        if (flag != seen + 1) return fault("flag %llu after %llu", flag, seen);
        seen = flag;
        if (!std::equal(k.expected[sender][slot].begin(), k.expected[sender][slot].end(), heap + slot_at(sender, slot)))
          return fault("flag %llu is up and the data of sender %llu is not there", flag, sender);
        k.free[sender][slot] = true;
      }
    return true;
  }

  bool finished() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& k) {
      return k.pushed == o_.commands && k.transfer->idle() && k.reused == o_.commands &&
             std::all_of(k.free.begin(), k.free.end(), [](const auto& f) { return std::find(f.begin(), f.end(), false) == f.end(); });
    });
  }

  bool fault(const char* pattern, uint64_t a, uint64_t b) {
    char text[120];
    snprintf(text, sizeof text, pattern, static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
    fault_ = text;
    return false;
  }

  ModelOptions o_;
  Rng rng_;
  uint64_t now_ = 1;
  std::vector<Rank> ranks_;
  std::string fault_;
};

}  // namespace test
