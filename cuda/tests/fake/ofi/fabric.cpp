#include "tests/fake/ofi/fabric.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/fake/ofi/inside.h"

using namespace fakefabric;
using namespace mk::net::ofi;

namespace {

uint64_t next_address = 1, next_key = 1, write_calls;

template <class T>
T* of(Fid* f) { return reinterpret_cast<T*>(f); }

// Closes an object that others may still use; `parent` counts the users of what it was made of.
template <class T>
int gone(T* x, int* parent, int& live) {
  if (x->users > 0) return ++control.seen.wrong_order, -EBUSY;
  if (parent != nullptr) --*parent;
  return --live, delete x, 0;
}

enum : size_t { kFabric = 1, kDomain, kCq, kAv, kEp, kMr };

int close_object(Fid* f) {
  std::lock_guard<std::mutex> lock(control.mutex);
  Seen& seen = control.seen;
  switch (f->fclass) {
    case kFabric: return gone(of<FakeFabric>(f), nullptr, seen.fabrics);
    case kDomain: return gone(of<FakeDomain>(f), &of<FakeDomain>(f)->fabric->users, seen.domains);
    case kCq: {
      const int fd = of<FakeCq>(f)->wait_fd;
      const int r = gone(of<FakeCq>(f), &of<FakeCq>(f)->domain->users, seen.cqs);
      if (r == 0 && fd >= 0) close(fd);
      return r;
    }
    case kAv: return gone(of<FakeAv>(f), &of<FakeAv>(f)->domain->users, seen.avs);
    case kEp: {
      auto* x = of<FakeEp>(f);
      x->users = static_cast<int>(std::count_if(mrs.begin(), mrs.end(), [&](const FakeMr* m) { return m->endpoint == f; }));
      if (x->users > 0) return ++seen.wrong_order, -EBUSY;
      if (x->cq != nullptr) --x->cq->users, x->cq->lost_endpoint = true;
      if (x->av != nullptr) --x->av->users;
      eps.erase(std::find(eps.begin(), eps.end(), x));
      return gone(x, &x->domain->users, seen.eps);
    }
    default: {
      auto* x = of<FakeMr>(f);
      mrs.erase(std::find(mrs.begin(), mrs.end(), x));
      return --x->domain->users, --seen.mrs, delete x, 0;
    }
  }
}

int bind_objects(Fid* f, Fid* to, uint64_t flags) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("bind")) return r;
  if (f->fclass == kMr) return of<FakeMr>(f)->endpoint = to, 0;
  auto* ep = of<FakeEp>(f);
  if (to->fclass == kAv) return ep->av = of<FakeAv>(to), ++ep->av->users, 0;
  if (flags != (kTransmit | kReceive)) return -EINVAL;
  return ep->cq = of<FakeCq>(to), ++ep->cq->users, 0;
}

int control_object(Fid* f, int command, void* argument) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (command == kGetWait && f->fclass == kCq && of<FakeCq>(f)->wait_fd >= 0) return *static_cast<int*>(argument) = of<FakeCq>(f)->wait_fd, 0;
  if (command != kEnable) return -ENOSYS;
  if (f->fclass == kMr) return of<FakeMr>(f)->enabled = true, 0;
  if (const int r = failure("enable")) return r;
  if (control.settings.ports_taken > 0) return --control.settings.ports_taken, -EADDRINUSE;
  auto* ep = of<FakeEp>(f);
  return ep->enabled = ep->cq != nullptr && ep->av != nullptr, ep->enabled ? 0 : -EINVAL;
}

FidOps fid_ops = {sizeof fid_ops, close_object, bind_objects, control_object};
template <class T>
T* made(size_t fclass) {
  T* x = new T();
  x->fid.fclass = fclass, x->fid.ops = &fid_ops;
  return x;
}

ssize_t read_cq(Cq* c, void* out, size_t n) {
  std::lock_guard<std::mutex> lock(control.mutex);
  auto* cq = static_cast<FakeCq*>(c);
  if (const int r = failure("read")) return r;
  progress(cq);
  size_t got = 0;
  while (got < n && !cq->events.empty() && !cq->events.front().bad) {
    static_cast<CqEntry*>(out)[got++] = cq->events.front().entry;
    cq->events.pop_front();
  }
  if (got > 0) return static_cast<ssize_t>(got);
  return cq->events.empty() ? -EAGAIN : -kErrorAvailable;
}
ssize_t read_error(Cq* c, CqError* out, uint64_t) {
  std::lock_guard<std::mutex> lock(control.mutex);
  auto* cq = static_cast<FakeCq*>(c);
  if (cq->events.empty() || !cq->events.front().bad) return -EAGAIN;
  *out = cq->events.front().error;
  cq->events.pop_front();
  return 1;
}
const char* error_text(Cq*, int prov, const void*, char*, size_t) { return prov != 0 ? "the provider's words" : ""; }
CqOps cq_ops = {sizeof cq_ops, read_cq, nullptr, read_error, {}, error_text};

