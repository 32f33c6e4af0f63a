#include "net/emu.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <deque>
#include <vector>

#include "net/emu_wire.h"

namespace mk::net {

namespace {

constexpr uint32_t kMagic = 0x756d656bu;
constexpr size_t kUnderWay = 256;      // writes of one NIC
constexpr uint32_t kCredits = 128;     // immediates per peer
constexpr uint64_t kDefaultPiece = 1 << 20;
constexpr uint64_t kEarly = 128;       // bytes of a write that may be read at once

// Identity of the host and of its process numbers.
std::string host_id() {
  std::string id;
  if (FILE* f = fopen("/proc/sys/kernel/random/boot_id", "re")) {
    char text[64] = "";
    if (fgets(text, sizeof text, f) != nullptr) id = text;
    fclose(f);
  }
  struct stat st;
  if (stat("/proc/self/ns/pid", &st) == 0) id += std::to_string(st.st_ino);
  return id;
}

// splitmix64: small, seeded, good enough for schedules.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
};

struct Piece {
  Write write;
  uint64_t start;  // when its first byte leaves
  uint64_t due;    // when its last byte arrives
  bool lost;
  bool begun;      // device: the copy was started
  uint64_t ticket;
  bool early;      // the source was read when the write was posted, into:
  unsigned char bytes[kEarly];
};

struct Peer {
  bool connected = false;
  int pidfd = -1;
  int pid = 0;
  Shared heap, inbox;
  int heap_memory = MKNET_HOST;
  std::unique_ptr<Arrivals> arrivals;
};

class Emu final : public Nic {
 public:
  Emu(const EmuSettings& s, const Device& device)
      : s_(s), device_(device), random_{s.link.seed * 1000003 + s.rank * 1009 + s.index}, peers_(s.world), regions_(kRegions) {
    p_.name = format("emu %u", s.index);
    p_.ordered = s.link.unordered == 0;
    p_.max_write = s.link.piece != 0 ? s.link.piece : kDefaultPiece;
    p_.credits = kCredits;
    renew();
  }
  ~Emu() override { disconnect(); }

  const NicProperties& properties() const override { return p_; }

  void add_region(uint32_t number, const Region& region) override {
    if (region.memory == MKNET_DEVICE && !device_.given())
      fail(MKNET_ERROR_ARGUMENT, "emu: device memory needs the device functions of mknet_desc");
    regions_[number] = region;
  }

  Blob common(uint64_t job) override {
    BlobWriter w;
    w.put(kMagic);
    w.put(job);
    w.put(static_cast<int32_t>(getpid()));
    w.put_text(host_id());
    w.put(p_.ordered);
    const Region& h = regions_[kHeap];
    w.put(static_cast<int32_t>(h.memory));
    put_shared(w, h.base, h.bytes, h.memory == MKNET_HOST ? h.fd : -1, h.fd_offset);
    const Region& i = regions_[kInbox];
    put_shared(w, i.base, i.bytes, i.fd, i.fd_offset);
    arrivals_->put(w);
    return w.take();
  }
  Blob endpoint(uint32_t) override { return {}; }

  void connect(uint32_t peer, uint64_t job, const Blob& common, const Blob&, void* mapped) override {
    BlobReader r(common.data(), common.size());
    if (r.get<uint32_t>() != kMagic) fail(MKNET_ERROR_PEER, "rank %u: this is no endpoint of an emulated NIC", peer);
    if (r.get<uint64_t>() != job) fail(MKNET_ERROR_PEER, "rank %u: its emulated NIC belongs to another job or generation", peer);
    Peer p;
    p.pid = r.get<int32_t>();
    if (r.get_text() != host_id())
      fail(MKNET_ERROR_UNSUPPORTED, "emu: rank %u is on another host, or in a container with process numbers of its own", peer);
    if (r.get<bool>() != p_.ordered) fail(MKNET_ERROR_PEER, "rank %u emulates another kind of link", peer);
    try {
      p.heap_memory = r.get<int32_t>();
      p.heap = open_shared(r, p.pid, s_.link.direct != 0, "the heap");
      p.inbox = open_shared(r, p.pid, s_.link.direct != 0, "the inbox");
      const uint64_t nonce = r.get<uint64_t>();
      p.arrivals = std::make_unique<Arrivals>(open_shared(r, p.pid, s_.link.direct != 0, "the emulated NIC"), nonce);
      r.end();
      if (mapped != nullptr) p.heap.use(mapped);
      if (p.heap.base == nullptr && p.heap.bytes > 0)
        fail(MKNET_ERROR_ARGUMENT, "emu: the heap of rank %u has no memfd and was not mapped by the caller", peer);
      if (p.heap_memory == MKNET_DEVICE && !device_.given())
        fail(MKNET_ERROR_ARGUMENT, "emu: the heap of rank %u is device memory; the device functions of mknet_desc are needed", peer);
      if (p.pid != getpid() && (p.pidfd = static_cast<int>(syscall(SYS_pidfd_open, p.pid, 0))) < 0)
        fail(MKNET_ERROR_PEER, "rank %u: its process %d is gone: %s", peer, p.pid, strerror(errno));
    } catch (...) {
      drop(p);
      throw;
    }
    p.connected = true;
    drop(peers_[peer]);  // of an attempt that ended at another NIC
    peers_[peer] = std::move(p);
  }

