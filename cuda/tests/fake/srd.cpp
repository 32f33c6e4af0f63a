// The SRD half of the fake verbs library: EFA devices, stricter than real ones. Writes are cut into chunks that land in
// any order and mixed with those of other writes; completions of both sides come late and in any order; slots are few and
// come back only by polling. The peer must know the sender by an address handle, and must have a receive for each
// immediate.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "tests/fake/world.h"

using namespace mk::net::verbs;
using namespace fake;

namespace {

struct FakeAh : Ah {
  Gid gid;
};

struct Entry {
  uint64_t wr_id;
  int status, opcode;
  uint32_t vendor, imm;
  unsigned flags;
  uint32_t qp;
  bool send;
};

struct SrdCq : CqEx {
  std::deque<Entry> entries;
  Entry current = {};
  bool dead = false, polling = false;
};

struct SrdWork {
  uint64_t wr_id = 0, number = 0;
  bool immediate = false, inlined = false, addressed = false, begun = false, landed = false, told = false, acknowledged = false;
  uint32_t imm = 0, rkey = 0, lkey = 0, qpn = 0, qkey = 0;
  uint64_t target = 0, source = 0, bytes = 0;
  Ah* ah = nullptr;
  std::vector<char> data;          // read from the source
  std::vector<std::pair<uint64_t, uint64_t>> chunks;  // not yet written
};

struct SrdQp : QpEx {
  QpInitEx init;
  EfaQpInit efa;
  uint32_t port = 0, qkey = 0;
  bool session = false, inline_writes = false;
  int error = 0;                   // of the session
  std::vector<SrdWork> batch;      // of the session
  std::vector<SrdWork> work;       // posted, not acknowledged
  uint32_t slots = 0;              // taken
  std::deque<uint64_t> receives;
  uint32_t receive_slots = 0;
  uint64_t next = 0;
};

struct Srd {
  std::map<uint32_t, SrdQp*> qps;
  std::set<SrdCq*> cqs;
  std::set<FakeAh*> ahs;
};
Srd& srd() {
  static Srd s;
  return s;
}

SrdQp* of(QpEx* q) { return static_cast<SrdQp*>(q); }
SrdQp* of(Qp* q) { return static_cast<SrdQp*>(reinterpret_cast<QpEx*>(q)); }  // the queue pair is its beginning
SrdCq* of(CqEx* c) { return static_cast<SrdCq*>(c); }
SrdCq* cq_of(Cq* c) { return static_cast<SrdCq*>(reinterpret_cast<CqEx*>(c)); }
const DeviceSettings& device_of(const SrdQp* q) { return *static_cast<FakeContext*>(q->base.context)->d; }

int status_of(uint32_t vendor) {
  switch (vendor) {
    case kEfaOk: return kWcSuccess;
    case kEfaFlushed: return kWcFlushed;
    case kEfaInternal: case kEfaUnsupported: case kEfaBadHandle: return kWcLocalQp;
    case kEfaBadLocalKey: return kWcLocalProtection;
    case kEfaTooLong: return kWcLocalLength;
    case kEfaBadAddress: return kWcRemoteAccess;
    case kEfaAborted: return 16;
    case kEfaBadQp: return 15;
    case kEfaNotReady: return kWcNotReady;
    case kEfaBadLength: case kEfaFeatures: return kWcRemoteRequest;
    case kEfaBadStatus: return 7;
    case kEfaUnresponsive: case kEfaUnreachable: return 20;
    case kEfaUnknownPeer: return kWcRemoteOperation;
    default: return 21;
  }
}

void add(SrdCq* cq, const Entry& e) {
  if (cq->dead) return;
  if (static_cast<int>(cq->entries.size()) >= cq->base.cqe) {
    cq->dead = true;
    for (auto& [_, qp] : srd().qps)
      if (cq_of(qp->base.send_cq) == cq) qp->base.state = kQpError;
    world().control.event(cq->base.context->device->name, kEventCq, 0);
    return;
  }
  cq->entries.push_back(e);
}

void acknowledge(SrdQp* qp, const SrdWork& w, uint32_t vendor) {
  Entry e = {w.wr_id, status_of(vendor), 1, vendor, 0, 0, qp->base.qp_num, true};
  if (vendor != kEfaOk) e.opcode = 0x5a;
  const bool twice = settings().repeat_completion;
  settings().repeat_completion = false;
  for (int i = 0; i < (twice ? 2 : 1); ++i) add(cq_of(qp->base.send_cq), e);
}

void flush(SrdQp* qp) {
  qp->base.state = kQpError;
  for (const SrdWork& w : qp->work)
    if (!w.acknowledged) acknowledge(qp, w, kEfaFlushed);
  qp->work.clear();
  for (const uint64_t id : qp->receives) add(cq_of(qp->base.recv_cq), {id, kWcFlushed, 0x5a, kEfaFlushed, 0, 0, qp->base.qp_num, false});
  qp->receives.clear();
}

// Whom a write goes to; NULL: nobody has that number at that address.
SrdQp* target_of(const SrdWork& w) {
  const auto found = srd().qps.find(w.qpn);
  if (found == srd().qps.end()) return nullptr;
  SrdQp* to = found->second;
  const Gid& gid = port_of(to->base.context, to->port).gids[0].gid;
  return memcmp(&gid, &static_cast<FakeAh*>(w.ah)->gid, sizeof gid) == 0 ? to : nullptr;
}

bool covers(const FakeMr* mr, uint64_t at, uint64_t bytes) {
  const auto base = reinterpret_cast<uint64_t>(mr->addr);
  return at >= base && bytes <= mr->length && at - base <= mr->length - bytes;
}

// Reads the source and checks both ends; the device's status.
uint32_t begin(SrdQp* qp, SrdWork& w) {
  if (settings().efa_status != 0) {
    const uint32_t status = settings().efa_status;
    settings().efa_status = 0;
    return status;
  }
  if (w.bytes > device_of(qp).efa.max_rdma_size) return kEfaTooLong;
  if (!w.inlined && w.bytes > 0) {
    const auto mr = world().mrs.find(w.lkey);
    if (mr == world().mrs.end() || mr->second->pd != qp->init.pd || !covers(mr->second, w.source, w.bytes)) return kEfaBadLocalKey;
    const char* from = mr->second->at(w.source);
    w.data.assign(from, from + w.bytes);
  }
  SrdQp* to = target_of(w);
  if (to == nullptr) return kEfaUnreachable;
  if (to->base.state < kQpRtr || to->base.state == kQpError || to->qkey != w.qkey) return kEfaBadQp;
  const Gid& mine = port_of(qp->base.context, qp->port).gids[0].gid;
  const bool known = !settings().forget_handles && std::any_of(srd().ahs.begin(), srd().ahs.end(), [&](const FakeAh* ah) {
    return ah->pd == to->init.pd && memcmp(&ah->gid, &mine, sizeof mine) == 0;
  });
  if (!known) return kEfaUnknownPeer;
  if (w.bytes > 0) {
    const auto mr = world().mrs.find(w.rkey);
    if (mr == world().mrs.end() || mr->second->pd != to->init.pd || (mr->second->access & kRemoteWrite) == 0 || !covers(mr->second, w.target, w.bytes))
      return kEfaBadAddress;
  }
  // Chunks of packets, at words.
  const uint64_t chunk = settings().slow ? 8 * (1 + world().next_random() % 16) : w.bytes;
  for (uint64_t at = 0; at < w.bytes; at += chunk) w.chunks.emplace_back(at, std::min(chunk, w.bytes - at));
  return kEfaOk;
}

// Tells the receiver; the device's status.
uint32_t tell(const SrdWork& w) {
  SrdQp* to = target_of(w);
  if (to == nullptr) return kEfaUnresponsive;
  if (settings().lost_immediates > 0) {
    --settings().lost_immediates;
    return kEfaOk;
  }
  Entry e = {0, kWcSuccess, kWcRecvImmediate, 0, w.imm, kWcWithImmediate, to->base.qp_num, false};
  if (!settings().unsolicited) {
    if (to->receives.empty()) return kEfaNotReady;
    // Receives are taken in any order.
    const size_t at = settings().slow ? world().next_random() % to->receives.size() : 0;
    e.wr_id = to->receives[at];
    to->receives.erase(to->receives.begin() + static_cast<ptrdiff_t>(at));
  }
  add(cq_of(to->base.recv_cq), e);
  return kEfaOk;
}

// One thing that may happen next to a write. True when nothing is left to happen.
bool step(SrdQp* qp, SrdWork& w) {
  uint32_t status = kEfaOk;
  if (!w.begun) {
    w.begun = true;
    status = begin(qp, w);
  } else if (!w.chunks.empty() && !(settings().early_completion && !w.acknowledged && world().next_random() % 4 == 0)) {
    const size_t at = settings().slow ? world().next_random() % w.chunks.size() : 0;
    const auto [offset, bytes] = w.chunks[at];
    w.chunks[at] = w.chunks.back();
    w.chunks.pop_back();
    const auto mr = world().mrs.find(w.rkey);
    if (mr == world().mrs.end()) return true;  // the peer has ended
    char* target = mr->second->at(w.target + offset);
    put(target, w.data.data() + offset, bytes, bytes % 8 == 0 && reinterpret_cast<uintptr_t>(target) % 8 == 0 && w.bytes <= 128);
  } else if (w.chunks.empty() && w.immediate && !w.told && (w.acknowledged || world().next_random() % 2 == 0 || !settings().slow)) {
    w.told = true;
    status = tell(w);
  } else if (!w.acknowledged) {
    // The peer has what it needs for its immediate before the write is acknowledged.
    if (w.immediate && !w.told && !settings().unsolicited && target_of(w) != nullptr && target_of(w)->receives.empty()) {
      status = kEfaNotReady;
    } else {
      w.acknowledged = true;
      acknowledge(qp, w, kEfaOk);
    }
  }
  if (status != kEfaOk) {
    if (!w.acknowledged) acknowledge(qp, w, status);
    return true;
  }
  return w.begun && w.chunks.empty() && w.acknowledged && (w.told || !w.immediate);
}

void work_on(SrdQp* qp, size_t at) {
  SrdWork w = std::move(qp->work[at]);
  const bool over = step(qp, w);
  if (over) {
    for (const SrdWork& other : qp->work)
      if (other.number < w.number && &other != &qp->work[at]) {
        ++seen().out_of_order;
        break;
      }
    qp->work.erase(qp->work.begin() + static_cast<ptrdiff_t>(at));
  } else {
    qp->work[at] = std::move(w);
  }
}

bool can_work(const SrdQp* qp) {
  return !qp->work.empty() && qp->base.state == kQpRts && !settings().lose && settings().stuck != qp->base.context->device->name;
}

void work_some() {
  if (!settings().slow) {
    for (auto& [_, qp] : srd().qps)
      while (can_work(qp)) work_on(qp, 0);
    return;
  }
  if (srd().qps.empty()) return;
  for (uint64_t n = world().next_random() % 12; n > 0; --n) {
    auto at = srd().qps.begin();
    std::advance(at, static_cast<long>(world().next_random() % srd().qps.size()));
    SrdQp* qp = at->second;
    if (can_work(qp)) work_on(qp, world().next_random() % qp->work.size());
  }
}

// The completion that is read goes back to its queue's slots when the next one is asked for.
void release(SrdCq* cq) {
  if (cq->current.wr_id == 0) return;
  const auto qp = srd().qps.find(cq->current.qp);
  if (qp != srd().qps.end()) --(cq->current.send ? qp->second->slots : qp->second->receive_slots);
  cq->current.wr_id = 0;
}
int next(SrdCq* cq) {
  release(cq);
  if (cq->entries.empty()) return ENOENT;
  cq->current = cq->entries.front();
  cq->entries.pop_front();
  cq->wr_id = cq->current.wr_id;
  cq->status = cq->current.status;
  return 0;
}

int start_poll(CqEx* c, PollAttr* attr) {
  world().mutex.lock();
  const auto leave = [](int rc) {
    world().mutex.unlock();
    return rc;
  };
  if (attr->comp_mask != 0 || of(c)->polling) return leave(EINVAL);
  if (const int e = ordered("start_poll")) return leave(e);
  work_some();
  const int rc = next(of(c));
  if (rc != 0) return leave(rc);
  of(c)->polling = true;
  return 0;  // the lock is held until end_poll
}
int next_poll(CqEx* c) {
  if (const int e = ordered("next_poll")) return e;
  return next(of(c));
}
void end_poll(CqEx* c) {
  release(of(c));
  of(c)->polling = false;
  world().mutex.unlock();
}
int read_opcode(CqEx* c) { return of(c)->current.opcode; }
uint32_t read_vendor_error(CqEx* c) { return of(c)->current.vendor; }
uint32_t read_immediate(CqEx* c) { return of(c)->current.imm; }
unsigned read_flags(CqEx* c) { return of(c)->current.flags; }

// A session of posting holds the lock.
void wr_start(QpEx* q) {
  world().mutex.lock();
  of(q)->session = true;
  of(q)->error = ordered("wr_start");
  of(q)->batch.clear();
}
SrdWork* add_work(QpEx* q) {
  SrdQp* qp = of(q);
  if (!qp->session) abort();
  if (qp->error != 0) return nullptr;
  if (q->base.state != kQpRts) ++seen().without_rts, qp->error = EINVAL;
  else if (q->wr_flags != kSignaled) qp->error = EINVAL;
  else if (qp->slots + qp->batch.size() >= qp->init.cap.max_send_wr) qp->error = ENOMEM;
  else if (settings().early_full && qp->slots > 0 && world().next_random() % 4 == 0) qp->error = ENOMEM;
  if (qp->error != 0) return nullptr;
  if (q->wr_id == 0) ++seen().zero_ids;
  qp->batch.emplace_back();
  qp->batch.back().wr_id = q->wr_id;
  return &qp->batch.back();
}
void wr_write(QpEx* q, uint32_t rkey, uint64_t target) {
  if (SrdWork* w = add_work(q)) w->rkey = rkey, w->target = target;
}
void wr_write_immediate(QpEx* q, uint32_t rkey, uint64_t target, uint32_t imm) {
  if (SrdWork* w = add_work(q)) w->rkey = rkey, w->target = target, w->immediate = true, w->imm = imm;
}
void wr_set_address(QpEx* q, Ah* ah, uint32_t qpn, uint32_t qkey) {
  SrdQp* qp = of(q);
  if (qp->error != 0) return;
  if (srd().ahs.count(static_cast<FakeAh*>(ah)) == 0 || ah->pd != qp->init.pd) {
    qp->error = EINVAL;
    return;
  }
  SrdWork& w = qp->batch.back();
  w.ah = ah, w.qpn = qpn, w.qkey = qkey, w.addressed = true;
}
void wr_set_sge(QpEx* q, uint32_t lkey, uint64_t address, uint32_t length) {
  if (of(q)->error != 0) return;
  SrdWork& w = of(q)->batch.back();
  w.lkey = lkey, w.source = address, w.bytes = length;
}
void wr_set_inline(QpEx* q, void* data, size_t length) {
  SrdQp* qp = of(q);
  if (qp->error != 0) return;
  if (!qp->inline_writes || length > qp->init.cap.max_inline_data) {
    qp->error = EINVAL;
    return;
  }
  SrdWork& w = qp->batch.back();
  w.data.assign(static_cast<char*>(data), static_cast<char*>(data) + length);
  w.inlined = true, w.bytes = length;
  ++seen().inlined;
}
int wr_complete(QpEx* q) {
  SrdQp* qp = of(q);
  if (qp->error == 0) qp->error = ordered("wr_complete");
  for (const SrdWork& w : qp->batch)
    if (qp->error == 0 && !w.addressed) qp->error = EINVAL;
  if (qp->error == 0) {
    ++seen().posts, ++seen().sessions;
    for (SrdWork& w : qp->batch) {
      w.number = qp->next++;
      ++seen().writes, ++seen().signalled;
      if (w.bytes > seen().largest) seen().largest = w.bytes;
      qp->work.push_back(std::move(w));
      ++qp->slots;
    }
  }
  qp->batch.clear();
  qp->session = false;
  const int e = qp->error;
  world().mutex.unlock();
  return e;
}
void wr_abort(QpEx* q) {
  of(q)->batch.clear();
  of(q)->session = false;
  world().mutex.unlock();
}

}  // namespace

