#include "host/network.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "heap/symmetric_heap.h"
#include "host/context.h"
#include "host/error.h"

namespace mk {
namespace {

constexpr uint64_t kPiece = 1 << 20;
constexpr int kStores = 4096;
// All device addresses as one range: an emulated NIC reads whatever this process has mapped.
constexpr uintptr_t kFirstAddress = 4096;
constexpr uint64_t kAllAddresses = uint64_t{1} << 62;

void check_net(int code, const mknet_error& e) {
  if (code == MKNET_OK) return;
  fail(code == MKNET_ERROR_ARGUMENT ? MK_ERROR_ARGUMENT : code == MKNET_ERROR_UNSUPPORTED ? MK_ERROR_UNSUPPORTED : MK_ERROR_BOOTSTRAP,
       "the network between nodes: %.400s", e.text);
}

}  // namespace

ProxyDevice::ProxyDevice(int device, uint64_t largest_copy) : device_(device), largest_(largest_copy), events_(kEvents) {
  stream_ = make_urgent_stream("the proxy's stream");
  void* memory = nullptr;
  check_cuda(cudaHostAlloc(&memory, largest_copy, cudaHostAllocPortable), "pinned memory");
  bounce_ = static_cast<char*>(memory);
  check_cuda(cudaHostAlloc(&memory, kStores * sizeof(uint64_t), cudaHostAllocPortable), "pinned memory");
  values_ = static_cast<uint64_t*>(memory);
  for (cudaEvent_t& e : events_) check_cuda(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "the proxy's events");
}

ProxyDevice::~ProxyDevice() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (bounce_ != nullptr) cudaFreeHost(bounce_);
  if (values_ != nullptr) cudaFreeHost(values_);
  for (cudaEvent_t e : events_)
    if (e != nullptr) cudaEventDestroy(e);
}

void ProxyDevice::on_same_gpu(const char* base, uint64_t bytes) { same_gpu_.push_back({base, bytes}); }

mknet_device ProxyDevice::functions() { return {this, copy, store, mark, done, text}; }

int ProxyDevice::copy(void* self, void* target, const void* source, uint64_t bytes) {
  ProxyDevice& d = *static_cast<ProxyDevice*>(self);
  if (cudaError_t e = cudaSetDevice(d.device_)) return -static_cast<int>(e);
  const char* to = static_cast<const char*>(target);
  const bool bounced =
      std::any_of(d.same_gpu_.begin(), d.same_gpu_.end(), [&](const Range& r) { return to >= r.base && to < r.base + r.bytes; });
  if (!bounced) return -static_cast<int>(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, d.stream_));
  if (bytes > d.largest_) return -static_cast<int>(cudaErrorInvalidValue);
  if (cudaError_t e = cudaMemcpyAsync(d.bounce_, source, bytes, cudaMemcpyDefault, d.stream_)) return -static_cast<int>(e);
  return -static_cast<int>(cudaMemcpyAsync(target, d.bounce_, bytes, cudaMemcpyDefault, d.stream_));
}

// The ring of values is larger than the number of commands under way, so none is overwritten before it was copied.
int ProxyDevice::store(void* self, void* target, uint64_t value) {
  ProxyDevice& d = *static_cast<ProxyDevice*>(self);
  if (cudaError_t e = cudaSetDevice(d.device_)) return -static_cast<int>(e);
  uint64_t* from = d.values_ + d.stores_++ % kStores;
  *from = value;
  return -static_cast<int>(cudaMemcpyAsync(target, from, sizeof value, cudaMemcpyDefault, d.stream_));
}

int ProxyDevice::mark(void* self, uint64_t* ticket) {
  ProxyDevice& d = *static_cast<ProxyDevice*>(self);
  *ticket = d.marks_++;
  return -static_cast<int>(cudaEventRecord(d.events_[*ticket % kEvents], d.stream_));
}

