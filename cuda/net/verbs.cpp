#include "net/verbs.h"

#include <arpa/inet.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <deque>

#include "net/control.h"
#include "net/rdma_nic.h"
#include "net/verbs_port.h"

namespace mk::net {

namespace {

using namespace verbs;

constexpr uint32_t kMagic = 0x73627276u;
constexpr uint32_t kDefaultDepth = 128;
constexpr uint32_t kDefaultTimeout = 18, kDefaultRetries = 6;  // about 7.5 s until a dead peer is reported
constexpr uint32_t kDefaultRnrRetries = 6;                     // receives are posted ahead
constexpr uint8_t kRnrTimer = 12;                              // 0.64 ms between tries
constexpr uint32_t kCredits = 128;                             // receives per queue pair, where immediates are used
constexpr uint32_t kInlineBytes = 64;
constexpr int kCqSpare = 16;

struct Connection {
  Qp* qp = nullptr;
  uint32_t peer = 0, lane = 0, psn = 0, inline_bytes = 0;
  bool ready = false;             // RTS
  RemoteMemory heap = {}, inbox = {};
  PortAddress theirs;
  uint32_t their_qp = 0;
  uint64_t next = 1;              // number of the next send
  std::deque<uint64_t> posted;    // ids of sends that hold a slot, oldest first
  uint64_t oldest = 1;            // number of the first of them
  uint64_t written = 0;           // sends complete
  uint64_t success_ns = 0;        // when the last completion came
};

class Verbs final : public RdmaNic {
 public:
  Verbs(const Port& port, const mknet_desc& d) : RdmaNic(port, d, true) {
    if (s_.timeout == 0) s_.timeout = kDefaultTimeout;
    if (s_.retries == 0) s_.retries = kDefaultRetries;
    if (s_.rnr_retries == 0) s_.rnr_retries = kDefaultRnrRetries;
    depth_ = s_.depth != 0 ? s_.depth : kDefaultDepth;
    if (s_.retries > 6) fail(MKNET_ERROR_ARGUMENT, "%u retries: 1 to 6; some devices take 7 as \"for ever\"", s_.retries);
    if (s_.timeout > 31) fail(MKNET_ERROR_ARGUMENT, "a time-out of 4.096 us x 2^%u; the exponent is at most 31", s_.timeout);
    if (s_.rnr_retries > 7) fail(MKNET_ERROR_ARGUMENT, "%u tries for a peer that has no receive posted: 1 to 7", s_.rnr_retries);
    if (s_.traffic_class > 255) fail(MKNET_ERROR_ARGUMENT, "traffic class %u: 0 to 255", s_.traffic_class);
    if (s_.service_level > 15) fail(MKNET_ERROR_ARGUMENT, "service level %u: 0 to 15", s_.service_level);
    if (depth_ > static_cast<uint32_t>(port.device.max_qp_wr))
      fail(MKNET_ERROR_ARGUMENT, "%s: queue pairs of %u slots; the device has up to %d", port.name.c_str(), depth_, port.device.max_qp_wr);
    p_.ordered = s_.relaxed == 0 && d.bounce == 0;
    p_.lanes = s_.qps != 0 ? s_.qps : 1;
    if (p_.lanes > kMaxLanes / kMaxNics) fail(MKNET_ERROR_ARGUMENT, "%u queue pairs per peer and NIC; up to %u can be used", p_.lanes, kMaxLanes / kMaxNics);
    p_.max_write = std::min<uint64_t>(port.attr.max_msg_sz, uint64_t{1} << 30);
    p_.credits = p_.ordered ? 0 : kCredits;
  }
  ~Verbs() override { disconnect(); }

  Blob common(uint64_t job) override {
    if (cq_ == nullptr) make_cq();
    BlobWriter w;
    w.put(kMagic);
    w.put(job);
    put(w, mine());
    return w.take();
  }

  // Keys and queue pairs, for one peer only.
  Blob endpoint(uint32_t peer) override {
    BlobWriter w;
    put_memory(w);
    for (uint32_t lane = 0; lane < p_.lanes; ++lane) {
      const Connection& c = make_qp(peer, lane);
      w.put(c.qp->qp_num);
      w.put(c.psn);
    }
    return w.take();
  }