namespace fake {

int srd_post_recv(Qp* q, RecvWr* wr, RecvWr** bad) {
  SrdQp* qp = of(q);
  *bad = wr;
  if (const int e = ordered("post_recv")) return e;
  ++seen().refills;
  for (; wr != nullptr; wr = wr->next) {
    *bad = wr;
    if (q->state == kQpReset || q->state == kQpError) return EINVAL;
    if (wr->num_sge > static_cast<int>(qp->init.cap.max_recv_sge)) return EINVAL;
    for (int i = 0; i < wr->num_sge; ++i) {
      const auto mr = world().mrs.find(wr->sg_list[i].lkey);
      if (mr == world().mrs.end() || mr->second->pd != qp->init.pd || (mr->second->access & kLocalWrite) == 0 ||
          !covers(mr->second, wr->sg_list[i].addr, wr->sg_list[i].length))
        return EINVAL;
    }
    if (qp->receive_slots >= qp->init.cap.max_recv_wr) return ENOMEM;
    if (wr->wr_id == 0) ++seen().zero_ids;
    ++qp->receive_slots, ++seen().receives;
    // As libefa: descriptors are written by buffer, so that a receive without one is counted and not there.
    if (!settings().no_receives && wr->num_sge > 0) qp->receives.push_back(wr->wr_id);
  }
  return 0;
}

int srd_modify(Qp* q, const QpAttr* a, int mask) {
  SrdQp* qp = of(q);
  const int target = a->qp_state;
  if (target == kQpError) {
    flush(qp);
    return 0;
  }
  if (const int e = ordered(target == kQpInit ? "INIT" : target == kQpRtr ? "RTR" : "RTS")) return e;
  if (target != q->state + 1) return EINVAL;
  if (target == kQpInit) {
    if (mask != (kAttrState | kAttrPkey | kAttrPort | kAttrQkey) || a->qkey >> 31 != 0 || a->pkey_index != 0) return EINVAL;
    qp->port = a->port_num;
    qp->qkey = settings().drop_key ? 0 : a->qkey;
  } else if (target == kQpRtr) {
    if (mask != kAttrState) return EINVAL;
  } else if (target == kQpRts) {
    const int rnr = (device_of(qp).efa.device_caps & kEfaHasRnrRetry) != 0 ? kAttrRnr : 0;
    if ((mask & ~rnr) != (kAttrState | kAttrSqPsn) || a->rnr_retry > 7) return EINVAL;
    seen().last_rts = *a;
  }
  q->state = target;
  return 0;
}

int srd_query(Qp* q, QpAttr* a) {
  *a = {};
  a->qp_state = q->state;
  a->qkey = of(q)->qkey;
  return 0;
}

int srd_destroy(Qp* q) {
  srd().qps.erase(q->qp_num);
  delete of(q);
  return 0;
}

bool srd_destroy_cq(Cq* c) {
  SrdCq* cq = cq_of(c);
  if (srd().cqs.erase(cq) == 0) return false;
  delete cq;
  return true;
}

void srd_kill(const char* device) {
  for (auto& [_, qp] : srd().qps)
    if (strcmp(qp->base.context->device->name, device) == 0) flush(qp);
}

}  // namespace fake