  size_t post(const Write* writes, size_t n) override {
    size_t taken = 0;
    for (; taken < n && under_way_.size() < kUnderWay; ++taken) {
      const Write& w = writes[taken];
      check_bounds(w);
      const uint64_t now = s_.clock();
      Piece p = {w, std::max(now, link_free_), 0, false, false, 0, false, {}};
      const double seconds = s_.link.bandwidth > 0 ? static_cast<double>(w.bytes) / s_.link.bandwidth : 0;
      link_free_ = p.start + static_cast<uint64_t>(seconds * 1e9);
      p.due = link_free_ + s_.link.latency_ns;
      if (!p_.ordered && s_.link.jitter_ns > 0) p.due += random_.next() % (s_.link.jitter_ns + 1);
      p.lost = ++posted_ == s_.link.drop_after;
      // NICs read a small source at any time until the write is complete.
      p.early = w.region == kOutbox && w.bytes <= kEarly && (random_.next() & 1) != 0;
      if (p.early) memcpy(p.bytes, source(w), w.bytes);
      const auto later = [](const Piece& a, const Piece& b) { return a.due < b.due; };
      under_way_.insert(std::upper_bound(under_way_.begin(), under_way_.end(), p, later), p);
    }
    return taken;
  }

  size_t poll(Completion* out, size_t n) override {
    begin_copies();
    undone_ = UINT64_MAX;
    size_t found = 0;
    const uint64_t now = s_.clock();
    for (auto p = under_way_.begin(); p != under_way_.end() && found < n && p->due <= now;) {
      if (!deliver(*p)) {
        if (p_.ordered) break;
        ++p;
        continue;
      }
      out[found].kind = Completion::kWritten;
      out[found++].id = p->write.id;
      p = under_way_.erase(p);
    }
    uint32_t imm;
    while (found < n && arrivals_->take(&imm)) {
      out[found].kind = Completion::kArrived;
      out[found++].imm = imm;
    }
    return found;
  }

  bool listens() const override { return !p_.ordered; }

  void check() override {
    for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
      const Peer& p = peers_[rank];
      if (p.pidfd < 0) continue;
      pollfd f = {p.pidfd, POLLIN, 0};
      if (::poll(&f, 1, 0) == 1 && !p.arrivals->closed())
        fail(MKNET_ERROR_PEER, "%s: the process of rank %u (%d) is gone", p_.name.c_str(), rank, p.pid);
    }
  }

  void disconnect() override {
    under_way_.clear();
    arrivals_->close_politely();
    for (Peer& p : peers_) drop(p);
    try {
      renew();
    } catch (const std::exception&) {
      // Only a later endpoint() needs the new ring; the old one serves until then.
    }
  }

  std::string path(uint32_t peer, uint32_t) const override { return format("process %d", peers_[peer].pid); }
  std::string describe() const override {
    const std::string speed = s_.link.bandwidth > 0 ? format("%.3g GB/s", s_.link.bandwidth / 1e9) : "the memory's speed";
    std::string text = format("%s: %s link of %s, %.3g us", p_.name.c_str(), p_.ordered ? "ordered" : "unordered", speed.c_str(),
                              static_cast<double>(s_.link.latency_ns) / 1e3);
    if (!p_.ordered && s_.link.jitter_ns > 0) text += format(" and up to %.3g us more", static_cast<double>(s_.link.jitter_ns) / 1e3);
    text += format(", pieces of %" PRIu64 " bytes", p_.max_write);
    return s_.link.drop_after == 0 ? text : text + format(", write %" PRIu64 " is lost", s_.link.drop_after);
  }

 private:
  // A ring that no peer of an earlier generation knows.
  void renew() {
    uint32_t capacity = 1;
    while (capacity < s_.world * kCredits) capacity *= 2;
    arrivals_ = std::make_unique<Arrivals>(capacity);
  }

  static void drop(Peer& p) {
    if (p.pidfd >= 0) close(p.pidfd);
    p.heap.unmap();
    p.inbox.unmap();
    p = Peer();
  }