  void connect(uint32_t peer, uint64_t job, const Blob& common, const Blob& own, void*) override {
    BlobReader r(common.data(), common.size()), o(own.data(), own.size());
    if (r.get<uint32_t>() != kMagic) fail(MKNET_ERROR_PEER, "this is no endpoint of an RDMA NIC");
    if (r.get<uint64_t>() != job) fail(MKNET_ERROR_PEER, "its endpoint belongs to another job or generation");
    const PortAddress theirs = get_address(r);
    r.end();
    const RemoteMemory heap = o.get<RemoteMemory>(), inbox = o.get<RemoteMemory>();
    for (uint32_t lane = 0; lane < p_.lanes; ++lane) {
      Connection* c = find(peer, lane);
      if (c == nullptr) fail(MKNET_ERROR_ARGUMENT, "no endpoint was made for rank %u", peer);
      c->heap = heap;
      c->inbox = inbox;
      c->theirs = theirs;
      c->their_qp = o.get<uint32_t>();
      if (c->their_qp == 0 || c->their_qp >> 24 != 0) fail(MKNET_ERROR_PEER, "its queue pair number %#x is none", c->their_qp);
      to_ready(*c, o.get<uint32_t>() & 0xffffff);
    }
    o.end();
    p_.max_write = std::min<uint64_t>(p_.max_write, theirs.max_message);
  }

  size_t post(const Write* writes, size_t n) override {
    if (n == 0) return 0;
    Connection* c = find(writes[0].peer, writes[0].lane);
    if (c == nullptr || !c->ready) fail(MKNET_ERROR_PEER, "%s: there is no connection to rank %u", name(), writes[0].peer);
    // Slots come back only with completions that are polled: our own count keeps the queue from overflowing.
    n = std::min({n, static_cast<size_t>(depth_) - c->posted.size(), kBatch});
    if (signalled_ >= cq_room_) n = 0;
    if (n == 0) return 0;
    SendWr wr[kBatch];
    Sge sge[kBatch];
    for (size_t i = 0; i < n; ++i) fill(*c, writes[i], i + 1 == n, i, wr, sge);
    SendWr* bad = nullptr;
    const int rc = port_.context->ops.post_send(c->qp, wr, &bad);
    if (rc != 0) fail(MKNET_ERROR_SYSTEM, "%s: posting %zu writes: %s", path_text(*c).c_str(), n, strerror(error_of(rc)));
    c->next += n;
    for (size_t i = 0; i < n; ++i) c->posted.push_back(writes[i].id);
    ++signalled_;
    return n;
  }

  bool listens() const override { return !p_.ordered; }

  void disconnect() override {
    for (Connection& c : connections_)
      if (c.qp != nullptr) {
        QpAttr a = {};
        a.qp_state = kQpError;
        api_.modify_qp(c.qp, &a, kAttrState);
      }
    for (Connection& c : connections_)
      if (c.qp != nullptr) api_.destroy_qp(c.qp);
    connections_.clear();
    index_.clear();
    if (cq_ != nullptr) api_.destroy_cq(cq_);
    cq_ = nullptr;
    ready_.clear();
    signalled_ = 0;
  }

  std::string path(uint32_t peer, uint32_t lane) const override {
    const Connection* c = const_cast<Verbs*>(this)->find(peer, lane);
    if (c == nullptr || !c->ready) return "not connected";
    if (port_.attr.link_layer == kLinkInfiniband)
      return format("LID %u to LID %u of %s, MTU %u", port_.attr.lid, c->theirs.lid, c->theirs.name.c_str(), mtu_with(c->theirs));
    return format("GID %s to GID %s of %s, MTU %u", text_of(port_.gid.gid).c_str(), text_of(c->theirs.gid).c_str(), c->theirs.name.c_str(),
                  mtu_with(c->theirs));
  }

  std::string describe() const override {
    const std::string link = port_.attr.link_layer == kLinkInfiniband
                                 ? format("InfiniBand, LID %u", port_.attr.lid)
                                 : format("RoCE v2, GID %u (%s)", port_.gid.gid_index, text_of(port_.gid.gid).c_str());
    return format("%s: %s, MTU %u, %u queue pair%s per peer, a dead peer is reported after %.2g s (%u x 4.096 us x 2^%u; devices may take four times as long), "
                  "%u tries without a receive, traffic class %u, service level %u%s%s%s",
                  name(), link.c_str(), port_.mtu, p_.lanes, p_.lanes == 1 ? "" : "s", 4.096e-6 * static_cast<double>(uint64_t{1} << s_.timeout) * (s_.retries + 1),
                  s_.retries + 1, s_.timeout, s_.rnr_retries, s_.traffic_class, s_.service_level, s_.relaxed != 0 ? ", relaxed ordering" : "",
                  how_.empty() ? "" : ", heap ", how_.c_str());
  }