extern "C" {

int ibv_query_gid(Context* c, uint8_t port, int index, Gid* out) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("query_gid") != 0) return -1;
  const auto& gids = port_of(c, port).gids;
  if (index < 0 || static_cast<size_t>(index) >= gids.size()) return errno = EINVAL, -1;
  *out = gids[static_cast<size_t>(index)].gid;
  return 0;
}

Ah* ibv_create_ah(Pd* pd, AhAttr* a) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("create_ah") != 0) return nullptr;
  if (a->is_global != 1 || a->port_num != 1 || a->dlid != 0 || a->sgid_index != 0) {
    errno = EINVAL;
    return nullptr;
  }
  auto* ah = new FakeAh();
  ah->context = pd->context, ah->pd = pd, ah->gid = a->dgid;
  srd().ahs.insert(ah);
  ++seen().live_ahs, ++seen().handles;
  seen().last_handle = *a;
  return ah;
}
int ibv_destroy_ah(Ah* ah) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (srd().ahs.erase(static_cast<FakeAh*>(ah)) == 0) abort();
  --seen().live_ahs;
  delete static_cast<FakeAh*>(ah);
  return 0;
}

QpEx* ibv_qp_to_qp_ex(Qp* q) {
  std::lock_guard<std::mutex> lock(world().mutex);
  return ordered("qp_to_qp_ex") == 0 && is_srd(q) ? of(q) : nullptr;
}