  char* target(const Write& w) { return (w.target_region == kInbox ? peers_[w.peer].inbox.base : peers_[w.peer].heap.base) + w.target; }
  char* source(const Write& w) { return regions_[w.region].base + w.source; }
  const char* from(const Piece& p) { return p.early ? reinterpret_cast<const char*>(p.bytes) : source(p.write); }
  bool on_device(const Write& w) const {
    return regions_[w.region].memory == MKNET_DEVICE || (w.target_region == kHeap && peers_[w.peer].heap_memory == MKNET_DEVICE);
  }
  // A flag: one word of ours for a peer's device memory.
  bool is_device_flag(const Write& w) const { return w.region == kOutbox && w.bytes == 8 && on_device(w); }

  void check_bounds(const Write& w) const {
    const Peer& p = peers_[w.peer];
    if (!p.connected) fail(MKNET_ERROR_PEER, "%s: there is no connection to rank %u", p_.name.c_str(), w.peer);
    const uint64_t there = w.target_region == kInbox ? p.inbox.bytes : p.heap.bytes, here = regions_[w.region].bytes;
    if (w.source > here || w.bytes > here - w.source || w.target > there || w.bytes > there - w.target)
      fail(MKNET_ERROR_PEER, "%s: a write of %" PRIu64 " bytes to rank %u at %" PRIu64 " of %" PRIu64 " is out of bounds",
           p_.name.c_str(), w.bytes, w.peer, w.target, there);
  }

  // Device copies start when the link would begin to carry them, in order.
  void begin_copies() {
    if (!device_.given()) return;
    const uint64_t now = s_.clock();
    std::vector<Piece*> begun;
    for (Piece& p : under_way_) {
      if (p.begun || p.lost || !on_device(p.write) || is_device_flag(p.write) || p.write.bytes == 0) continue;
      if (p.start > now) {
        if (p_.ordered) break;
        continue;
      }
      device_.copy(target(p.write), source(p.write), p.write.bytes);
      p.begun = true;
      begun.push_back(&p);
    }
    if (begun.empty()) return;
    const uint64_t ticket = device_.mark();
    for (Piece* p : begun) p->ticket = ticket;
  }

  // Devices execute in the order of their tickets: behind one that is not done, none is, until the next poll.
  bool executed(uint64_t ticket) {
    if (ticket >= undone_) return false;
    if (device_.done(ticket)) return true;
    undone_ = ticket;
    return false;
  }

  // A NIC writes aligned words whole: flags and credits are read while they are written.
  static void store(char* to, const char* from, uint64_t bytes, bool words) {
    if (!words) {
      memcpy(to, from, bytes);
      return;
    }
    for (uint64_t at = 0; at < bytes; at += 8) {
      uint64_t value;
      memcpy(&value, from + at, sizeof value);
      __atomic_store_n(reinterpret_cast<uint64_t*>(to + at), value, __ATOMIC_SEQ_CST);
    }
  }

  // True when the piece is in the peer's memory and the peer knows.
  bool deliver(Piece& p) {
    const Write& w = p.write;
    if (p.lost)
      fail(MKNET_ERROR_PEER, "%s: write %" PRIu64 " of %" PRIu64 " bytes to rank %u was lost (as asked for)", p_.name.c_str(),
           s_.link.drop_after, w.bytes, w.peer);
    if (w.bytes > 0 && !on_device(w)) {
      if (!p.begun) store(target(w), from(p), w.bytes, w.region == kOutbox);
      p.begun = true;
    } else if (w.bytes > 0) {
      if (is_device_flag(w) && !p.begun) {
        uint64_t value;
        memcpy(&value, from(p), sizeof value);
        device_.store(target(w), value);
        p.ticket = device_.mark();
        p.begun = true;
      }
      if (!p.begun || !executed(p.ticket)) return false;
    }
    return !w.immediate || peers_[w.peer].arrivals->push(w.imm);
  }

  const EmuSettings s_;
  const Device device_;
  NicProperties p_;
  Random random_;
  std::vector<Peer> peers_;
  std::vector<Region> regions_;
  std::unique_ptr<Arrivals> arrivals_;
  std::deque<Piece> under_way_;  // by due
  uint64_t link_free_ = 0;
  uint64_t posted_ = 0;
  uint64_t undone_ = UINT64_MAX;  // the first ticket that this poll has found not done
};

}  // namespace

std::unique_ptr<Nic> make_emu(const EmuSettings& settings, const Device& device) {
  const mknet_emu& l = settings.link;
  if (!(l.bandwidth >= 0) || l.bandwidth > 1e15)
    fail(MKNET_ERROR_ARGUMENT, "emu: a bandwidth of %g bytes/s cannot be emulated", l.bandwidth);
  if (l.piece > 0 && l.piece < 8) fail(MKNET_ERROR_ARGUMENT, "emu: pieces of %u bytes; at least 8 are needed", l.piece);
  return std::make_unique<Emu>(settings, device);
}

}  // namespace mk::net