 private:
  PortAddress mine() const { return address_of(port_, s_.pkey); }
  uint32_t mtu_with(const PortAddress& theirs) const { return std::min(port_.mtu, theirs.mtu); }

  Connection* find(uint32_t peer, uint32_t lane) {
    const size_t at = static_cast<size_t>(peer) * p_.lanes + lane;
    return at < index_.size() && index_[at] >= 0 ? &connections_[static_cast<size_t>(index_[at])] : nullptr;
  }

  // Room for a completion of every send slot and every receive of as many peers as the device allows; posting stops
  // before it could overflow, since that would end every queue pair.
  void make_cq() {
    const int64_t per_qp = int64_t{depth_} + (p_.ordered ? 0 : kCredits);
    const int64_t wanted = per_qp * p_.lanes * std::max<int64_t>(1, world_ - 1) + kCqSpare;
    const int entries = static_cast<int>(std::min<int64_t>(wanted, port_.device.max_cqe));
    if (!(cq_ = api_.create_cq(port_.context.get(), entries, nullptr, nullptr, 0))) {
      const int e = errno;
      fail(MKNET_ERROR_SYSTEM, "%s: a completion queue of %d entries: %s%s", name(), entries, strerror(e), memlock_hint(e).c_str());
    }
    cq_room_ = cq_->cqe - kCqSpare;
  }

  Connection& make_qp(uint32_t peer, uint32_t lane) {
    if (Connection* c = find(peer, lane)) return *c;
    if (!p_.ordered && cq_room_ <= kCredits)
      fail(MKNET_ERROR_SYSTEM, "%s: its completion queue of %d entries is too small for %zu queue pairs", name(), cq_->cqe, connections_.size() + 1);
    QpInit init = {};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {depth_, p_.ordered ? 1 : kCredits, 1, 1, kInlineBytes};
    init.qp_type = kQpTypeRc;
    Qp* qp = api_.create_qp(pd_, &init);
    if (qp == nullptr) {
      init.cap = {depth_, p_.ordered ? 1 : kCredits, 1, 1, 0};  // a device without inline data
      qp = api_.create_qp(pd_, &init);
    }
    if (qp == nullptr) {
      const int e = errno;
      fail(MKNET_ERROR_SYSTEM, "%s: queue pair %zu: %s%s", name(), connections_.size() + 1, strerror(e), memlock_hint(e).c_str());
    }
    connections_.emplace_back();
    Connection& c = connections_.back();
    c.qp = qp;
    c.peer = peer;
    c.lane = lane;
    c.inline_bytes = init.cap.max_inline_data;
    if (getrandom(&c.psn, sizeof c.psn, 0) != sizeof c.psn) c.psn = static_cast<uint32_t>(now_ns());
    c.psn &= 0xffffff;
    index_.resize(static_cast<size_t>(world_) * p_.lanes, -1);
    index_[static_cast<size_t>(peer) * p_.lanes + lane] = static_cast<int64_t>(connections_.size() - 1);
    QpAttr a = {};
    a.qp_state = kQpInit;
    a.pkey_index = port_.pkey_index;
    a.port_num = port_.number;
    a.qp_access_flags = kRemoteWrite;
    modify(c, a, kAttrState | kAttrPkey | kAttrPort | kAttrAccess, "INIT");
    if (p_.ordered) return c;
    cq_room_ -= kCredits;
    for (uint32_t i = 0; i < kCredits; ++i) receive(static_cast<uint32_t>(connections_.size() - 1));
    return c;
  }

  void modify(const Connection& c, QpAttr& a, int mask, const char* state) {
    int rc = api_.modify_qp(c.qp, &a, mask);
    if (rc == 0) return;
    rc = error_of(rc);
    const char* hint = a.qp_state == kQpRtr ? hint_of_rtr(rc) : "";
    fail(MKNET_ERROR_SYSTEM, "%s: queue pair %u to %s: %s (%d)%s%s; GID %s here, %s at rank %u", name(), c.qp->qp_num, state, strerror(rc), rc,
         *hint != '\0' ? ": " : "", hint, text_of(port_.gid.gid).c_str(), text_of(c.theirs.gid).c_str(), c.peer);
  }

