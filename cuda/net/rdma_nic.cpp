#include "net/rdma_nic.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>

namespace mk::net {

using namespace verbs;

std::string memlock_hint(int error) {
  rlimit limit;
  if (error != ENOMEM || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return format("; at most %llu KiB of memory may be locked (ulimit -l), more may be needed",
                static_cast<unsigned long long>(limit.rlim_cur / 1024));
}

int error_of(int result) { return result > 0 ? result : result == -1 ? errno : -result; }

RdmaNic::RdmaNic(const Port& port, const mknet_desc& d, bool peer_memory)
    : api_(*port.api),
      port_(port),
      s_(d.rdma),
      world_(static_cast<uint32_t>(d.world)),
      regions_(kRegions),
      mrs_(kRegions),
      peer_memory_(peer_memory) {
  s_.devices = s_.library = s_.efa_home = nullptr;  // not ours to keep
  p_.name = port.name;
  if (!(pd_ = api_.alloc_pd(port_.context.get()))) fail(MKNET_ERROR_SYSTEM, "%s: no protection domain: %s", name(), strerror(errno));
  const int flags = fcntl(port_.context->async_fd, F_GETFL);
  fcntl(port_.context->async_fd, F_SETFL, flags | O_NONBLOCK);
}

RdmaNic::~RdmaNic() {
  for (Mr* mr : mrs_)
    if (mr != nullptr) api_.dereg_mr(mr);
  api_.dealloc_pd(pd_);
}

Mr* RdmaNic::add(const Region& r, int access, bool relaxed, std::string* how) {
  const auto address = reinterpret_cast<uint64_t>(r.base);
  std::string tried;
  if (r.memory == MKNET_DEVICE) {
    if (r.fd < 0) {
      tried = "it came without a dma-buf";
    } else if (api_.reg_dmabuf_mr == nullptr) {
      tried = "this libibverbs has no ibv_reg_dmabuf_mr";
    } else if (Mr* mr = api_.reg_dmabuf_mr(pd_, r.fd_offset, r.bytes, address, r.fd, access)) {
      *how = "dma-buf";
      return mr;
    } else {
      tried = format("dma-buf: %s", strerror(errno));
    }
    if (!peer_memory_)
      fail(MKNET_ERROR_UNSUPPORTED, "%s: registering %" PRIu64 " bytes of device memory: %s", name(), r.bytes, tried.c_str());
  }
  Mr* mr = relaxed ? api_.reg_mr_iova2(pd_, r.base, r.bytes, address, static_cast<unsigned>(access)) : api_.reg_mr(pd_, r.base, r.bytes, access);
  if (mr == nullptr) {
    const int e = errno;
    if (r.memory == MKNET_DEVICE)
      fail(MKNET_ERROR_UNSUPPORTED, "%s: registering %" PRIu64 " bytes of device memory: %s; peer memory: %s%s", name(), r.bytes, tried.c_str(),
           strerror(e), memlock_hint(e).c_str());
    fail(MKNET_ERROR_UNSUPPORTED, "%s: registering %" PRIu64 " bytes of host memory: %s%s", name(), r.bytes, strerror(e), memlock_hint(e).c_str());
  }
  *how = r.memory == MKNET_DEVICE ? format("peer memory (%s)", tried.c_str()) : "registered";
  return mr;
}

void RdmaNic::add_region(uint32_t number, const Region& r) {
  // Peers get write access to what they write and none to what is sent from. Flags and credits in the inbox are never
  // relaxed; the heap is only where flags come by immediate.
  int access = r.writable ? kLocalWrite | kRemoteWrite : 0;
  const bool relaxed = s_.relaxed != 0 && number != kInbox && number != kOutbox && number != kStage && api_.reg_mr_iova2 != nullptr;
  if (relaxed) access |= kRelaxedOrdering;
  std::string how;
  Mr* mr = add(r, access, relaxed, &how);
  if (mrs_[number] != nullptr) api_.dereg_mr(mrs_[number]);
  if (number == kHeap) how_ = how;
  regions_[number] = r;
  mrs_[number] = mr;
}

void RdmaNic::put_memory(BlobWriter& w) const {
  for (const uint32_t r : {kHeap, kInbox})
    w.put(RemoteMemory{reinterpret_cast<uint64_t>(regions_[r].base), regions_[r].bytes, mrs_[r]->rkey});
}

void RdmaNic::refuse(const Write& w, const RemoteMemory& there, const std::string& path) {
  fail(MKNET_ERROR_PEER, "%s: a write of %" PRIu64 " bytes at %" PRIu64 " of %" PRIu64 " is out of bounds", path.c_str(), w.bytes, w.target,
       there.bytes);
}

size_t RdmaNic::poll(Completion* out, size_t n) {
  if (ready_.empty()) poll_device();
  const size_t found = std::min(n, ready_.size());
  std::copy_n(ready_.begin(), found, out);
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(found));
  return found;
}

void RdmaNic::check() {
  const std::string fatal = read_events();
  if (fatal.empty()) return;
  poll_device();  // a completion with an error says more
  fail(MKNET_ERROR_SYSTEM, "%s: the device reports: %s", name(), fatal.c_str());
}

std::string RdmaNic::read_events() {
  std::string fatal;
  AsyncEvent e;
  while (api_.get_async_event(port_.context.get(), &e) == 0) {
    const int type = e.event_type;
    const bool of_port = type == kEventPortActive || type == kEventPortError || type == kEventLid || type == kEventPkey || type == kEventGid;
    const bool other_port = of_port && e.element.port_num != port_.number;
    api_.ack_async_event(&e);  // `e` means nothing afterwards; unacknowledged, it would block the destruction of its object
    if (other_port) continue;
    if (of_port) ++port_events_, last_event_ = api_.event_type_str(type);
    if (type == kEventCq || type == kEventQpFatal || type == kEventQpRequest || type == kEventQpAccess || type == kEventDeviceFatal)
      fatal = api_.event_type_str(type);
  }
  return fatal;
}

std::string RdmaNic::events_text() const {
  return port_events_ == 0 ? "" : format("; %" PRIu64 " port events, the last: %s", port_events_, last_event_.c_str());
}

bool RdmaNic::port_down() const {
  PortAttr now = {};
  return api_.query_port(port_.context.get(), port_.number, &now) == 0 && now.state != kPortActive;
}

}  // namespace mk::net
