// One SRD queue pair of an EFA device, which all peers share: its set-up, its send slots and its receives.
#pragma once
#include <vector>

#include "net/efa_device.h"
#include "net/rdma_nic.h"

namespace mk::net {

constexpr int kEfaSlotBits = 16;  // of a work request's number; the rest counts the uses of the slot

// What is under way of a queue pair. Completions come in any order, so slots are free in any order.
struct EfaSlot {
  uint64_t id = 0;
  uint32_t peer = 0, uses = 0;
  bool taken = false;
};

// What all queue pairs of a NIC are made of and with.
struct EfaQueues {
  const verbs::EfaApi& efa;
  const verbs::EfaDeviceAttr attr;
  const verbs::Port& port;
  verbs::Pd* pd = nullptr;
  uint32_t depth = 0, receives = 0;  // of each
  uint32_t service_level = 0, rnr_retries = 0;
  verbs::CqEx* cq = nullptr;
  verbs::Sge scratch = {};           // where receives have room: immediates bring no bytes
};

class EfaLane {
 public:
  EfaLane(const EfaQueues& queues, uint32_t number) : q_(queues), number_(number) {}
  ~EfaLane();
  EfaLane(const EfaLane&) = delete;
  EfaLane& operator=(const EfaLane&) = delete;

  // Makes the queue pair, ready for all peers. What is half made when it throws goes with the object.
  void open();
  // Posts the receives that are missing, by one doorbell for many.
  void refill();

  uint32_t number() const { return number_; }

  verbs::Qp* qp = nullptr;
  verbs::QpEx* ex = nullptr;
  uint32_t qkey = 0;
  uint32_t inline_bytes = 0;
  std::vector<EfaSlot> slots;
  std::vector<uint32_t> free;  // numbers of slots
  uint32_t missing = 0;        // receives to be posted

 private:
  const char* name() const { return q_.port.name.c_str(); }
  verbs::Qp* create(uint32_t inline_bytes) const;
  void modify(verbs::QpAttr& a, int mask, const char* state) const;

  const EfaQueues& q_;
  const uint32_t number_;  // among the NIC's
};

}  // namespace mk::net