int ProxyDevice::done(void* self, uint64_t ticket) {
  ProxyDevice& d = *static_cast<ProxyDevice*>(self);
  // An event that was recorded again since stands for a later moment of the same stream: waiting for it is enough.
  const cudaError_t e = cudaEventQuery(d.events_[ticket % kEvents]);
  return e == cudaSuccess ? 1 : e == cudaErrorNotReady ? 0 : -static_cast<int>(e);
}

const char* ProxyDevice::text(void*, int code) { return cudaGetErrorString(static_cast<cudaError_t>(-code)); }

NodeNetwork::NodeNetwork(const mk_context_desc& desc, SymmetricHeap& heap, const std::vector<bool>& same_gpu)
    : desc_(desc), heap_(heap), device_(desc.device, kPiece) {
  for (int r = 0; r < desc.world; ++r)
    if (r != desc.rank && same_gpu[r]) device_.on_same_gpu(heap.base(r), heap.bytes());
  aborting_ = make_urgent_stream("stream for aborts");
  void* word = nullptr;
  check_cuda(cudaHostAlloc(&word, sizeof *one_, cudaHostAllocPortable), "pinned memory");
  one_ = new (word) uint64_t(1);
  check_cuda(cudaMalloc(&position_, sizeof *position_), "device memory");
  check_cuda(cudaMemset(position_, 0, sizeof *position_), "device memory");
  const mknet_device functions = device_.functions();
  mknet_desc d;
  MKNET_INIT(&d);
  d.backend = "emu";
  d.rank = desc.rank;
  d.world = desc.world;
  d.job = generation_;
  d.device_producers = 1;
  d.timeout_ns = desc.timeout_ns;
  d.device = &functions;
  d.failed = failed;
  d.failed_user = this;
  d.emu.bandwidth = desc.net_bandwidth;
  d.emu.latency_ns = desc.net_latency_ns;
  d.emu.piece = kPiece;
  mknet_error e;
  check_net(mknet_create(&d, &net_, &e), e);
  const auto add = [&](void* base, uint64_t bytes, uint32_t* region) {
    mknet_range r;
    MKNET_INIT(&r);
    r.base = base, r.bytes = bytes, r.memory = MKNET_DEVICE, r.fd = -1;
    check_net(mknet_register(net_, &r, region, &e), e);
  };
  uint32_t heap_region = 0;
  add(heap.base(desc.rank), heap.bytes(), &heap_region);
  add(reinterpret_cast<void*>(kFirstAddress), kAllAddresses, &region_);
  host_fifo_ = mknet_queue(net_);
  check_cuda(cudaHostRegister(host_fifo_, host_fifo_->bytes, cudaHostRegisterMapped | cudaHostRegisterPortable), "mapping the FIFO");
  void* mapped = nullptr;
  check_cuda(cudaHostGetDevicePointer(&mapped, host_fifo_, 0), "mapping the FIFO");
  device_fifo_ = static_cast<mknet_fifo*>(mapped);
  connect();
}

NodeNetwork::~NodeNetwork() {
  if (host_fifo_ != nullptr) cudaHostUnregister(host_fifo_);
  if (net_ != nullptr) {
    mknet_error ignored;
    mknet_destroy(net_, &ignored);
  }
  if (position_ != nullptr) cudaFree(position_);
  if (aborting_ != nullptr) cudaStreamDestroy(aborting_);
  if (one_ != nullptr) cudaFreeHost(one_);
}

uint64_t NodeNetwork::offset_of(const void* memory) const { return reinterpret_cast<uintptr_t>(memory) - kFirstAddress; }

