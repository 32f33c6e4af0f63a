// The provider of the fake libfabric: what becomes of writes.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/fake/ofi/inside.h"

using namespace mk::net::ofi;

namespace fakefabric {

Control control;
std::vector<FakeMr*> mrs;
std::vector<FakeEp*> eps;

int failure(const char* call) {
  const auto f = control.settings.fail.find(call);
  return f != control.settings.fail.end() ? f->second : 0;
}

void push(FakeCq* cq, const Event& e) {
  cq->events.push_back(e);
  const uint64_t one = 1;
  if (cq->wait_fd >= 0 && write(cq->wait_fd, &one, sizeof one) != sizeof one) abort();
  control.seen.most_queued = std::max<uint64_t>(control.seen.most_queued, cq->events.size());
  if (cq->events.size() <= cq->room) return;
  Event over = {true, {}, {}};
  over.error.err = kErrorOverrun;
  cq->events.push_front(over);
}

bool has_work(const FakeCq* cq) {
  return !control.settings.lose && std::any_of(eps.begin(), eps.end(), [&](const FakeEp* ep) { return ep->cq == cq && !ep->queue.empty(); });
}

namespace {

uint64_t drawn;

uint64_t draw(uint64_t below) {
  drawn = drawn * 6364136223846793005u + 1442695040888963407u + control.settings.seed;
  return (drawn >> 33) % below;
}
Event bad(const Piece& p, int err, int prov) {
  Event e = {true, {}, {}};
  e.error.op_context = p.m.context, e.error.err = err, e.error.prov_errno = prov;
  return e;
}

// A NIC stores aligned words whole.
void store(char* to, const char* from, size_t bytes) {
  size_t at = 0;
  if (reinterpret_cast<uintptr_t>(to) % 8 == 0)
    for (; at + 8 <= bytes; at += 8) {
      uint64_t word;
      memcpy(&word, from + at, 8);
      __atomic_store_n(reinterpret_cast<uint64_t*>(to + at), word, __ATOMIC_SEQ_CST);
    }
  memcpy(to + at, from + at, bytes - at);
}

void deliver(FakeEp* ep, const Piece& p) {
  const Settings& s = control.settings;
  memset(p.m.context, 0xee, 64);  // it is the provider's until now
  if (p.number == s.bad_write) {
    if (s.canceled_first) push(ep->cq, bad(p, ECANCELED, 0));
    return push(ep->cq, bad(p, s.bad_err, s.bad_prov));
  }
  const auto peer = std::find_if(eps.begin(), eps.end(), [&](const FakeEp* e) { return e->address == p.m.addr; });
  if (peer == eps.end()) return push(ep->cq, bad(p, ECANCELED, ENOTCONN));
  const bool bound = (s.mr_mode & kMrEndpoint) != 0;
  const auto mr = std::find_if(mrs.begin(), mrs.end(), [&](const FakeMr* m) {
    return m->key == p.to.key && m->domain == (*peer)->domain && (!bound || (m->enabled && m->endpoint == &(*peer)->fid));
  });
  if (mr == mrs.end() || ((*mr)->access & kRemoteWrite) == 0) return push(ep->cq, bad(p, EACCES, 0));
  const uint64_t offset = p.to.addr - ((s.mr_mode & kMrVirtAddr) != 0 ? reinterpret_cast<uint64_t>((*mr)->base) : 0);
  if (offset > (*mr)->bytes || p.to.len > (*mr)->bytes - offset) return push(ep->cq, bad(p, EACCES, 1));
  store((*mr)->base + offset, static_cast<const char*>(p.from.iov_base), p.from.iov_len);
  Event e = {false, {}, {}};
  if ((p.flags & kRemoteCqData) != 0) {
    e.entry.flags = kRemoteCqData | kRemoteWrite | kRma, e.entry.data = p.m.data;
    if (s.cq_data_size < 8) e.entry.data &= (uint64_t{1} << s.cq_data_size * 8) - 1;
    push((*peer)->cq, e);
  }
  e.entry = {};
  e.entry.op_context = p.m.context, e.entry.flags = kRma | kWrite;
  push(ep->cq, e);
}

}  // namespace

void progress(FakeCq* cq) {
  for (FakeEp* ep : std::vector<FakeEp*>(eps)) {
    if (ep->cq != cq || control.settings.lose) continue;
    for (uint64_t n = ep->queue.empty() ? 0 : draw(ep->queue.size() + 1); n > 0; --n) {
      const size_t at = control.settings.ordered ? 0 : draw(ep->queue.size());
      const Piece p = ep->queue[at];
      ep->queue.erase(ep->queue.begin() + static_cast<ptrdiff_t>(at));
      deliver(ep, p);
    }
  }
}

}  // namespace fakefabric