  void to_ready(Connection& c, uint32_t their_psn) {
    const PortAddress here = mine();
    // No reads and no atomics are used; one is what all devices have that have any.
    const auto reads = static_cast<uint8_t>(std::min({here.reads, c.theirs.reads, 1u}));
    QpAttr a = {};
    a.qp_state = kQpRtr;
    a.path_mtu = mtu_code(mtu_with(c.theirs));
    a.dest_qp_num = c.their_qp;
    a.rq_psn = their_psn;
    a.max_dest_rd_atomic = reads;
    a.min_rnr_timer = kRnrTimer;
    a.ah_attr = verbs::path(port_, here, c.theirs, s_);
    modify(c, a, kAttrState | kAttrAv | kAttrMtu | kAttrDest | kAttrRqPsn | kAttrDestReads | kAttrRnrTimer, "RTR");
    QpAttr b = {};
    b.qp_state = kQpRts;
    b.sq_psn = c.psn;
    b.timeout = static_cast<uint8_t>(s_.timeout);
    b.retry_cnt = static_cast<uint8_t>(s_.retries);
    b.rnr_retry = static_cast<uint8_t>(s_.rnr_retries);
    b.max_rd_atomic = reads;
    modify(c, b, kAttrState | kAttrSqPsn | kAttrTimeout | kAttrRetries | kAttrRnr | kAttrReads, "RTS");
    // What was asked for is what the device has: an attribute that got lost would show only under load.
    QpAttr seen = {};
    QpInit init = {};
    if (api_.query_qp(c.qp, &seen, kAttrMtu | kAttrDest | kAttrTimeout | kAttrRetries | kAttrRnr, &init) == 0 &&
        (seen.path_mtu != a.path_mtu || seen.dest_qp_num != a.dest_qp_num || seen.timeout != b.timeout || seen.retry_cnt != b.retry_cnt ||
         seen.rnr_retry != b.rnr_retry))
      fail(MKNET_ERROR_SYSTEM, "%s: queue pair %u was not set up as asked: MTU code %d, peer's queue pair %u, time-out %u, retries %u, %u", name(),
           c.qp->qp_num, seen.path_mtu, seen.dest_qp_num, seen.timeout, seen.retry_cnt, seen.rnr_retry);
    c.ready = true;
    c.success_ns = now_ns();
  }

  void fill(Connection& c, const Write& w, bool last, size_t i, SendWr* wr, Sge* sge) {
    const RemoteMemory& there = w.target_region == kInbox ? c.inbox : c.heap;
    if (!inside(w, there)) refuse(w, there, path_text(c));
    const Region& from = regions_[w.region];
    wr[i] = {};
    wr[i].wr_id = wr_id(kSend, static_cast<uint32_t>(&c - connections_.data()), c.next + i);
    wr[i].next = last ? nullptr : &wr[i + 1];
    if (w.bytes > 0) {
      sge[i] = {reinterpret_cast<uint64_t>(from.base) + w.source, static_cast<uint32_t>(w.bytes), mrs_[w.region]->lkey};
      wr[i].sg_list = &sge[i];
      wr[i].num_sge = 1;
    }
    wr[i].opcode = w.immediate ? kWrWriteImmediate : kWrWrite;
    wr[i].imm_data = htonl(w.imm);
    wr[i].send_flags = last ? kSignaled : 0u;  // earlier ones are complete when a later one is
    if (w.bytes > 0 && w.bytes <= c.inline_bytes && from.memory == MKNET_HOST) wr[i].send_flags |= kInline;
    wr[i].wr.rdma.remote_addr = there.base + w.target;
    wr[i].wr.rdma.rkey = there.rkey;
  }

  void receive(uint32_t connection) {
    RecvWr wr = {wr_id(kReceive, connection, 1), nullptr, nullptr, 0};
    RecvWr* bad = nullptr;
    const int rc = port_.context->ops.post_recv(connections_[connection].qp, &wr, &bad);
    if (rc != 0) fail(MKNET_ERROR_SYSTEM, "%s: posting a receive: %s", name(), strerror(error_of(rc)));
  }

