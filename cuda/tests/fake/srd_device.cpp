// The devices of the SRD half: writes are cut into chunks that land in any order and mixed with those of other writes;
// completions of both sides come late and in any order. The peer must know the sender by an address handle, and must have
// a receive for each immediate.
#include <algorithm>
#include <cstring>

#include "tests/fake/srd.h"

using namespace mk::net::verbs;
using namespace fake;

namespace {

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

// Whom a write goes to; NULL: nobody has that number at that address.
SrdQp* target_of(const SrdWork& w) {
  const auto found = srd().qps.find(w.qpn);
  if (found == srd().qps.end()) return nullptr;
  SrdQp* to = found->second;
  const Gid& gid = port_of(to->base.context, to->port).gids[0].gid;
  return memcmp(&gid, &static_cast<FakeAh*>(w.ah)->gid, sizeof gid) == 0 ? to : nullptr;
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

}  // namespace

namespace fake {

Srd& srd() {
  static Srd s;
  return s;
}

void srd_flush(SrdQp* qp) {
  qp->base.state = kQpError;
  for (const SrdWork& w : qp->work)
    if (!w.acknowledged) acknowledge(qp, w, kEfaFlushed);
  qp->work.clear();
  for (const uint64_t id : qp->receives) add(cq_of(qp->base.recv_cq), {id, kWcFlushed, 0x5a, kEfaFlushed, 0, 0, qp->base.qp_num, false});
  qp->receives.clear();
}

void srd_work() {
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

}  // namespace fake