int insert(Av*, const void* address, size_t count, uint64_t* out, uint64_t, void*) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("insert")) return r;
  memcpy(out, address, 8);
  return static_cast<int>(count);
}
const char* straddr(Av*, const void* address, char* text, size_t* length) {
  uint64_t n;
  memcpy(&n, address, 8);
  snprintf(text, *length, "fake://%llu", static_cast<unsigned long long>(n));
  return text;
}
AvOps av_ops = {sizeof av_ops, insert, {}, straddr};

int getname(Fid* f, void* address, size_t* bytes) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("getname")) return r;
  memcpy(address, &of<FakeEp>(f)->address, *bytes = 8);
  return 0;
}
CmOps cm_ops = {sizeof cm_ops, nullptr, getname};

ssize_t writemsg(Ep* e, const MsgRma* m, uint64_t flags) {
  std::lock_guard<std::mutex> lock(control.mutex);
  auto* ep = static_cast<FakeEp*>(e);
  const Settings& s = control.settings;
  if (const int r = failure("write")) {
    if (r == -1) errno = ENOMEM;  // V53: some return -1 and set errno
    return r;
  }
  if (s.busy != 0 && ++write_calls % s.busy == 0) return -EAGAIN;
  if (ep->queue.size() >= s.tx_size) return -EAGAIN;
  if (!ep->enabled || (flags & kDeliveryComplete) == 0 || m->msg_iov->iov_len != m->rma_iov->len || m->rma_iov->len > s.max_msg_size) return -EINVAL;
  if ((s.mr_mode & kMrLocal) != 0 && std::none_of(mrs.begin(), mrs.end(), [&](const FakeMr* x) {
        const auto* from = static_cast<const char*>(m->msg_iov->iov_base);
        return x->mem_desc == *m->desc && x->enabled == ((s.mr_mode & kMrEndpoint) != 0) && from >= x->base && from + m->msg_iov->iov_len <= x->base + x->bytes;
      }))
    return -EINVAL;
  memset(m->context, 0xdd, 64);
  ep->queue.push_back({*m, *m->msg_iov, *m->rma_iov, flags, ++control.seen.writes});
  return 0;
}
RmaOps rma_ops = {sizeof rma_ops, {}, writemsg};

int reg(Fid* f, const void* base, size_t bytes, uint64_t access, uint64_t, uint64_t key, uint64_t, Mr** out, void*) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("reg")) return r;
  const Settings& s = control.settings;
  const bool own = (s.mr_mode & kMrProvKey) != 0;
  auto* domain = of<FakeDomain>(f);
  if (!own && s.mr_key_size < 8 && key >> s.mr_key_size * 8 != 0) return -EINVAL;
  if (!own && std::any_of(mrs.begin(), mrs.end(), [&](const FakeMr* m) { return m->domain == domain && m->key == key; })) return -kErrorNoKey;
  if (!own) control.seen.keys.push_back(key);
  auto* x = made<FakeMr>(kMr);
  x->domain = domain, x->base = const_cast<char*>(static_cast<const char*>(base)), x->bytes = bytes, x->access = access;
  x->key = own ? next_key++ : key, x->mem_desc = x;
  ++domain->users, ++control.seen.mrs;
  control.seen.access.push_back(access);
  mrs.push_back(x);
  return *out = x, 0;
}
MrOps mr_ops = {sizeof mr_ops, reg};

int open_av(Domain* d, AvAttr*, Av** out, void*) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("av")) return r;
  auto* x = made<FakeAv>(kAv);
  x->ops = &av_ops, x->domain = static_cast<FakeDomain*>(d);
  return ++x->domain->users, ++control.seen.avs, *out = x, 0;
}
int open_cq(Domain* d, CqAttr* a, Cq** out, void*) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("cq")) return r;
  if (a->wait_obj == kWaitFd && control.settings.no_descriptors) return -ENOSYS;
  auto* x = made<FakeCq>(kCq);
  x->ops = &cq_ops, x->domain = static_cast<FakeDomain*>(d), x->room = a->size;
  if (a->wait_obj == kWaitFd) x->wait_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  control.seen.cq_size = a->size;
  return ++x->domain->users, ++control.seen.cqs, *out = x, 0;
}
int open_ep(Domain* d, Info*, Ep** out, void*) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("endpoint")) return r;
  auto* x = made<FakeEp>(kEp);
  x->cm = &cm_ops, x->rma = &rma_ops, x->domain = static_cast<FakeDomain*>(d), x->address = next_address++;
  eps.push_back(x);
  return ++x->domain->users, ++control.seen.eps, *out = x, 0;
}
DomainOps domain_ops = {sizeof domain_ops, open_av, open_cq, open_ep};