  void poll_device() override {
    Wc wc[32];
    if (cq_ == nullptr) return;
    const int n = port_.context->ops.poll_cq(cq_, 32, wc);
    if (n < 0) fail(MKNET_ERROR_SYSTEM, "%s: polling completions failed (%d)", name(), n);
    // The first error that is no flush is the cause; flushes follow from it.
    const Wc* cause = nullptr;
    for (int i = 0; i < n; ++i)
      if (wc[i].status != kWcSuccess && (cause == nullptr || (cause->status == kWcFlushed && wc[i].status != kWcFlushed))) cause = &wc[i];
    if (cause != nullptr) explain(*cause);
    for (int i = 0; i < n; ++i) complete(wc[i]);
  }

  Connection& connection_of(const Wc& wc) {
    const size_t at = wr_qp(wc.wr_id);
    const uint64_t kind = wr_kind(wc.wr_id);
    if (at >= connections_.size() || (kind != kSend && kind != kReceive))
      fail(MKNET_ERROR_SYSTEM, "%s: a completion names work %#" PRIx64 ", which was never posted", name(), wc.wr_id);
    return connections_[at];
  }

  void complete(const Wc& wc) {
    Connection& c = connection_of(wc);
    if (wr_kind(wc.wr_id) == kReceive) {
      if (wc.opcode != kWcRecvImmediate || (wc.wc_flags & kWcWithImmediate) == 0)
        fail(MKNET_ERROR_PEER, "%s: something without an immediate arrived (opcode %d)", path_text(c).c_str(), wc.opcode);
      Completion a;
      a.kind = Completion::kArrived;
      a.imm = ntohl(wc.imm_data);
      ready_.push_back(a);
      receive(static_cast<uint32_t>(&c - connections_.data()));
      return;
    }
    const uint64_t count = (wr_number(wc.wr_id) - wr_number(c.oldest) + 1) & kWrNumberMask;
    if (count == 0 || count > c.posted.size())
      fail(MKNET_ERROR_SYSTEM, "%s: a completion of write %" PRIu64 ", which is not under way", path_text(c).c_str(), wr_number(wc.wr_id));
    for (uint64_t i = 0; i < count; ++i) {
      Completion done;
      done.id = c.posted.front();
      ready_.push_back(done);
      c.posted.pop_front();
    }
    c.oldest += count;
    c.written += count;
    c.success_ns = now_ns();
    --signalled_;
  }

  std::string path_text(const Connection& c) const {
    return format("%s, queue pair %u to rank %u (%s)", name(), c.qp->qp_num, c.peer, path(c.peer, c.lane).c_str());
  }

  static const char* hint_of(int status) {
    switch (status) {
      case kWcRetries: return "the peer or the path to it is gone, or packets of this size or class are lost (GID, MTU, flow control)";
      case kWcNotReady: return "the peer has no receive posted";
      case kWcRemoteAccess: return "the peer refuses the address or key: of an earlier job?";
      case kWcRemoteRequest: case kWcRemoteOperation: return "the peer's queue pair does not allow it";
      case kWcLocalQp: return "the own memory region does not cover it, or the NIC has lost its link or address";
      case kWcLocalProtection: case kWcLocalLength: return "the own memory region does not cover it";
      case kWcFlushed: return "the queue pair had ended before; the peer may know why";
      default: return "";
    }
  }

  [[noreturn]] void explain(const Wc& wc) {
    read_events();
    const Connection& c = connection_of(wc);
    fail(MKNET_ERROR_PEER, "%s: %s (status %d, vendor %#x) %.3g s after the last success, %s done, %zu under way: %s%s",
         path_text(c).c_str(), api_.wc_status_str(wc.status), wc.status, wc.vendor_err, static_cast<double>(now_ns() - c.success_ns) / 1e9, counted(c.written, "write").c_str(),
         c.posted.size(), port_down() ? "the NIC's own port is down" : hint_of(wc.status), events_text().c_str());
  }

  uint32_t depth_ = 0;
  Cq* cq_ = nullptr;
  int64_t cq_room_ = 0, signalled_ = 0;  // completions of sends: room, and under way
  std::vector<Connection> connections_;
  std::vector<int64_t> index_;           // by peer and lane
};

}  // namespace

std::vector<std::unique_ptr<Nic>> open_verbs(const mknet_desc& d) {
  const Api& api = load(d.rdma.library);
  const std::vector<Port> ports = find_ports(api, d.rdma);
  std::vector<std::unique_ptr<Nic>> nics;
  for (size_t i = 0; i < std::min<size_t>(ports.size(), kMaxNics); ++i) nics.push_back(std::make_unique<Verbs>(ports[i], d));
  return nics;
}

}  // namespace mk::net
