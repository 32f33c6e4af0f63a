#include "net/efa.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <map>

#include "net/clock.h"
#include "net/control.h"
#include "net/efa_lane.h"

namespace mk::net {

namespace {

using namespace verbs;

constexpr uint32_t kMagic = 0x72736665u;
constexpr uint32_t kDefaultDepth = 512;   // sends of a queue pair, which all peers share
constexpr uint32_t kCredits = 128;        // receives per peer, if the device has so many
constexpr uint32_t kRnrRetries = 6;
constexpr uint32_t kCqSpare = 16;

struct Peer {
  Ah* ah = nullptr;            // NULL: not connected
  Gid gid = {};
  std::string name;
  RemoteMemory heap = {}, inbox = {};
  std::vector<std::pair<uint32_t, uint32_t>> queue_pairs;  // number and key, by lane
  uint64_t written = 0, under_way = 0, success_ns = 0;
};

class Efa final : public RdmaNic {
 public:
  Efa(const EfaDevice& device, const mknet_desc& d)
      : RdmaNic(device.port, d, false), efa_(*device.api), q_{efa_, device.attr, port_, pd_}, peers_(world_) {
    // Of what libefa and libibverbs say, the one counts the device's descriptors and the other the memory for them.
    const uint32_t deepest = std::min({q_.attr.max_sq_wr, static_cast<uint32_t>(std::max(1, port_.device.max_qp_wr)), 1u << kEfaSlotBits});
    q_.depth = s_.depth != 0 ? s_.depth : std::min(kDefaultDepth, deepest);
    if (q_.depth > deepest) fail(MKNET_ERROR_ARGUMENT, "%s: queue pairs of %u slots; the device has up to %u", name(), q_.depth, deepest);
    q_.rnr_retries = s_.rnr_retries != 0 ? s_.rnr_retries : kRnrRetries;
    p_.ordered = false;
    p_.lanes = s_.qps != 0 ? s_.qps : 1;
    if (p_.lanes > kMaxLanes / kMaxNics) fail(MKNET_ERROR_ARGUMENT, "%u queue pairs per NIC; up to %u can be used", p_.lanes, kMaxLanes / kMaxNics);
    p_.max_write = std::min<uint64_t>(q_.attr.max_rdma_size, uint64_t{1} << 30);
    // Every immediate takes a receive, and a credit may be spent on any queue pair, so each has those of all peers. The
    // completion queue has room for all that can be under way: it never overflows.
    const uint32_t others = std::max(1u, world_ - 1);
    const uint64_t room = static_cast<uint64_t>(std::max(0, port_.device.max_cqe)) / p_.lanes;
    const uint64_t receives = std::min<uint64_t>(q_.attr.max_rq_wr, room > q_.depth + kCqSpare ? room - q_.depth - kCqSpare : 0);
    p_.credits = static_cast<uint32_t>(std::min<uint64_t>(kCredits, receives / others));
    if (p_.credits == 0)
      fail(MKNET_ERROR_UNSUPPORTED, "%s: %u receives and %d completions, as the device has, are too few for %u queue pairs and %u peers", name(),
           q_.attr.max_rq_wr, port_.device.max_cqe, p_.lanes, others);
    q_.receives = p_.credits * others;
    q_.service_level = s_.service_level;
  }
  ~Efa() override {
    disconnect();
    if (scratch_mr_ != nullptr) api_.dereg_mr(scratch_mr_);
  }

  // Queue pairs serve all peers; they are ready before anybody knows them.
  Blob common(uint64_t job) override {
    if (q_.cq == nullptr) open_queues();
    BlobWriter w;
    w.put(kMagic);
    w.put(job);
    w.put(port_.gid.gid);
    w.put(p_.max_write);
    w.put(false);  // immediates take receives
    w.put_text(p_.name);
    return w.take();
  }

  Blob endpoint(uint32_t) override {
    BlobWriter w;
    put_memory(w);
    for (const auto& l : lanes_) w.put(l->qp->qp_num), w.put(l->qkey);
    return w.take();
  }