void NodeNetwork::connect() {
  const int world = desc_.world, rank = desc_.rank;
  mknet_error e;
  const auto endpoint = [&](int peer) {
    uint64_t length = 0;
    check_net(mknet_endpoint(net_, peer, nullptr, &length, &e), e);
    std::vector<char> data(length);
    check_net(mknet_endpoint(net_, peer, data.data(), &length, &e), e);
    return data;
  };
  // One message of one length per rank: the common part, then the part for each peer, each behind its length.
  std::vector<char> mine;
  const auto append = [&](const std::vector<char>& part) {
    const uint64_t length = part.size();
    mine.insert(mine.end(), reinterpret_cast<const char*>(&length), reinterpret_cast<const char*>(&length) + sizeof length);
    mine.insert(mine.end(), part.begin(), part.end());
  };
  append(endpoint(-1));
  for (int r = 0; r < world; ++r) append(r == rank ? std::vector<char>() : endpoint(r));
  const auto gather = [&](const void* from, void* to, uint64_t bytes) {
    if (desc_.allgather(desc_.user, from, to, bytes) != 0) fail(MK_ERROR_BOOTSTRAP, "the all-gather callback failed");
  };
  const uint64_t length = mine.size();
  std::vector<uint64_t> lengths(world);
  gather(&length, lengths.data(), sizeof length);
  const uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  mine.resize(longest);
  std::vector<char> all(longest * world);
  gather(mine.data(), all.data(), longest);
  for (int r = 0; r < world; ++r) {
    if (r == rank) continue;
    const char *at = all.data() + longest * r, *end = at + lengths[r];
    const auto part = [&](const char** data) {
      uint64_t n = 0;
      if (end - at < static_cast<ptrdiff_t>(sizeof n)) fail(MK_ERROR_BOOTSTRAP, "rank %d's endpoint is cut short", r);
      memcpy(&n, at, sizeof n);
      at += sizeof n;
      if (n > static_cast<uint64_t>(end - at)) fail(MK_ERROR_BOOTSTRAP, "rank %d's endpoint is cut short", r);
      *data = at;
      at += n;
      return n;
    };
    const char *common, *own = nullptr;
    const uint64_t common_length = part(&common);
    uint64_t own_length = 0;
    for (int peer = 0; peer <= rank; ++peer) own_length = part(&own);
    check_net(mknet_connect(net_, r, common, common_length, own, own_length, heap_.base(r), &e), e);
  }
  const char done = 1;
  std::vector<char> ignored(world);
  gather(&done, ignored.data(), 1);
  check_net(mknet_start(net_, &e), e);
}

void NodeNetwork::settle() {
  mknet_error e;
  check_net(mknet_drain(net_, desc_.timeout_ns != 0 ? desc_.timeout_ns : 10'000'000'000ull, &e), e);
}

void NodeNetwork::reset() {
  mknet_error e;
  check_net(mknet_reset(net_, ++generation_, &e), e);
  check_cuda(cudaMemset(position_, 0, sizeof *position_), "the FIFO's position");
  connect();
}

void NodeNetwork::check() {
  mknet_error e;
  if (mknet_status(net_, 0, &e) != MKNET_OK) fail(MK_ERROR_ABORTED, "the network between nodes: %.400s", e.text);
}

void NodeNetwork::watch(const std::vector<char*>& abort_words) {
  const std::lock_guard<std::mutex> lock(mutex_);
  abort_words_.insert(abort_words_.end(), abort_words.begin(), abort_words.end());
}

void NodeNetwork::forget(const std::vector<char*>& abort_words) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (char* word : abort_words) abort_words_.erase(std::remove(abort_words_.begin(), abort_words_.end(), word), abort_words_.end());
}

// On the proxy's thread. What goes wrong here is told by mknet_status all the same.
void NodeNetwork::failed(void* self, const mknet_error*) {
  NodeNetwork& n = *static_cast<NodeNetwork*>(self);
  const std::lock_guard<std::mutex> lock(n.mutex_);
  cudaSetDevice(n.desc_.device);
  for (char* word : n.abort_words_) cudaMemcpyAsync(word, n.one_, sizeof *n.one_, cudaMemcpyDefault, n.aborting_);
  cudaStreamSynchronize(n.aborting_);
}

}  // namespace mk