int open_domain(Fabric* f, Info*, Domain** out, void*) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("domain")) return r;
  auto* x = made<FakeDomain>(kDomain);
  x->ops = &domain_ops, x->mr = &mr_ops, x->fabric = static_cast<FakeFabric*>(f);
  return ++x->fabric->users, ++control.seen.domains, *out = x, 0;
}
// Resets the descriptors; then one may wait for them, unless there is something already.
int trywait(Fabric*, Fid** fids, int count) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("trywait")) return r;
  int r = 0;
  for (int i = 0; i < count; ++i) {
    auto* cq = of<FakeCq>(fids[i]);
    control.seen.wrong_order += cq->lost_endpoint;  // ofi_rxm looks at freed memory
    uint64_t signals;
    if (read(cq->wait_fd, &signals, sizeof signals) < 0 && errno != EAGAIN) return -EINVAL;
    if (!cq->events.empty() || has_work(cq)) r = -EAGAIN;
  }
  return r;
}
FabricOps fabric_ops = {sizeof fabric_ops, open_domain, {}, trywait};

// Infos are one block each, and end with it.
struct Block : Info {
  TxAttr tx;
  RxAttr rx;
  EpAttr ep;
  DomainAttr domain;
  FabricAttr fabric;
  NicAttr card;
  BusAttr bus;
  LinkAttr link;
  sockaddr_in source;
  Block() : Info(), tx(), rx(), ep(), domain(), fabric(), card(), bus(), link(), source() {
    tx_attr = &tx, rx_attr = &rx, ep_attr = &ep, domain_attr = &domain, fabric_attr = &fabric;
  }
};

Info* info_of(const DomainSettings& d) {
  const Settings& s = control.settings;
  auto* b = new Block();
  b->fabric.prov_name = strdup(d.provider.c_str());
  b->domain.name = strdup(d.name.c_str());
  b->tx.msg_order = b->rx.msg_order = s.msg_order, b->rx.comp_order = s.comp_order, b->tx.size = s.tx_size;
  b->ep.protocol = d.protocol, b->ep.max_msg_size = s.max_msg_size, b->ep.max_order_waw_size = s.max_order_waw_size;
  b->domain.mr_mode = s.mr_mode, b->domain.mr_key_size = s.mr_key_size, b->domain.cq_data_size = s.cq_data_size, b->domain.data_progress = s.data_progress;
  if (d.hardware) {
    b->nic = &b->card, b->card.bus_attr = &b->bus, b->bus.bus_type = kBusPci;
    b->card.link_attr = &b->link, b->link.state = d.down ? kLinkDown : 2;
  }
  if (!d.address.empty()) {
    b->addr_format = kSockaddrIn, b->src_addr = &b->source, b->src_addrlen = sizeof b->source;
    b->source.sin_family = AF_INET;
    inet_pton(AF_INET, d.address.c_str(), &b->source.sin_addr);
  }
  return b;
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))
extern "C" {

EXPORT Control* fake_fabric_control() { return &control; }
EXPORT uint32_t fi_version() { return 1 << 16 | 17; }
EXPORT const char* fi_strerror(int e) { return e < 256 ? strerror(e) : "an error of libfabric's own"; }
EXPORT Info* fi_dupinfo(const Info*) { return new Block(); }
EXPORT void fi_freeinfo(Info* i) {
  for (Info* next; i != nullptr; i = next) {
    next = i->next;
    free(i->fabric_attr->prov_name);
    free(i->domain_attr->name);
    delete static_cast<Block*>(i);
  }
}
EXPORT int fi_getinfo(uint32_t, const char*, const char*, uint64_t, const Info* hints, Info** out) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("getinfo")) return r;
  Info** last = out;
  *out = nullptr;
  for (const DomainSettings& d : control.settings.domains) {
    if (hints->fabric_attr->prov_name != nullptr && d.provider != hints->fabric_attr->prov_name) continue;
    *last = info_of(d);
    last = &(*last)->next;
  }
  return *out != nullptr ? 0 : -ENODATA;
}
EXPORT int fi_fabric(FabricAttr*, Fabric** out, void*) {
  std::lock_guard<std::mutex> lock(control.mutex);
  if (const int r = failure("fabric")) return r;
  auto* x = made<FakeFabric>(kFabric);
  x->ops = &fabric_ops;
  return ++control.seen.fabrics, *out = x, 0;
}
}
