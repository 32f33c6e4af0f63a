#include "net/efa_lane.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "net/clock.h"

namespace mk::net {

using namespace verbs;

namespace {

constexpr uint32_t kInlineBytes = 64;  // of a notice

}  // namespace

EfaLane::~EfaLane() {
  if (qp == nullptr) return;
  QpAttr a = {};
  a.qp_state = kQpError;
  q_.port.api->modify_qp(qp, &a, kAttrState);
  q_.port.api->destroy_qp(qp);
}

Qp* EfaLane::create(uint32_t inlined) const {
  QpInitEx init = {};
  init.send_cq = init.recv_cq = &q_.cq->base;
  init.cap = {q_.depth, q_.receives, 1, 1, inlined};
  init.qp_type = kQpTypeDriver;
  init.comp_mask = kQpInitPd | kQpInitSendOps;
  init.pd = q_.pd;
  init.send_ops_flags = kSendOpWrite | kSendOpWriteImmediate;
  EfaQpInit efa = {};
  efa.driver_qp_type = kEfaSrd;
  efa.flags = inlined > 0 ? kEfaInlineWrite : 0;
  efa.sl = static_cast<uint8_t>(q_.service_level);
  return q_.efa.create_qp(q_.port.context.get(), &init, &efa, sizeof efa);
}

void EfaLane::open() {
  // Inline data halves the queue's depth in devices that have it: without, if that is too little.
  inline_bytes = q_.attr.inline_buf_size_ex >= kInlineBytes ? kInlineBytes : 0;
  qp = create(inline_bytes);
  if (qp == nullptr && inline_bytes > 0) qp = create(inline_bytes = 0);
  if (qp == nullptr) {
    const int e = errno;
    fail(MKNET_ERROR_SYSTEM, "%s: queue pair %u of %u sends and %u receives: %s%s%s", name(), number_ + 1, q_.depth, q_.receives, strerror(e),
         q_.service_level != 0 ? "; service levels need rdma-core 55" : "", memlock_hint(e).c_str());
  }
  // Below 0x80000000, where the privileged keys begin.
  if (getrandom(&qkey, sizeof qkey, 0) != sizeof qkey) qkey = static_cast<uint32_t>(now_ns());
  qkey &= 0x7fffffff;
  slots.resize(q_.depth);
  for (uint32_t i = q_.depth; i > 0; --i) free.push_back(i - 1);
  missing = q_.receives;
  if (!(ex = q_.efa.extended(qp))) fail(MKNET_ERROR_SYSTEM, "%s: queue pair %u cannot be posted to", name(), qp->qp_num);
  QpAttr a = {};
  a.qp_state = kQpInit;
  a.port_num = q_.port.number;
  a.qkey = qkey;
  modify(a, kAttrState | kAttrPkey | kAttrPort | kAttrQkey, "INIT");
  refill();
  a = {};
  a.qp_state = kQpRtr;
  modify(a, kAttrState, "RTR");
  a = {};
  a.qp_state = kQpRts;
  a.rnr_retry = static_cast<uint8_t>(q_.rnr_retries);
  modify(a, kAttrState | kAttrSqPsn | ((q_.attr.device_caps & kEfaHasRnrRetry) != 0 ? kAttrRnr : 0), "RTS");
  QpAttr seen = {};
  QpInit init = {};
  if (q_.port.api->query_qp(qp, &seen, kAttrState | kAttrQkey, &init) == 0 && (seen.qp_state != kQpRts || seen.qkey != qkey))
    fail(MKNET_ERROR_SYSTEM, "%s: queue pair %u was not set up as asked: state %d, another key: %d", name(), qp->qp_num, seen.qp_state,
         seen.qkey != qkey);
}

void EfaLane::modify(QpAttr& a, int mask, const char* state) const {
  if (const int rc = q_.port.api->modify_qp(qp, &a, mask); rc != 0)
    fail(MKNET_ERROR_SYSTEM, "%s: queue pair %u to %s: %s", name(), qp->qp_num, state, strerror(error_of(rc)));
}

void EfaLane::refill() {
  while (missing > 0) {
    RecvWr wr[kBatch];
    // Immediates bring no bytes, but libefa posts nothing for a receive without a buffer.
    Sge sge = q_.scratch;
    const uint32_t n = std::min<uint32_t>(missing, kBatch);
    for (uint32_t i = 0; i < n; ++i) wr[i] = {wr_id(kReceive, number_, 1), i + 1 < n ? &wr[i + 1] : nullptr, &sge, 1};
    RecvWr* bad = nullptr;
    if (const int rc = q_.port.context->ops.post_recv(qp, wr, &bad); rc != 0)
      fail(MKNET_ERROR_SYSTEM, "%s: posting %u receives: %s", name(), n, strerror(error_of(rc)));
    missing -= n;
  }
}

}  // namespace mk::net
