// The inside of the fake verbs library: what its devices (verbs.cpp), its RC half (rc.cpp) and its SRD half (srd.cpp) share.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>

#include "tests/fake/verbs.h"

namespace fake {

struct FakePd : v::Pd {};
struct FakeMr : v::Mr {
  int access;
  char* memory = nullptr;   // what its addresses stand for: themselves, or a mapping of a dma-buf
  uint64_t mapped = 0;      // bytes of that, from the page before
  char* at(uint64_t address) const { return memory + (address - reinterpret_cast<uint64_t>(addr)); }
};
struct FakeContext : v::Context {
  const DeviceSettings* d;
  FakeContext(const DeviceSettings* settings, v::Device* dev) : v::Context{}, d(settings) {
    device = dev;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) abort();
    async_fd = fds[0], write_fd = fds[1];
    if (pipe2(probe, O_CLOEXEC) != 0) abort();
  }
  int write_fd;
  int probe[2];  // by which readable memory is told
};

struct Work {
  v::SendWr wr;
  v::Sge sge;
  std::vector<char> inlined;
};
struct FakeQp : v::Qp {
  v::QpInit init;
  v::QpAttr attr;
  std::deque<Work> work;            // posted, not executed
  uint32_t slots = 0;               // taken
  std::deque<bool> signalled;       // of slots whose completion was not polled, oldest first
  std::deque<uint64_t> receives;
};

struct World {
  std::mutex mutex;  // held by every function
  Control control = {};
  std::map<uint32_t, FakeQp*> qps;
  std::map<uint32_t, FakeMr*> mrs;
  std::vector<FakeContext*> contexts;
  std::vector<std::unique_ptr<v::Device>> devices;
  uint32_t next_qpn = 0x11, next_key = 0x100;
  uint64_t random = 1;
  uint64_t next_random() {
    uint64_t z = random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
};
World& world();
Settings& settings();
Seen& seen();

// The error that a test ordered for a function, or for it on that device, once.
int ordered(const std::string& function);
int ordered(const std::string& function, const v::Context* c);

inline const PortSettings& port_of(const v::Context* c, uint32_t number) { return static_cast<const FakeContext*>(c)->d->ports[number - 1]; }

// Writes into a peer's memory; words that others may be reading are written whole.
void put(char* target, const char* source, uint64_t bytes, bool words);

// The RC half: its calls of a context, and the end of a device's queue pairs, under the lock.
void rc_install(v::Context* c);
void rc_kill(const char* device);

// The SRD half, under the lock.
inline bool is_srd(const v::Qp* q) { return q->qp_type == v::kQpTypeDriver; }
int srd_post_recv(v::Qp* q, v::RecvWr* wr, v::RecvWr** bad);
int srd_modify(v::Qp* q, const v::QpAttr* a, int mask);
int srd_query(v::Qp* q, v::QpAttr* a);
int srd_destroy(v::Qp* q);
bool srd_destroy_cq(v::Cq* cq);  // false: it is none of SRD
void srd_kill(const char* device);

}  // namespace fake
