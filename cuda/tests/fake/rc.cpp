// The RC half of the fake verbs library: reliable connections, stricter than any device. Send slots come back only with
// signalled completions that are polled; a completion queue that overflows ends its queue pairs; addresses, keys, PSNs,
// GIDs and MTUs of both sides must fit.
#include <sched.h>

#include <cerrno>
#include <cstring>

#include "tests/fake/world.h"

using namespace mk::net::verbs;
using namespace fake;

namespace {

struct FakeCq : Cq {
  std::deque<Wc> entries;
  bool dead = false, erred = false;
};

void add(FakeCq* cq, const Wc& wc) {
  if (cq->dead) return;
  if (static_cast<int>(cq->entries.size()) >= cq->cqe) {
    cq->dead = true;  // and its queue pairs with it
    for (auto& [_, qp] : world().qps)
      if (qp->send_cq == cq) qp->state = kQpError;
    world().control.event(cq->context->device->name, kEventCq, 0);
    return;
  }
  cq->entries.push_back(wc);
}

void flush(FakeQp* qp) {
  qp->state = kQpError;
  for (Work& w : qp->work) {
    Wc wc = {};
    wc.wr_id = w.wr.wr_id, wc.status = kWcFlushed, wc.qp_num = qp->qp_num;
    add(static_cast<FakeCq*>(qp->send_cq), wc);
  }
  qp->work.clear();
  for (const uint64_t id : qp->receives) {
    Wc wc = {};
    wc.wr_id = id, wc.status = kWcFlushed, wc.qp_num = qp->qp_num;
    add(static_cast<FakeCq*>(qp->recv_cq), wc);
  }
  qp->receives.clear();
}

bool is_gid_of(const Context* c, const QpAttr& a, const Gid& g) {
  const auto& gids = port_of(c, a.port_num).gids;
  for (const GidEntry& e : gids)
    if (memcmp(&e.gid, &g, sizeof g) == 0) return true;
  return false;
}

// The status of a write from qp, which is executed if it is 0.
int execute(FakeQp* qp, const Work& w) {
  if (settings().status != 0) {
    const int s = settings().status;
    settings().status = 0;
    return s;
  }
  const auto found = world().qps.find(qp->attr.dest_qp_num);
  if (found == world().qps.end()) return kWcRetries;
  FakeQp* to = found->second;
  const auto& from_port = port_of(qp->context, qp->attr.port_num);
  const bool addressed = from_port.attr.link_layer == kLinkInfiniband
                             ? qp->attr.ah_attr.dlid == port_of(to->context, to->attr.port_num).attr.lid
                             : qp->attr.ah_attr.is_global != 0 && is_gid_of(to->context, to->attr, qp->attr.ah_attr.dgid);
  if (to->state < kQpRtr || to->state == kQpError || to->attr.dest_qp_num != qp->qp_num || to->attr.rq_psn != qp->attr.sq_psn || !addressed ||
      to->attr.path_mtu != qp->attr.path_mtu)
    return kWcRetries;
  const char* source = w.inlined.data();
  const uint64_t bytes = w.wr.num_sge > 0 ? w.sge.length : 0;
  if (w.inlined.empty() && bytes > 0) {
    const auto mr = world().mrs.find(w.sge.lkey);
    if (mr == world().mrs.end() || mr->second->pd != qp->pd || w.sge.addr < reinterpret_cast<uint64_t>(mr->second->addr) ||
        w.sge.addr + bytes > reinterpret_cast<uint64_t>(mr->second->addr) + mr->second->length)
      return kWcLocalProtection;
    source = mr->second->memory + (w.sge.addr - reinterpret_cast<uint64_t>(mr->second->addr));
  }
  char* target = nullptr;
  if ((to->attr.qp_access_flags & kRemoteWrite) == 0) return kWcRemoteRequest;
  if (bytes > 0) {
    const auto mr = world().mrs.find(w.wr.wr.rdma.rkey);
    const uint64_t at = w.wr.wr.rdma.remote_addr;
    if (mr == world().mrs.end() || mr->second->pd != to->pd || (mr->second->access & kRemoteWrite) == 0 || at < reinterpret_cast<uint64_t>(mr->second->addr) ||
        at + bytes > reinterpret_cast<uint64_t>(mr->second->addr) + mr->second->length) {
      flush(to);
      return kWcRemoteAccess;
    }
    if (w.wr.opcode == kWrWrite && (mr->second->access & kRelaxedOrdering) != 0) ++seen().plain_writes_to_relaxed;
    target = mr->second->memory + (at - reinterpret_cast<uint64_t>(mr->second->addr));
  }
  if (w.wr.opcode == kWrWriteImmediate && to->receives.empty()) return kWcNotReady;
  if (w.wr.opcode == kWrWriteImmediate && settings().lost_immediates > 0) {
    --settings().lost_immediates;
    return 0;
  }
  put(target, source, bytes, bytes % 8 == 0 && reinterpret_cast<uintptr_t>(target) % 8 == 0 && bytes <= 128);
  if (w.wr.opcode == kWrWriteImmediate) {
    Wc wc = {};
    wc.wr_id = to->receives.front();
    to->receives.pop_front();
    wc.opcode = kWcRecvImmediate;
    wc.wc_flags = kWcWithImmediate;
    wc.imm_data = w.wr.imm_data;
    wc.qp_num = to->qp_num;
    add(static_cast<FakeCq*>(to->recv_cq), wc);
  }
  return 0;
}

bool can_work(const FakeQp* qp) {
  return !qp->work.empty() && qp->state == kQpRts && !settings().lose && settings().stuck != qp->context->device->name;
}

// Executes the oldest work of a queue pair.
void step(FakeQp* qp) {
  if (!can_work(qp)) return;
  const Work w = std::move(qp->work.front());
  qp->work.pop_front();
  const int status = execute(qp, w);
  Wc wc = {};
  wc.wr_id = w.wr.wr_id;
  wc.status = status;
  wc.opcode = 1;
  wc.qp_num = qp->qp_num;
  if (status != 0) {
    wc.opcode = 0x5a;  // only id, status, number and vendor error of a failed completion mean anything
    wc.vendor_err = 0x81;
    add(static_cast<FakeCq*>(qp->send_cq), wc);
    flush(qp);
  } else if ((w.wr.send_flags & kSignaled) != 0) {
    add(static_cast<FakeCq*>(qp->send_cq), wc);
  }
}

void work_some() {
  if (!settings().slow) {
    for (bool any = true; any;) {
      any = false;
      for (auto& [_, qp] : world().qps)
        if (can_work(qp)) step(qp), any = true;
    }
    return;
  }
  for (uint64_t n = world().next_random() % 4; n > 0 && !world().qps.empty(); --n) {
    auto at = world().qps.begin();
    std::advance(at, static_cast<long>(world().next_random() % world().qps.size()));
    step(at->second);
  }
}

int poll_cq(Cq* c, int n, Wc* out) {
  std::unique_lock<std::mutex> lock(world().mutex);
  auto* cq = static_cast<FakeCq*>(c);
  seen().held += settings().hold ? 1 : 0;
  while (settings().hold) {
    lock.unlock();
    sched_yield();
    lock.lock();
  }
  if (cq->erred) ++seen().polls_after_error;
  if (const int e = ordered("poll_cq", cq->context)) return -e;
  work_some();
  int found = 0;
  for (; found < n && !cq->entries.empty(); ++found) {
    out[found] = cq->entries.front();
    cq->entries.pop_front();
    cq->erred |= out[found].status != 0;
    if (out[found].opcode == kWcRecvImmediate || out[found].status != 0) continue;
    // Slots up to this signalled one are free.
    FakeQp* qp = world().qps[out[found].qp_num];
    while (!qp->signalled.empty()) {
      const bool last = qp->signalled.front();
      qp->signalled.pop_front();
      --qp->slots;
      if (last) break;
    }
  }
  return found;
}

int post_send(Qp* q, SendWr* wr, SendWr** bad) {
  std::lock_guard<std::mutex> lock(world().mutex);
  auto* qp = static_cast<FakeQp*>(q);
  const auto refuse = [&](int e) {
    *bad = wr;
    if (!settings().negative) return e;
    errno = e;
    return -1;
  };
  if (const int e = ordered("post_send", q->context)) return refuse(e);
  ++seen().posts;
  for (; wr != nullptr; wr = wr->next) {
    if (qp->state != kQpRts && qp->state != kQpError) {
      ++seen().without_rts;
      return refuse(EINVAL);
    }
    if (qp->slots >= qp->init.cap.max_send_wr) return refuse(ENOMEM);
    if (wr->num_sge > static_cast<int>(qp->init.cap.max_send_sge)) return refuse(ENOMEM);
    const uint64_t bytes = wr->num_sge > 0 ? wr->sg_list[0].length : 0;
    if (bytes > port_of(qp->context, qp->attr.port_num).attr.max_msg_sz) return refuse(EINVAL);
    if ((wr->send_flags & kInline) != 0 && bytes > qp->init.cap.max_inline_data) return refuse(ENOMEM);
    ++seen().writes;
    if (bytes > seen().largest) seen().largest = bytes;
    if (wr->wr_id == 0) ++seen().zero_ids;
    if ((wr->send_flags & kSignaled) != 0) ++seen().signalled;
    Work w = {*wr, bytes > 0 ? wr->sg_list[0] : Sge{}, {}};
    if ((wr->send_flags & kInline) != 0 && bytes > 0) {
      ++seen().inlined;
      const char* p = reinterpret_cast<const char*>(wr->sg_list[0].addr);
      w.inlined.assign(p, p + bytes);
    }
    ++qp->slots;
    qp->signalled.push_back((wr->send_flags & kSignaled) != 0);
    qp->work.push_back(w);
    if (qp->state == kQpError) flush(qp);
  }
  return 0;
}

int post_recv(Qp* q, RecvWr* wr, RecvWr** bad) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (is_srd(q)) return srd_post_recv(q, wr, bad);
  auto* qp = static_cast<FakeQp*>(q);
  *bad = wr;
  if (const int e = ordered("post_recv", q->context)) return e;
  if (qp->receives.size() >= qp->init.cap.max_recv_wr) return ENOMEM;
  if (!settings().no_receives) qp->receives.push_back(wr->wr_id);
  return 0;
}

}  // namespace

