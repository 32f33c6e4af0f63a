// The inside of the SRD half of the fake verbs library: what its calls (srd.cpp) and its devices (srd_device.cpp) share.
#pragma once
#include <set>

#include "tests/fake/world.h"

namespace fake {

struct FakeAh : v::Ah {
  v::Gid gid;
};

struct Entry {
  uint64_t wr_id;
  int status, opcode;
  uint32_t vendor, imm;
  unsigned flags;
  uint32_t qp;
  bool send;
};

struct SrdCq : v::CqEx {
  std::deque<Entry> entries;
  Entry current = {};
  bool dead = false, polling = false;
};

struct SrdWork {
  uint64_t wr_id = 0, number = 0;
  bool immediate = false, inlined = false, addressed = false, begun = false, landed = false, told = false, acknowledged = false;
  uint32_t imm = 0, rkey = 0, lkey = 0, qpn = 0, qkey = 0;
  uint64_t target = 0, source = 0, bytes = 0;
  v::Ah* ah = nullptr;
  std::vector<char> data;          // read from the source
  std::vector<std::pair<uint64_t, uint64_t>> chunks;  // not yet written
};

struct SrdQp : v::QpEx {
  v::QpInitEx init;
  v::EfaQpInit efa;
  uint32_t port = 0, qkey = 0;
  bool session = false, inline_writes = false;
  int error = 0;                   // of the session
  std::vector<SrdWork> batch;      // of the session
  std::vector<SrdWork> work;       // posted, not acknowledged
  uint32_t slots = 0;              // taken
  std::deque<uint64_t> receives;
  uint32_t receive_slots = 0;
  uint64_t next = 0;
};

struct Srd {
  std::map<uint32_t, SrdQp*> qps;
  std::set<SrdCq*> cqs;
  std::set<FakeAh*> ahs;
};
Srd& srd();

inline SrdCq* cq_of(v::Cq* c) { return static_cast<SrdCq*>(reinterpret_cast<v::CqEx*>(c)); }
inline const DeviceSettings& device_of(const SrdQp* q) { return *static_cast<FakeContext*>(q->base.context)->d; }

inline bool covers(const FakeMr* mr, uint64_t at, uint64_t bytes) {
  const auto base = reinterpret_cast<uint64_t>(mr->addr);
  return at >= base && bytes <= mr->length && at - base <= mr->length - bytes;
}

// The device, under the lock: does some of what is posted, and ends a queue pair.
void srd_work();
void srd_flush(SrdQp* qp);

}  // namespace fake
