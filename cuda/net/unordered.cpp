#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <thread>

#include "net/transfer.h"

namespace mk::net {

namespace {

// One command of a peer that has begun to arrive.
struct Incoming {
  uint64_t came = 0;      // pieces
  uint64_t first_ns = 0;
  bool noticed = false;
  bool whole = false;     // all pieces came
};

constexpr size_t kLandings = 256;  // commands that are being copied into device memory
constexpr uint64_t kStores = 256;  // flags in device memory between two marks, of which
constexpr size_t kMarks = 4;       // so many may be under way
constexpr uint64_t kNap = 20000;   // ns

class Unordered final : public Transfer {
 public:
  explicit Unordered(const TransferSettings& settings) : Transfer(settings), peers_(settings.world) {}

  void add_peer(uint32_t rank, const PeerSettings& settings) override {
    Peer& p = peers_[rank];
    p.ways = make_ways(settings);
    p.credits = settings.credits;
    p.pairs = static_cast<uint32_t>(settings.nics.size());
    for (uint32_t pair = 0; pair < p.pairs; ++pair) p.pair_of[settings.nics[pair]] = static_cast<int>(pair);
    p.next = p.base = p.taken = p.landing = p.told_base = s_.start;
    p.window.assign(kWindow, {});
  }
  uint32_t lanes(uint32_t peer) const override { return static_cast<uint32_t>(peers_[peer].ways.size()); }
  std::string lane_text(uint32_t peer, uint32_t lane) const override { return text_of(peer, peers_[peer].ways[lane]); }

 protected:
  bool knows(uint32_t peer) const override { return !peers_[peer].ways.empty(); }

  uint64_t begin(uint64_t number) override {
    const mknet_command& c = under_way(number).command;
    const uint64_t pieces = pieces_of(c);
    if (pieces == 0 && c.flag == MKNET_NO_FLAG) return 0;
    peers_[c.peer].queue.push_back(number);
    return pieces + 1;  // the notice; without a flag it still tells the peer that the number is used
  }

  bool advance() override {
    bool any = s_.bounce != nullptr && s_.bounce->has_mirror() && land();
    for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
      Peer& p = peers_[rank];
      if (p.ways.empty()) continue;
      if (!p.queue.empty()) {
        read_credit(rank, p);
        fill(rank, p);
      }
      give_credit(rank, p);
      for (Way& w : p.ways) any |= post(w);
    }
    return any;
  }

  void arrived(uint32_t nic, uint32_t imm) override {
    const Immediate i = unpack(imm);
    if (i.rank >= peers_.size() || peers_[i.rank].ways.empty())
      fail(MKNET_ERROR_PEER, "%s: an immediate (%#x) of rank %u, which is no peer", s_.nics[nic]->properties().name.c_str(), imm, i.rank);
    Peer& p = peers_[i.rank];
    const int pair = p.pair_of[nic];
    if (pair < 0)
      fail(MKNET_ERROR_PEER, "%s: an immediate (%#x) of rank %u, which is not connected to this NIC", s_.nics[nic]->properties().name.c_str(), imm, i.rank);
    // The number whose low bits came, next to what is expected.
    const uint64_t ahead = (i.low - p.taken) & ((1u << kSequenceBits) - 1);
    if (ahead >= kWindow)
      fail(MKNET_ERROR_PEER, "rank %u: a piece of command %u of rank %u came, which is not under way (%" PRIu64 " is next)", s_.rank,
           i.low, i.rank, p.taken);
    const uint64_t sequence = p.taken + ahead;
    Incoming& in = p.window[sequence % kWindow];
    if (in.whole) fail(MKNET_ERROR_PEER, "rank %u: command %" PRIu64 " of rank %u has more pieces than it said", s_.rank, sequence, i.rank);
    if (in.came == 0 && !in.noticed) in.first_ns = s_.clock();
    ++p.arrived[pair];
    if (i.notice) {
      if (in.noticed) fail(MKNET_ERROR_PEER, "rank %u: command %" PRIu64 " of rank %u was announced twice", s_.rank, sequence, i.rank);
      in.noticed = true;
      read_notice(i.rank, sequence);
    } else {
      ++in.came;
    }
    if (in.noticed) finish(i.rank, p, sequence, in);
  }

