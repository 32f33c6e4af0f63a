// A verbs library without a kernel: devices, memory and events of this process. It is loaded in place of libibverbs. Its
// queue pairs are in rc.cpp and srd.cpp.
#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include "tests/fake/world.h"

using namespace mk::net::verbs;
using namespace fake;

namespace fake {

World& world() {
  static World w;
#if defined(FAKE_DEVICES) || defined(FAKE_EFA)  // for users that cannot say which there are; once, whoever of their threads is first
  static const bool filled = [] {
    Settings& s = w.control.settings;
#ifdef FAKE_DEVICES
    for (int i = 0; i < FAKE_DEVICES; ++i) s.devices.push_back(roce("fake" + std::to_string(i), static_cast<uint8_t>(i + 1)));
#else
    s.slow = s.early_completion = true;
    for (int i = 0; i < FAKE_EFA; ++i) s.devices.push_back(efa("rdmap" + std::to_string(i) + "s31", static_cast<uint8_t>(i + 1)));
#endif
    return true;
  }();
  (void)filled;
#endif
  return w;
}
Settings& settings() { return world().control.settings; }
Seen& seen() { return world().control.seen; }

int ordered(const std::string& function) {
  const auto f = settings().fail.find(function);
  if (f == settings().fail.end()) return 0;
  const int e = f->second;
  settings().fail.erase(f);
  return errno = e;
}

int ordered(const std::string& function, const Context* c) {
  if (settings().fail.empty()) return 0;
  const int e = ordered(function);
  return e != 0 ? e : ordered(function + " " + c->device->name);
}

void put(char* target, const char* source, uint64_t bytes, bool words) {
  if (!words) {
    memcpy(target, source, bytes);
    return;
  }
  for (uint64_t i = 0; i < bytes; i += 8) {
    uint64_t word;
    memcpy(&word, source + i, 8);
    __atomic_store_n(reinterpret_cast<uint64_t*>(target + i), word, __ATOMIC_SEQ_CST);
  }
}

}  // namespace fake

namespace {

void event(const char* device, int type, int port) {
  for (FakeContext* c : world().contexts) {
    if (strcmp(c->device->name, device) != 0) continue;
    AsyncEvent e = {};
    e.element.port_num = port;
    e.event_type = type;
    if (write(c->write_fd, &e, sizeof e) != sizeof e) abort();
  }
}

void kill_qps(const char* device) {
  rc_kill(device);
  srd_kill(device);
}

}  // namespace

extern "C" {

fake::Control* fake_control() {
  world().control.event = event;
  world().control.kill_qps = kill_qps;
  world().control.mutex = &world().mutex;
  return &world().control;
}

Device** ibv_get_device_list(int* count) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("get_device_list") != 0) return nullptr;
  const auto& all = settings().devices;
  auto** list = new Device*[all.size() + 1]();
  for (size_t i = 0; i < all.size(); ++i) {
    auto d = std::make_unique<Device>();
    d->transport_type = all[i].transport;
    snprintf(d->name, sizeof d->name, "%s", all[i].name.c_str());
    list[i] = d.get();
    world().devices.push_back(std::move(d));
  }
  world().random = settings().seed;
  *count = static_cast<int>(all.size());
  return list;
}
void ibv_free_device_list(Device** list) { delete[] list; }

Context* ibv_open_device(Device* device) {
  std::unique_lock<std::mutex> lock(world().mutex);
  while (settings().hang == device->name) {
    lock.unlock();
    sched_yield();
    lock.lock();
  }
  if (ordered("open_device") != 0) return nullptr;
  for (const auto& d : settings().devices) {
    if (d.name != device->name) continue;
    if (!d.openable) {
      errno = ENOENT;
      return nullptr;
    }
    auto* c = new FakeContext(&d, device);
    rc_install(c);
    world().contexts.push_back(c);
    ++seen().live_contexts, ++seen().opened;
    return c;
  }
  return nullptr;
}
int ibv_close_device(Context* context) {
  std::lock_guard<std::mutex> lock(world().mutex);
  auto* c = static_cast<FakeContext*>(context);
  close(c->async_fd);
  close(c->write_fd);
  close(c->probe[0]);
  close(c->probe[1]);
  for (auto at = world().contexts.begin(); at != world().contexts.end(); ++at)
    if (*at == c) {
      world().contexts.erase(at);
      break;
    }
  --seen().live_contexts;
  delete c;
  return 0;
}
int ibv_query_device(Context* c, DeviceAttr* a) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (const int e = ordered("query_device")) return e;
  *a = static_cast<FakeContext*>(c)->d->attr;
  a->phys_port_cnt = static_cast<uint8_t>(static_cast<FakeContext*>(c)->d->ports.size());
  return 0;
}
int ibv_query_port(Context* c, uint8_t n, PortAttr* a) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (const int e = ordered("query_port")) return e;
  *a = port_of(c, n).attr;
  a->gid_tbl_len = static_cast<int>(port_of(c, n).gids.size());
  a->pkey_tbl_len = static_cast<uint16_t>(port_of(c, n).pkeys.size());
  return 0;
}
int ibv_query_pkey(Context* c, uint8_t n, int i, uint16_t* key) {
  std::lock_guard<std::mutex> lock(world().mutex);
  *key = htons(port_of(c, n).pkeys[static_cast<size_t>(i)]);
  return 0;
}
ssize_t _ibv_query_gid_table(Context* c, GidEntry* out, size_t n, uint32_t, size_t) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (const int e = ordered("query_gid_table")) return -e;
  size_t found = 0;
  const auto* d = static_cast<FakeContext*>(c)->d;
  for (size_t port = 0; port < d->ports.size(); ++port)
    for (size_t i = 0; i < d->ports[port].gids.size() && found < n; ++i) {
      GidEntry e = d->ports[port].gids[i];
      e.gid_index = static_cast<uint32_t>(i), e.port_num = static_cast<uint32_t>(port + 1);
      if (e.gid.words[0] != 0 || e.gid.words[1] != 0) out[found++] = e;  // the library leaves empty slots out
    }
  return static_cast<ssize_t>(found);
}