  void connect(uint32_t peer, uint64_t job, const Blob& common, const Blob& own, void*) override {
    BlobReader r(common.data(), common.size()), o(own.data(), own.size());
    if (r.get<uint32_t>() != kMagic) fail(MKNET_ERROR_PEER, "this is no endpoint of an EFA device");
    if (r.get<uint64_t>() != job) fail(MKNET_ERROR_PEER, "its endpoint belongs to another job or generation");
    Peer p;
    p.gid = r.get<Gid>();
    const uint64_t max_write = r.get<uint64_t>();
    if (r.get<bool>()) fail(MKNET_ERROR_PEER, "its immediates take no receives, those of this rank do: use the same version on all hosts");
    p.name = r.get_text();
    r.end();
    if (max_write == 0) fail(MKNET_ERROR_PEER, "its %s takes no writes", p.name.c_str());
    p.heap = o.get<RemoteMemory>(), p.inbox = o.get<RemoteMemory>();
    for (size_t i = 0; i < lanes_.size(); ++i) {
      const uint32_t qp = o.get<uint32_t>();
      if (qp == 0 || qp >> 24 != 0) fail(MKNET_ERROR_PEER, "its queue pair number %#x is none", qp);
      p.queue_pairs.emplace_back(qp, o.get<uint32_t>());
    }
    o.end();
    p.ah = handle_of(p.gid);
    p.success_ns = now_ns();
    peers_[peer] = p;
    p_.max_write = std::min(p_.max_write, max_write);
  }

  size_t post(const Write* writes, size_t n) override {
    if (n == 0) return 0;
    Peer& peer = peers_[writes[0].peer];
    if (peer.ah == nullptr) fail(MKNET_ERROR_PEER, "%s: there is no connection to rank %u", name(), writes[0].peer);
    EfaLane& lane = *lanes_[writes[0].lane];
    n = std::min({n, lane.free.size(), kBatch});
    if (n == 0) return 0;
    lane.ex->start(lane.ex);
    for (size_t i = 0; i < n; ++i) {
      const Write& w = writes[i];
      if (!inside(w, w.target_region == kInbox ? peer.inbox : peer.heap)) {
        lane.ex->abort(lane.ex);
        refuse(w, w.target_region == kInbox ? peer.inbox : peer.heap, path_text(w.peer, w.lane));
      }
      add(lane, peer, w, lane.free[lane.free.size() - 1 - i]);
    }
    if (const int rc = lane.ex->complete(lane.ex); rc != 0) {
      // Nothing of it was posted. Devices may run out of room before their nominal depth: what is under way makes some.
      if (error_of(rc) == ENOMEM && lane.free.size() < q_.depth) return 0;
      poll_device();  // a completion with an error says more
      fail(MKNET_ERROR_SYSTEM, "%s: posting %zu writes: %s", path_text(writes[0].peer, writes[0].lane).c_str(), n, strerror(error_of(rc)));
    }
    for (size_t i = 0; i < n; ++i) {
      EfaSlot& s = lane.slots[lane.free.back()];
      lane.free.pop_back();
      s.id = writes[i].id, s.peer = writes[i].peer, s.taken = true;
    }
    peer.under_way += n;
    return n;
  }

  bool listens() const override { return true; }

  void disconnect() override {
    lanes_.clear();
    for (auto& [_, ah] : handles_) efa_.destroy_ah(ah);
    handles_.clear();
    peers_.assign(world_, {});
    if (q_.cq != nullptr) api_.destroy_cq(&q_.cq->base);
    q_.cq = nullptr;
    ready_.clear();
  }

  std::string path(uint32_t peer, uint32_t lane) const override {
    const Peer& p = peers_[peer];
    if (p.ah == nullptr) return "not connected";
    return format("%s queue pair %u to %s queue pair %u of %s", text_of(port_.gid.gid).c_str(), lanes_[lane]->qp->qp_num, text_of(p.gid).c_str(),
                  p.queue_pairs[lane].first, p.name.c_str());
  }

  std::string describe() const override {
    return format("%s: EFA (device %#x), %s, %u queue pair%s of %u sends, %u receives per peer, writes of up to %" PRIu64 " bytes%s%s", name(),
                  port_.device.vendor_part_id, text_of(port_.gid.gid).c_str(), p_.lanes, p_.lanes == 1 ? "" : "s", q_.depth, p_.credits, p_.max_write,
                  how_.empty() ? "" : ", heap ", how_.c_str());
  }

  const char* advice() const override { return kEfaAdvice; }

 private:
  // All or nothing.
  void open_queues() {
    try {
      if (scratch_mr_ == nullptr && !(scratch_mr_ = api_.reg_mr(pd_, scratch_, sizeof scratch_, kLocalWrite)))
        fail(MKNET_ERROR_SYSTEM, "%s: registering %zu bytes for receives: %s%s", name(), sizeof scratch_, strerror(errno), memlock_hint(errno).c_str());
      q_.scratch = {reinterpret_cast<uint64_t>(scratch_), sizeof scratch_, scratch_mr_->lkey};
      make_cq();
      while (lanes_.size() < p_.lanes) {
        lanes_.push_back(std::make_unique<EfaLane>(q_, static_cast<uint32_t>(lanes_.size())));
        lanes_.back()->open();
      }
    } catch (...) {
      disconnect();
      throw;
    }
  }

