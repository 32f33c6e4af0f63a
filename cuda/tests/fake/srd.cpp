// The SRD half of the fake verbs library: the calls of EFA devices, stricter than real ones. Slots are few and come back
// only by polling. What the devices do with what is posted is in srd_device.cpp.
#include <cerrno>
#include <cstring>

#include "tests/fake/srd.h"

using namespace mk::net::verbs;
using namespace fake;

namespace {

SrdQp* of(QpEx* q) { return static_cast<SrdQp*>(q); }
SrdQp* of(Qp* q) { return static_cast<SrdQp*>(reinterpret_cast<QpEx*>(q)); }  // the queue pair is its beginning
SrdCq* of(CqEx* c) { return static_cast<SrdCq*>(c); }

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
  srd_work();
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
    srd_flush(qp);
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
    if (strcmp(qp->base.context->device->name, device) == 0) srd_flush(qp);
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
