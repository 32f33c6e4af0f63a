// The inside of the fake libfabric: what its calls (fabric.cpp) and its provider (provider.cpp) share. Under the lock.
#pragma once
#include <deque>

#include "tests/fake/ofi/fabric.h"

namespace fakefabric {

struct FakeDomain;
struct FakeFabric : o::Fabric {
  int users = 0;
};
struct FakeDomain : o::Domain {
  FakeFabric* fabric;
  int users = 0;
};
struct FakeMr : o::Mr {
  FakeDomain* domain;
  char* base;
  size_t bytes;
  uint64_t access;
  o::Fid* endpoint = nullptr;
  bool enabled = false;
};
struct Event {
  bool bad;
  o::CqEntry entry;
  o::CqError error;
};
struct FakeCq : o::Cq {
  FakeDomain* domain;
  size_t room;
  int wait_fd = -1;  // an eventfd
  int users = 0;
  bool lost_endpoint = false;  // an endpoint of it was closed
  std::deque<Event> events;
};
struct FakeAv : o::Av {
  FakeDomain* domain;
  int users = 0;
};
struct Piece {
  o::MsgRma m;
  iovec from;
  o::RmaIov to;
  uint64_t flags, number;
};
struct FakeEp : o::Ep {
  FakeDomain* domain;
  uint64_t address;
  FakeCq* cq = nullptr;
  FakeAv* av = nullptr;
  bool enabled = false;
  int users = 0;
  std::deque<Piece> queue;
};
extern Control control;
extern std::vector<FakeMr*> mrs;
extern std::vector<FakeEp*> eps;

// What a call returns that a test let fail, or 0.
int failure(const char* call);
// Adds to a queue, whose descriptor can then be read.
void push(FakeCq* cq, const Event& e);
// Some of what the endpoints of a queue have posted arrives.
void progress(FakeCq* cq);
// Whether some of it has yet to.
bool has_work(const FakeCq* cq);

}  // namespace fakefabric