  void make_cq() {
    CqInitEx init = {};
    init.cqe = p_.lanes * (q_.depth + q_.receives + kCqSpare);
    init.wc_flags = kCqWithImmediate;
    EfaCqInit efa = {};
    if (!(q_.cq = efa_.create_cq(port_.context.get(), &init, &efa, sizeof efa))) {
      const int e = errno;
      fail(MKNET_ERROR_SYSTEM, "%s: a completion queue of %u entries: %s%s", name(), init.cqe, strerror(e), memlock_hint(e).c_str());
    }
    // What the device rounded it to, which is no less.
    if (static_cast<uint32_t>(q_.cq->base.cqe) < p_.lanes * (q_.depth + q_.receives))
      fail(MKNET_ERROR_SYSTEM, "%s: its completion queue has %d entries, %u were asked for", name(), q_.cq->base.cqe, init.cqe);
  }

  // One for each device that peers have, not for each peer.
  Ah* handle_of(const Gid& gid) {
    std::array<uint8_t, 16> key;
    std::copy(std::begin(gid.raw), std::end(gid.raw), key.begin());
    if (const auto known = handles_.find(key); known != handles_.end()) return known->second;
    AhAttr a = {};
    a.dgid = gid;
    a.is_global = 1;
    a.port_num = port_.number;
    Ah* ah = efa_.create_ah(pd_, &a);
    if (ah == nullptr) fail(MKNET_ERROR_SYSTEM, "%s: an address handle for %s: %s", name(), text_of(gid).c_str(), strerror(errno));
    return handles_[key] = ah;
  }

  void add(EfaLane& lane, const Peer& peer, const Write& w, uint32_t slot) {
    const RemoteMemory& there = w.target_region == kInbox ? peer.inbox : peer.heap;
    const Region& from = regions_[w.region];
    QpEx* qp = lane.ex;
    const bool inlined = w.bytes > 0 && w.bytes <= lane.inline_bytes && from.memory == MKNET_HOST;
    qp->wr_id = wr_id(kSend, lane.number(), uint64_t{++lane.slots[slot].uses} << kEfaSlotBits | slot);
    qp->wr_flags = kSignaled;  // all: the device knows no others
    if (w.immediate)
      qp->write_immediate(qp, there.rkey, there.base + w.target, htonl(w.imm));
    else
      qp->write(qp, there.rkey, there.base + w.target);
    if (inlined)
      qp->set_inline(qp, from.base + w.source, w.bytes);
    else if (w.bytes > 0)
      qp->set_sge(qp, mrs_[w.region]->lkey, reinterpret_cast<uint64_t>(from.base) + w.source, static_cast<uint32_t>(w.bytes));
    qp->set_address(qp, peer.ah, peer.queue_pairs[w.lane].first, peer.queue_pairs[w.lane].second);
  }

  // A completion as it was read; of one with an error only these three mean anything.
  struct Event {
    uint64_t id;
    int status;
    uint32_t vendor, imm;
    bool immediate;
  };

  void poll_device() override {
    if (q_.cq == nullptr) return;
    Event events[kBatch];
    size_t n = 0;
    PollAttr attr = {};
    int rc = q_.cq->start_poll(q_.cq, &attr);
    if (rc == ENOENT) return;
    const bool started = rc == 0;
    for (; rc == 0; rc = n < kBatch ? q_.cq->next_poll(q_.cq) : ENOENT) {
      Event& e = events[n++];
      e = {q_.cq->wr_id, q_.cq->status, 0, 0, false};
      if (e.status != kWcSuccess) {
        e.vendor = q_.cq->read_vendor_error(q_.cq);
        continue;
      }
      e.immediate = q_.cq->read_opcode(q_.cq) == kWcRecvImmediate && (q_.cq->read_flags(q_.cq) & kWcWithImmediate) != 0;
      if (e.immediate) e.imm = ntohl(q_.cq->read_immediate(q_.cq));
    }
    if (started) q_.cq->end_poll(q_.cq);
    // The first error that is no flush is the cause; flushes follow from it.
    const Event* cause = nullptr;
    for (size_t i = 0; i < n; ++i)
      if (events[i].status != kWcSuccess && (cause == nullptr || (cause->status == kWcFlushed && events[i].status != kWcFlushed))) cause = &events[i];
    if (cause != nullptr) explain(*cause);
    if (rc != ENOENT) fail(MKNET_ERROR_SYSTEM, "%s: polling completions: %s", name(), strerror(error_of(rc)));
    for (size_t i = 0; i < n; ++i) complete(events[i]);
    // Before anybody is told that the immediates were taken.
    for (const auto& l : lanes_) l->refill();
  }