  void credit_written(uint32_t rank) override {
    if (rank >= peers_.size()) fail(MKNET_ERROR_SYSTEM, "a NIC completed a credit for rank %u", rank);
    peers_[rank].telling = false;
  }

  bool quiet() const override {
    return landings_.empty() && std::none_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.telling; });
  }

  void check_arrivals(uint64_t now, uint64_t before) const override {
    for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
      const Peer& p = peers_[rank];
      if (p.ways.empty()) continue;
      const Incoming& in = p.window[p.taken % kWindow];
      if ((in.came == 0 && !in.noticed) || !overdue(in.first_ns, before)) continue;
      if (in.whole)
        fail(MKNET_ERROR_TIMEOUT, "rank %u: the device has not taken command %" PRIu64 " of rank %u, which is whole, after %.3g s", s_.rank, p.taken,
             rank, static_cast<double>(now - in.first_ns) / 1e9);
      fail(MKNET_ERROR_TIMEOUT, "rank %u: command %" PRIu64 " of rank %u is not whole after %.3g s: %" PRIu64 " pieces came, %s", s_.rank,
           p.taken, rank, static_cast<double>(now - in.first_ns) / 1e9, in.came,
           in.noticed ? format("%" PRIu64 " were sent", notice(rank, p.taken).pieces).c_str() : "its notice did not");
    }
  }

 private:
  struct Peer {
    std::vector<Way> ways;
    uint32_t credits = 0;
    uint32_t pairs = 0;                // of NICs
    int pair_of[kMaxNics] = {-1, -1, -1, -1, -1, -1, -1, -1};  // own NIC
    // What we send.
    std::deque<uint64_t> queue;        // commands not yet wholly cut
    Cursor cursor;                     // of the first
    bool numbered = false;             // the first has its number, next - 1
    uint64_t next = 0;                 // number of the next command
    uint64_t base = 0;                 // all below are complete at the peer
    uint64_t sent[kMaxNics] = {}, seen[kMaxNics] = {};  // immediates by pair: posted, and taken by the peer
    uint32_t turn = 0;
    // What we receive.
    uint64_t taken = 0;                // all below are complete
    uint64_t landing = 0;              // all below are complete, or being copied into device memory
    std::vector<Incoming> window;
    uint64_t arrived[kMaxNics] = {};
    uint64_t told_base = 0, told[kMaxNics] = {};
    bool telling = false;              // a credit is under way
    std::unordered_map<uint64_t, uint64_t> raised;  // flags in device memory: what was stored
  };

  Notice notice(uint32_t rank, uint64_t sequence) const {
    Notice n;
    memcpy(&n, inbox(rank * kInboxStride + kNoticesAt + sequence % kWindow * sizeof(Notice)), sizeof n);
    return n;
  }

  // The later one. An acknowledged write is on its way to the memory for good, but may not be in it yet: the words of an
  // older credit can come after those of a later one.
  static bool later(uint64_t a, uint64_t b) { return static_cast<int64_t>(a - b) > 0; }

  // What the peer has taken; it wrote that into our inbox, and it has to make sense.
  void read_credit(uint32_t rank, Peer& p) {
    const auto* c = reinterpret_cast<const Credit*>(inbox(rank * kInboxStride + kCreditAt));
    const uint64_t base = __atomic_load_n(&c->base, __ATOMIC_ACQUIRE) + s_.start;
    if (later(base, p.next))
      fail(MKNET_ERROR_PEER, "rank %u says it took command %" PRIu64 " of rank %u, which has sent %" PRIu64, rank, base, s_.rank, p.next);
    if (later(base, p.base)) p.base = base;
    for (uint32_t pair = 0; pair < p.pairs; ++pair) {
      const uint64_t n = __atomic_load_n(&c->arrived[pair], __ATOMIC_ACQUIRE);
      if (later(n, p.sent[pair]))
        fail(MKNET_ERROR_PEER, "rank %u says it took %" PRIu64 " immediates of rank %u, which has sent %" PRIu64, rank, n, s_.rank, p.sent[pair]);
      if (later(n, p.seen[pair])) p.seen[pair] = n;
    }
  }

  // A way with credit whose batch is not full, the ways in turn; NULL if there is none now.
  Way* choose(Peer& p, int32_t probe_lane) {
    const auto usable = [&](const Way& w) { return p.sent[w.pair] - p.seen[w.pair] < p.credits && w.waiting.size() < kBatch; };
    if (probe_lane >= 0) return usable(p.ways[static_cast<size_t>(probe_lane)]) ? &p.ways[static_cast<size_t>(probe_lane)] : nullptr;
    for (size_t i = 0; i < p.ways.size(); ++i) {
      Way& w = p.ways[(p.turn + i) % p.ways.size()];
      if (!usable(w)) continue;
      p.turn = static_cast<uint32_t>((p.turn + i + 1) % p.ways.size());
      return &w;
    }
    return nullptr;
  }

  // Makes writes of the peer's commands, as far as window, credits and batches go.
  void fill(uint32_t rank, Peer& p) {
    while (!p.queue.empty()) {
      const uint64_t number = p.queue.front();
      const UnderWay& u = under_way(number);
      if (!p.numbered) {
        if (p.next - p.base >= kWindow) return;
        ++p.next;
        p.numbered = true;
      }
      const uint64_t sequence = p.next - 1;
      Way* way = choose(p, u.probe_lane);
      if (way == nullptr) return;
      Write w;
      w.id = id_of(number, kCommand);
      w.peer = rank;
      w.lane = way->lane;
      w.immediate = true;
      const bool data = p.cursor.next(u.command, piece_, &w);
      w.imm = pack(s_.rank, !data, sequence);
      if (!data) {
        const mknet_command& c = u.command;
        const Notice n = {sequence + 1, c.target, c.bytes, c.flag, c.value, c.rows, c.target_stride, pieces_of(c), u.probe_lane >= 0, 0};
        memcpy(outbox(slot_at(number)), &n, sizeof n);
        w.region = kOutbox;
        w.source = slot_at(number);
        w.target_region = kInbox;
        w.target = s_.rank * kInboxStride + kNoticesAt + sequence % kWindow * sizeof(Notice);
        w.bytes = sizeof n;
        p.queue.pop_front();
        p.cursor = {};
        p.numbered = false;
      }
      ++p.sent[way->pair];
      way->waiting.push_back(w);
    }
  }

  // A quarter of what the peer may have under way was taken since it was told last.
  bool owes(const Peer& p) const {
    if (p.taken - p.told_base >= kWindow / 4) return true;
    for (uint32_t pair = 0; pair < p.pairs; ++pair)
      if (p.arrived[pair] - p.told[pair] >= std::max(1u, p.credits / 4)) return true;
    return false;
  }

  // One credit at a time: two could overtake each other, and the older would stay.
  void give_credit(uint32_t rank, Peer& p) {
    if (p.telling || !owes(p)) return;
    Credit c = {p.taken - s_.start, {}};
    std::copy(std::begin(p.arrived), std::end(p.arrived), c.arrived);
    memcpy(outbox(credit_at(rank)), &c, sizeof c);
    Way& way = p.ways[rank % p.ways.size()];
    Write w;
    w.id = id_of(rank, kCredit);
    w.peer = rank;
    w.lane = way.lane;
    w.region = kOutbox;
    w.source = credit_at(rank);
    w.target_region = kInbox;
    w.target = s_.rank * kInboxStride + kCreditAt;
    w.bytes = sizeof c;
    way.waiting.push_back(w);
    p.telling = true;
    p.told_base = p.taken;
    std::copy(std::begin(p.arrived), std::end(p.arrived), p.told);
  }

  // A peer wrote the notice, and may write it again: nothing in it is believed.
  Notice read_notice(uint32_t rank, uint64_t sequence) const {
    const Notice n = notice(rank, sequence);
    const uint64_t heap = (*s_.regions)[kHeap].bytes;
    const bool probe = n.probe == 1 && n.flag >= rank * kInboxStride + kProbesAt && n.flag < rank * kInboxStride + kProbesAt + kMaxLanes * 8;
    const bool flag = n.probe == 0 && (n.flag == MKNET_NO_FLAG || (heap >= 8 && n.flag <= heap - 8));
    if (n.sequence != sequence + 1 || !(probe || flag) || (n.flag != MKNET_NO_FLAG && n.flag % 8 != 0))
      fail(MKNET_ERROR_PEER, "rank %u: the notice of command %" PRIu64 " of rank %u makes no sense (number %" PRIu64 ", flag %" PRIu64 ")",
           s_.rank, sequence, rank, n.sequence - 1, n.flag);
    // Where the bytes are matters only to those who copy them on.
    if (s_.bounce == nullptr || !s_.bounce->has_mirror() || n.bytes == 0 || n.rows == 0) return n;
    const uint64_t before = uint64_t{n.rows - 1} * n.target_stride;  // below 2^64
    if (n.bytes > heap || before > heap - n.bytes || n.target > heap - n.bytes - before || (n.rows > 1 && n.target_stride < n.bytes))
      fail(MKNET_ERROR_PEER, "rank %u: the notice of command %" PRIu64 " of rank %u makes no sense (%u rows of %" PRIu64 " bytes at %" PRIu64 ")",
           s_.rank, sequence, rank, n.rows, n.bytes, n.target);
    return n;
  }

  void finish(uint32_t rank, Peer& p, uint64_t sequence, Incoming& in) {
    const Notice n = read_notice(rank, sequence);
    if (in.came > n.pieces)
      fail(MKNET_ERROR_PEER, "rank %u: command %" PRIu64 " of rank %u has more pieces than the %" PRIu64 " it said", s_.rank, sequence, rank, n.pieces);
    if (in.came < n.pieces) return;
    in.whole = true;
    if (s_.bounce != nullptr && s_.bounce->has_mirror()) return;  // land() goes on with it
    if (n.flag != MKNET_NO_FLAG) raise(p, n);
    while (p.window[p.taken % kWindow].whole) p.window[p.taken++ % kWindow] = {};
  }

  // Copies what is whole into device memory, in the order of its commands, and raises its flags behind it: whoever sent
  // a flag after a command was complete here finds that command's bytes in place, too.
  bool land() {
    bool any = false;
    for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
      Peer& p = peers_[rank];
      while (!p.ways.empty() && landings_.size() < kLandings && p.landing - p.taken < kWindow && p.window[p.landing % kWindow].whole) {
        const Notice n = read_notice(rank, p.landing++);
        s_.bounce->land((*s_.regions)[kHeap].base, n.target, n.rows, n.bytes, n.target_stride);
        if (n.flag != MKNET_NO_FLAG) raise(p, n);
        landings_.emplace_back(rank, s_.device->mark());
        any = true;
      }
    }
    while (!landings_.empty() && s_.device->done(landings_.front().second)) {
      Peer& p = peers_[landings_.front().first];
      p.window[p.taken++ % kWindow] = {};
      landings_.pop_front();
      any = true;
    }
    return any;
  }

  void raise(Peer& p, const Notice& n) {
    ++counts_.flags_raised;
    const Region& to = (*s_.regions)[n.probe == 1 ? kInbox : kHeap];
    auto* word = reinterpret_cast<uint64_t*>(to.base + n.flag);
    if (to.memory == MKNET_HOST) return raise_host(word, n.value);
    uint64_t& last = p.raised[n.flag];
    if (n.value <= last) return;
    last = n.value;
    s_.device->store(word, n.value);
    if (++stores_ % kStores == 0) keep_up();
  }

  // Peers go on when a flag is on its way to the device. So that it never has more to do than its functions can keep, it is waited
  // for here, which is rare; a device that is stuck holds the proxy up for its time-out.
  void keep_up() {
    marks_.push_back(s_.device->mark());
    const uint64_t begin = now_ns();
    while (!marks_.empty()) {
      if (s_.device->done(marks_.front())) {
        marks_.pop_front();
        continue;
      }
      if (marks_.size() <= kMarks) return;
      if (now_ns() - begin >= s_.timeout_ns)
        fail(MKNET_ERROR_TIMEOUT, "rank %u: the device has not stored the flags of its peers after %.3g s", s_.rank,
             static_cast<double>(s_.timeout_ns) / 1e9);
      std::this_thread::sleep_for(std::chrono::nanoseconds(kNap));
    }
  }

  std::vector<Peer> peers_;
  std::deque<std::pair<uint32_t, uint64_t>> landings_;  // rank, ticket; in the device's order
  uint64_t stores_ = 0;
  std::deque<uint64_t> marks_;  // every kStores of them
};

}  // namespace

std::unique_ptr<Transfer> make_unordered(const TransferSettings& settings) { return std::make_unique<Unordered>(settings); }

}  // namespace mk::net