int efadv_query_device(Context* c, EfaDeviceAttr* a, uint32_t size) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (const int e = ordered("efadv_query_device")) return e;
  const DeviceSettings& d = *static_cast<FakeContext*>(c)->d;
  if (d.attr.vendor_id != kVendorAmazon) return EOPNOTSUPP;
  if (size != sizeof *a) return EINVAL;
  *a = d.efa;
  if (settings().old_library != 0) a->inline_buf_size_ex = 0, a->device_caps &= settings().old_library < 46 ? 7u : 15u;
  return 0;
}

CqEx* efadv_create_cq(Context* c, CqInitEx* init, EfaCqInit* efa, uint32_t size) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("create_cq") != 0) return nullptr;
  if (size != sizeof *efa || efa->comp_mask != 0 || efa->wc_flags != 0 || init->comp_mask != 0 || init->channel != nullptr ||
      init->cqe > static_cast<uint32_t>(static_cast<FakeContext*>(c)->d->attr.max_cqe)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* cq = new SrdCq();
  cq->base.context = c, cq->base.cqe = static_cast<int>(init->cqe);
  cq->start_poll = start_poll, cq->next_poll = next_poll, cq->end_poll = end_poll;
  cq->read_opcode = read_opcode, cq->read_vendor_error = read_vendor_error, cq->read_flags = read_flags;
  if ((init->wc_flags & kCqWithImmediate) != 0) cq->read_immediate = read_immediate;
  srd().cqs.insert(cq);
  ++seen().live_cqs;
  return cq;
}

