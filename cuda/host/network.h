// A rank's way to other nodes: the proxy thread of cuda/net with its FIFO, and device memory for it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/send.h"
#include "host/sources.h"
#include "include/mkernel.h"
#include "include/mknet.h"

namespace mk {

class SymmetricHeap;

// True if the nodes are all on this host, and the network is none.
bool is_emulated(const mk_context_desc& desc);

// How long opening NICs may take: where waits are bounded by more than twice as much, peers are still there to be told.
uint64_t opening_limit(uint64_t timeout_ns);

// Copies and stores of the proxy thread, in order on one stream of copy engines. A copy between two buffers of one GPU
// would need SMs, which a waiting grid may hold, so it goes through pinned memory.
class ProxyDevice {
 public:
  ProxyDevice(int device, uint64_t largest_copy);
  ~ProxyDevice();
  void on_same_gpu(const char* base, uint64_t bytes);  // memory of another rank that shares this one's GPU
  mknet_device functions();

 private:
  static constexpr int kEvents = 1024;  // more than writes can be under way
  explicit ProxyDevice(int device) : device_(device), events_(kEvents) {}  // the rest of it can fail, and is undone then
  static int copy(void* self, void* target, const void* source, uint64_t bytes);
  static int store(void* self, void* target, uint64_t value);
  static int mark(void* self, uint64_t* ticket);
  static int done(void* self, uint64_t ticket);
  static const char* text(void* self, int code);
  static int pin(void* self, void* base, uint64_t bytes);
  static int unpin(void* self, void* base);
  static void enter(void* self);

  struct Range {
    const char* base;
    uint64_t bytes;
  };
  int device_;
  uint64_t largest_ = 0;
  cudaStream_t stream_ = nullptr;
  char* bounce_ = nullptr;
  uint64_t* values_ = nullptr;  // pinned ring: what stores copy from
  uint64_t stores_ = 0;
  uint64_t marks_ = 0;
  std::vector<cudaEvent_t> events_;
  std::vector<Range> same_gpu_;
};

// A FIFO whose commands kernels of the current device produce.
class MappedFifo {
 public:
  explicit MappedFifo(mknet_fifo* fifo);
  ~MappedFifo();
  MappedFifo(const MappedFifo&) = delete;
  void open(SendSpace& s) const;
  void reset();  // when the FIFO was

 private:
  mknet_fifo* const host_;
  char* device_ = nullptr;
  FifoPlace* place_ = nullptr;
};

class NodeNetwork {
 public:
  // Collective among all ranks. `node_of` is the node of each rank.
  NodeNetwork(const mk_context_desc& desc, const Driver& driver, SymmetricHeap& heap, const std::vector<bool>& same_gpu,
              const std::vector<int>& node_of);
  ~NodeNetwork();
  NodeNetwork(const NodeNetwork&) = delete;

  void reset();    // collective, when no kernel runs and a host barrier lies behind it
  void check();    // throws the error by which the network ended
  std::string describe() const;

  void open_sends(SendSpace& s) const { fifo_->open(s); }  // what it says of the FIFO
  SourceRegions::Place locate(const void* memory);   // of an operand; throws Error

  // The abort words that a failure of the network sets, on all mapped ranks.
  void watch(const std::vector<char*>& abort_words);
  void forget(const std::vector<char*>& abort_words);

 private:
  // What needs no undoing. The constructor above delegates to it: should it fail, the destructor undoes what it had done.
  NodeNetwork(const mk_context_desc& desc, const Driver& driver, SymmetricHeap& heap, const std::string& place);
  static void failed(void* self, const mknet_error* error);
  mknet_desc describe_nics() const;
  mknet_group group() const;
  uint32_t add(const mknet_range& range);

  const mk_context_desc desc_;
  const std::string place_;  // of this rank, for messages
  const Driver& driver_;
  SymmetricHeap& heap_;
  ProxyDevice device_;
  std::vector<void*> mapped_;     // by rank: its heap in this process, or null
  std::vector<uint8_t> peers_;    // by rank: 1 if it is reached over the network
  mknet* net_ = nullptr;
  uint32_t everything_ = 0;       // emu: the region of all addresses
  std::unique_ptr<SourceRegions> sources_;  // NICs
  std::unique_ptr<MappedFifo> fifo_;
  cudaStream_t aborting_ = nullptr;
  uint64_t* one_ = nullptr;  // pinned
  std::mutex mutex_;
  std::vector<char*> abort_words_;
};

}  // namespace mk