namespace fake {

void rc_install(Context* c) {
  c->ops.poll_cq = poll_cq;
  c->ops.post_send = post_send;
  c->ops.post_recv = post_recv;
}

void rc_kill(const char* device) {
  for (auto& [_, qp] : world().qps)
    if (strcmp(qp->context->device->name, device) == 0) flush(qp);
}

}  // namespace fake

extern "C" {

Cq* ibv_create_cq(Context* c, int n, void*, void*, int) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("create_cq") != 0) return nullptr;
  if (n > static_cast<FakeContext*>(c)->d->attr.max_cqe) {
    errno = EINVAL;
    return nullptr;
  }
  auto* cq = new FakeCq();
  cq->context = c, cq->cqe = n;
  ++seen().live_cqs;
  return cq;
}
int ibv_destroy_cq(Cq* cq) {
  std::lock_guard<std::mutex> lock(world().mutex);
  --seen().live_cqs;
  if (srd_destroy_cq(cq)) return 0;
  delete static_cast<FakeCq*>(cq);
  return 0;
}

Qp* ibv_create_qp(Pd* pd, QpInit* init) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("create_qp") != 0) return nullptr;
  const auto* d = static_cast<FakeContext*>(pd->context)->d;
  if (init->cap.max_inline_data > d->max_inline || static_cast<int>(init->cap.max_send_wr) > d->attr.max_qp_wr || seen().live_qps >= d->attr.max_qp) {
    errno = init->cap.max_inline_data > d->max_inline ? EINVAL : ENOMEM;
    return nullptr;
  }
  auto* qp = new FakeQp();
  qp->context = pd->context, qp->pd = pd, qp->send_cq = init->send_cq, qp->recv_cq = init->recv_cq;
  qp->qp_num = world().next_qpn++;
  qp->init = *init;
  qp->attr = {};
  world().qps[qp->qp_num] = qp;
  ++seen().live_qps;
  return qp;
}
int ibv_modify_qp(Qp* q, QpAttr* a, int mask) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (is_srd(q)) return srd_modify(q, a, mask);
  auto* qp = static_cast<FakeQp*>(q);
  const int target = a->qp_state;
  if (target == kQpError) {
    flush(qp);
    return 0;
  }
  const std::string step = target == kQpInit ? "INIT" : target == kQpRtr ? "RTR" : "RTS";
  if (const int e = ordered(step, q->context)) return e;
  if (target != qp->state + 1) return EINVAL;
  if (target == kQpInit) {
    if (mask != (kAttrState | kAttrPkey | kAttrPort | kAttrAccess)) return EINVAL;
    qp->attr = *a;
  } else if (target == kQpRtr) {
    if (mask != (kAttrState | kAttrAv | kAttrMtu | kAttrDest | kAttrRqPsn | kAttrDestReads | kAttrRnrTimer)) return EINVAL;
    const auto& p = port_of(qp->context, qp->attr.port_num);
    if (a->path_mtu < 1 || a->path_mtu > p.attr.active_mtu || a->ah_attr.port_num != qp->attr.port_num) return EINVAL;
    if (a->max_dest_rd_atomic > static_cast<FakeContext*>(qp->context)->d->attr.max_qp_rd_atom) return EINVAL;
    if (a->ah_attr.src_path_bits != 0 && p.attr.lmc == 0) return EINVAL;
    if (p.attr.link_layer == kLinkEthernet) {
      if (a->ah_attr.is_global == 0 || a->ah_attr.dlid != 0) return EINVAL;
      if (a->ah_attr.sgid_index >= p.gids.size() || p.gids[a->ah_attr.sgid_index].gid.words[1] == 0) return ENODATA;
      if (p.gids[a->ah_attr.sgid_index].gid_type != kGidRoceV2) return EINVAL;
    } else if (a->ah_attr.dlid == 0) {
      return EINVAL;
    }
    const QpAttr init = qp->attr;
    qp->attr = *a;
    qp->attr.port_num = init.port_num, qp->attr.qp_access_flags = init.qp_access_flags, qp->attr.pkey_index = init.pkey_index;
    seen().last_rtr = qp->attr;
  } else if (target == kQpRts) {
    if (mask != (kAttrState | kAttrSqPsn | kAttrTimeout | kAttrRetries | kAttrRnr | kAttrReads)) return EINVAL;
    if (a->max_rd_atomic > static_cast<FakeContext*>(qp->context)->d->attr.max_qp_init_rd_atom) return EINVAL;
    qp->attr.sq_psn = a->sq_psn, qp->attr.timeout = a->timeout, qp->attr.rnr_retry = a->rnr_retry, qp->attr.max_rd_atomic = a->max_rd_atomic;
    if (!settings().drop_attribute) qp->attr.retry_cnt = a->retry_cnt;
    seen().last_rts = *a;
  }
  qp->state = target;
  return 0;
}
int ibv_query_qp(Qp* q, QpAttr* a, int, QpInit* init) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (is_srd(q)) return srd_query(q, a);
  *a = static_cast<FakeQp*>(q)->attr;
  *init = static_cast<FakeQp*>(q)->init;
  return 0;
}
int ibv_destroy_qp(Qp* q) {
  std::lock_guard<std::mutex> lock(world().mutex);
  --seen().live_qps;
  if (is_srd(q)) return srd_destroy(q);
  world().qps.erase(q->qp_num);
  delete static_cast<FakeQp*>(q);
  return 0;
}

}  // extern "C"
