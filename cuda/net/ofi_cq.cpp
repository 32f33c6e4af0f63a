#include "net/ofi_cq.h"

#include <cerrno>

namespace mk::net::ofi {

int CompletionQueue::open(Fabric* fabric, Domain* domain, size_t entries, bool waits) {
  fabric_ = fabric;
  CqAttr a = {};
  a.size = entries;
  a.format = kCqFormatData;
  // Providers that have no descriptor for their queues refuse; they are looked at again and again.
  for (const int object : {kWaitFd, kWaitNone}) {
    if (object == kWaitFd && !waits) continue;
    a.wait_obj = object;
    const int rc = domain->ops->cq_open(domain, &a, &cq_, nullptr);
    if (rc != 0) cq_ = nullptr;
    if (rc != 0 && object == kWaitNone) return rc;
    if (rc == 0 && (object == kWaitNone || cq_->fid.ops->control(&cq_->fid, kGetWait, &wait_fd_) == 0)) return 0;
    close();
  }
  return 0;
}

void CompletionQueue::close() {
  if (cq_ != nullptr) cq_->fid.ops->close(&cq_->fid);
  cq_ = nullptr;
  wait_fd_ = -1;
}

bool CompletionQueue::take_cause(CqError* cause, std::string* said) {
  char text[256] = "";
  bool any = false;
  for (int i = 0; i < 64; ++i) {
    CqError e = {};
    if (cq_->ops->readerr(cq_, &e, 0) != 1) break;
    if (any && (cause->err != ECANCELED || e.err == ECANCELED)) continue;
    *cause = e;
    any = true;
    const char* words = cq_->ops->strerror(cq_, e.prov_errno, e.err_data, text, sizeof text);
    *said = words != nullptr ? words : "";
  }
  return any;
}

bool CompletionQueue::may_sleep() {
  if (wait_fd_ < 0) return false;
  Fid* fid = &cq_->fid;
  return fabric_->ops->trywait(fabric_, &fid, 1) == 0;
}

const char* hint_of(int error) {
  switch (error) {
    case ECONNREFUSED: case ENOTCONN: case ECONNRESET: case ECONNABORTED: case ESHUTDOWN: case EPIPE: case EREMOTEIO:
      return ": the peer is gone, or has closed";
    case EHOSTUNREACH: case ENETUNREACH: case EHOSTDOWN: case ENETDOWN: case EADDRNOTAVAIL: return ": no way between these addresses";
    case ETIMEDOUT: return ": the peer or the way to it is gone; a packet filter?";
    case EACCES: case EPERM: case EKEYREJECTED: case kErrorNoKey: return ": the peer refuses the address or key: of an earlier job?";
    case kErrorOverrun: return ": a completion queue was too small";
    case kErrorNoReceive: return ": the peer has no receive posted";
    default: return "";
  }
}

}  // namespace mk::net::ofi