Pd* ibv_alloc_pd(Context* c) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("alloc_pd") != 0) return nullptr;
  ++seen().live_pds;
  auto* pd = new FakePd();
  pd->context = c;
  return pd;
}
int ibv_dealloc_pd(Pd* pd) {
  std::lock_guard<std::mutex> lock(world().mutex);
  --seen().live_pds;
  delete static_cast<FakePd*>(pd);
  return 0;
}
static Mr* add_mr(Pd* pd, void* addr, size_t n, unsigned access, char* memory) {
  if (n == 0 || ((access & kRemoteWrite) != 0 && (access & kLocalWrite) == 0)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* mr = new FakeMr();
  mr->context = pd->context, mr->pd = pd, mr->addr = addr, mr->length = n, mr->access = static_cast<int>(access);
  mr->memory = memory;
  mr->lkey = mr->rkey = world().next_key++;
  world().mrs[mr->lkey] = mr;
  ++seen().live_mrs, ++seen().mrs;
  if ((access & kRelaxedOrdering) != 0) ++seen().relaxed_mrs;
  if ((access & kRemoteWrite) == 0) seen().mr_access_of_readers |= access & ~static_cast<unsigned>(kRelaxedOrdering);
  return mr;
}
Mr* ibv_reg_mr_iova2(Pd* pd, void* addr, size_t n, uint64_t, unsigned access) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("reg_mr") != 0) return nullptr;
  // As a kernel: pages that the process cannot read are none.
  auto* c = static_cast<FakeContext*>(pd->context);
  if (n > 0 && syscall(SYS_write, c->probe[1], addr, 1) != 1) {
    errno = EFAULT;
    return nullptr;
  }
  char drop;
  if (n > 0 && read(c->probe[0], &drop, 1) != 1) abort();
  return add_mr(pd, addr, n, access, static_cast<char*>(addr));
}
Mr* ibv_reg_mr(Pd* pd, void* addr, size_t n, int access) { return ibv_reg_mr_iova2(pd, addr, n, reinterpret_cast<uint64_t>(addr), static_cast<unsigned>(access)); }
Mr* ibv_reg_dmabuf_mr(Pd* pd, uint64_t offset, size_t n, uint64_t iova, int fd, int access) {
  std::lock_guard<std::mutex> lock(world().mutex);
  if (ordered("reg_dmabuf_mr", pd->context) != 0) return nullptr;
  if (settings().no_dma_buf) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), inside = offset % page;
  void* p = mmap(nullptr, n + inside, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset - inside));
  if (p == MAP_FAILED) return nullptr;
  Mr* mr = add_mr(pd, reinterpret_cast<void*>(iova), n, static_cast<unsigned>(access), static_cast<char*>(p) + inside);
  if (mr == nullptr)
    munmap(p, n + inside);
  else
    static_cast<FakeMr*>(mr)->mapped = n + inside;
  return mr;
}
int ibv_dereg_mr(Mr* mr) {
  std::lock_guard<std::mutex> lock(world().mutex);
  world().mrs.erase(mr->lkey);
  if (auto* m = static_cast<FakeMr*>(mr); m->mapped != 0) munmap(m->memory - (m->mapped - m->length), m->mapped);
  --seen().live_mrs;
  delete static_cast<FakeMr*>(mr);
  return 0;
}

int ibv_get_async_event(Context* c, AsyncEvent* e) { return read(c->async_fd, e, sizeof *e) == sizeof *e ? 0 : -1; }
void ibv_ack_async_event(AsyncEvent* e) { memset(e, 0xff, sizeof *e); }
const char* ibv_wc_status_str(int s) { return s == kWcRetries ? "transport retry counter exceeded" : s == kWcRemoteAccess ? "remote access error" : "error"; }
const char* ibv_event_type_str(int t) { return t == kEventPortError ? "port error" : t == kEventCq ? "CQ error" : "event"; }

}  // extern "C"