Qp* efadv_create_qp_ex(Context* c, QpInitEx* init, EfaQpInit* efa, uint32_t size) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("create_qp") != 0) return nullptr;
  const DeviceSettings& d = *static_cast<FakeContext*>(c)->d;
  const bool inlined = (efa->flags & kEfaInlineWrite) != 0;
  const uint32_t old = settings().old_library;
  const auto refuse = [](int e) {
    errno = e;
    return static_cast<Qp*>(nullptr);
  };
  if (size != sizeof *efa || efa->comp_mask != 0 || efa->reserved != 0 || efa->driver_qp_type != kEfaSrd || init->qp_type != kQpTypeDriver) return refuse(EINVAL);
  if (old != 0 && (efa->flags != 0 || efa->sl != 0)) return refuse(EINVAL);
  if (init->comp_mask != (kQpInitPd | kQpInitSendOps) || init->pd == nullptr || init->srq != nullptr) return refuse(EINVAL);
  if ((init->send_ops_flags & ~(kSendOpWrite | kSendOpWriteImmediate)) != 0 || (d.efa.device_caps & kEfaHasWrite) == 0 || (old != 0 && old < 46)) return refuse(EOPNOTSUPP);
  if (init->cap.max_send_wr > d.efa.max_sq_wr / (inlined ? 2 : 1) || init->cap.max_recv_wr > d.efa.max_rq_wr) return refuse(EINVAL);
  if (init->cap.max_send_sge > d.efa.max_sq_sge || init->cap.max_recv_sge > d.efa.max_rq_sge) return refuse(EINVAL);
  if (init->cap.max_inline_data > (inlined ? d.efa.inline_buf_size_ex : d.efa.inline_buf_size)) return refuse(EINVAL);
  if (seen().live_qps >= d.attr.max_qp) return refuse(ENOMEM);
  auto* qp = new SrdQp();
  qp->base.context = c, qp->base.pd = init->pd, qp->base.send_cq = init->send_cq, qp->base.recv_cq = init->recv_cq;
  qp->base.qp_type = kQpTypeDriver;
  qp->base.qp_num = world().next_qpn++;
  qp->init = *init, qp->efa = *efa;
  qp->inline_writes = inlined;
  qp->write = wr_write, qp->write_immediate = wr_write_immediate, qp->set_address = wr_set_address, qp->set_sge = wr_set_sge;
  qp->set_inline = wr_set_inline, qp->start = wr_start, qp->complete = wr_complete, qp->abort = wr_abort;
  srd().qps[qp->base.qp_num] = qp;
  seen().last_qp = *init, seen().last_efa_qp = *efa;
  ++seen().live_qps;
  return &qp->base;
}

}  // extern "C"
