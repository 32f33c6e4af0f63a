// A rank's context: device, heap, peers, and what every wait needs.
#pragma once
#include <memory>
#include <new>
#include <vector>

#include "comm/control.h"
#include "heap/symmetric_heap.h"
#include "host/driver.h"
#include "host/network.h"
#include "include/mkernel.h"

struct mk_context {
  int rank = 0;
  int world = 1;
  int device = 0;
  int sms = 0;
  int sharers = 1;  // most ranks on one GPU
  std::vector<int32_t> node_ranks;  // ranks of each node
  std::vector<int> node_of;         // [r]: the node of rank r
  std::vector<bool> same_gpu;       // [r]: rank r is on this rank's GPU
  uint64_t timeout_ns = 0;
  mk_allgather allgather = nullptr;
  void* user = nullptr;
  mk::Driver driver = {};
  std::unique_ptr<mk::SymmetricHeap> heap;
  std::unique_ptr<mk::NodeNetwork> network;  // null: one node
  uint64_t barrier_at = 0;  // heap offset of the control block of mk_barrier
  mk::WaitRecord* barrier_record = nullptr;

  ~mk_context();
};

namespace mk {

// The driver's functions for the context that is current in a thread.
struct CurrentContext {
  CUresult (*get)(CUcontext*);
  CUresult (*set)(CUcontext);
};

// Makes the context current again that was when it was made. Where there was none, what is current then stays: to ask the
// runtime for the thread's device and select that again would make a context on GPU 0, for every rank.
class KeptContext {
 public:
  explicit KeptContext(const CurrentContext& f) : set_(f.set) {
    if (f.get == nullptr || f.get(&previous_) != CUDA_SUCCESS) previous_ = nullptr;
  }
  ~KeptContext() {
    if (previous_ != nullptr) set_(previous_);
  }
  KeptContext(const KeptContext&) = delete;

 private:
  CUresult (*set_)(CUcontext);
  CUcontext previous_ = nullptr;
};

// Makes the context's device current while it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);  // throws Error
  DeviceGuard(int device, const std::nothrow_t&);

  cudaError_t error() const { return error_; }

 private:
  const KeptContext kept_;
  const cudaError_t error_;
};

WaitRecord* make_wait_record();  // host-mapped; throws Error
void free_wait_record(WaitRecord* record);

// A stream of the highest priority: it shares no hardware queue with a caller's streams, where kernels that wait for what
// this stream brings may stand first. Throws Error.
cudaStream_t make_urgent_stream(const char* what);

// All ranks have called it when it returns; throws Error.
void host_barrier(const mk_context& c);

// The words of a control block at `offset`, of all ranks.
WaitContext wait_context(const mk_context& c, uint64_t offset, WaitRecord* record);

// The rank whose word of a control block lies at the heap offset `flag`: the one that a barrier was given up for.
uint32_t missing_in_barrier(uint64_t barrier_at, uint64_t flag);

// Throws if this rank gave up waiting in a barrier.
void check_barrier(const mk_context& c);

}  // namespace mk