  EfaLane& lane_of(const Event& e) {
    const uint64_t kind = wr_kind(e.id);
    if (e.id == 0 && e.immediate)
      fail(MKNET_ERROR_PEER, "%s: an immediate came that took no receive: a peer uses another version of this library", name());
    if (wr_qp(e.id) >= lanes_.size() || (kind != kSend && kind != kReceive))
      fail(MKNET_ERROR_SYSTEM, "%s: a completion names work %#" PRIx64 ", which was never posted", name(), e.id);
    return *lanes_[wr_qp(e.id)];
  }

  EfaSlot& slot_of(const Event& e) {
    EfaLane& lane = lane_of(e);
    const uint64_t slot = wr_number(e.id) & ((1u << kEfaSlotBits) - 1);
    constexpr uint64_t kUses = kWrNumberMask >> kEfaSlotBits;
    if (slot >= q_.depth || !lane.slots[slot].taken || (lane.slots[slot].uses & kUses) != wr_number(e.id) >> kEfaSlotBits)
      fail(MKNET_ERROR_SYSTEM, "%s: a completion of write %" PRIu64 ", which is not under way", name(), wr_number(e.id));
    return lane.slots[slot];
  }

  void complete(const Event& e) {
    EfaLane& lane = lane_of(e);
    Completion c;
    if (wr_kind(e.id) == kReceive) {
      if (!e.immediate) fail(MKNET_ERROR_PEER, "%s: something without an immediate arrived at queue pair %u", name(), lane.qp->qp_num);
      c.kind = Completion::kArrived;
      c.imm = e.imm;
      ++lane.missing;
    } else {
      EfaSlot& s = slot_of(e);
      c.id = s.id;
      s.taken = false;
      lane.free.push_back(static_cast<uint32_t>(&s - lane.slots.data()));
      Peer& p = peers_[s.peer];
      ++p.written, --p.under_way;
      p.success_ns = now_ns();
    }
    ready_.push_back(c);
  }

  [[noreturn]] void explain(const Event& e) {
    read_events();
    const EfaLane& lane = lane_of(e);
    const char* hint = hint_of_efa(e.vendor);
    const std::string status = format("%s (status %d, EFA status %u)", api_.wc_status_str(e.status), e.status, e.vendor);
    const std::string more = (*hint != '\0' ? std::string(": ") + hint : "") + events_text();
    if (wr_kind(e.id) == kReceive)
      fail(MKNET_ERROR_PEER, "%s, queue pair %u, a receive: %s%s", name(), lane.qp->qp_num, status.c_str(), more.c_str());
    const uint32_t rank = slot_of(e).peer;
    const Peer& p = peers_[rank];
    fail(MKNET_ERROR_PEER, "%s: %s %.3g s after the last success, %s done, %" PRIu64 " under way%s",
         path_text(rank, lane.number()).c_str(), status.c_str(), static_cast<double>(now_ns() - p.success_ns) / 1e9,
         counted(p.written, "write").c_str(), p.under_way, more.c_str());
  }

  std::string path_text(uint32_t peer, uint32_t lane) const { return format("%s to rank %u (%s)", name(), peer, path(peer, lane).c_str()); }

  const EfaApi& efa_;
  alignas(64) char scratch_[64] = {};  // of receives
  Mr* scratch_mr_ = nullptr;
  EfaQueues q_;
  std::vector<std::unique_ptr<EfaLane>> lanes_;
  std::map<std::array<uint8_t, 16>, Ah*> handles_;
  std::vector<Peer> peers_;
};

}  // namespace

std::vector<std::unique_ptr<Nic>> open_efa(const mknet_desc& d) {
  const std::vector<EfaDevice> devices = find_efa_devices(load_efa(d.rdma.library, d.rdma.efa_home), d.rdma.devices);
  std::vector<std::unique_ptr<Nic>> nics;
  for (size_t i = 0; i < std::min<size_t>(devices.size(), kMaxNics); ++i) nics.push_back(std::make_unique<Efa>(devices[i], d));
  return nics;
}

}  // namespace mk::net
