#include "host/network.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "heap/symmetric_heap.h"
#include "host/context.h"
#include "host/error.h"

namespace mk {
namespace {

constexpr uint64_t kPiece = 1 << 20;
constexpr int kStores = 4096;
constexpr uint64_t kDefaultTimeout = 10'000'000'000;  // ns
// All device addresses as one range: an emulated NIC reads whatever this process has mapped.
constexpr uintptr_t kFirstAddress = 4096;
constexpr uint64_t kAllAddresses = uint64_t{1} << 62;

// Of a network library, at least: some look for devices over a network.
constexpr uint64_t kOpening = 10'000'000'000;  // ns

// "node 1, host b"
std::string place_of(int node) {
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  return "node " + std::to_string(node) + (*host != '\0' ? std::string(", host ") + host : "");
}

// What the proxy may have to copy at once.
uint64_t largest_piece(const mk_context_desc& d) {
  return d.network == MK_NETWORK_NIC ? std::max<uint64_t>(kPiece, d.net->emu.piece) : kPiece;
}

void check_net(int code, const mknet_error& e) {
  if (code == MKNET_OK) return;
  fail(code == MKNET_ERROR_ARGUMENT ? MK_ERROR_ARGUMENT : code == MKNET_ERROR_UNSUPPORTED ? MK_ERROR_UNSUPPORTED : MK_ERROR_BOOTSTRAP,
       "the network between nodes: %.400s", e.text);
}

}  // namespace

bool is_emulated(const mk_context_desc& d) {
  return d.network == MK_NETWORK_EMU || (d.network == MK_NETWORK_NIC && d.net->backend != nullptr && strcmp(d.net->backend, "emu") == 0);
}

uint64_t opening_limit(uint64_t timeout_ns) { return std::max(timeout_ns / 2, kOpening); }

ProxyDevice::ProxyDevice(int device, uint64_t largest_copy) : ProxyDevice(device) {
  largest_ = largest_copy;
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

mknet_device ProxyDevice::functions() { return {this, copy, store, mark, done, text, pin, unpin, enter}; }

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

// By a thread of the caller's: pinning may wait for kernels, which may wait for the proxy.
int ProxyDevice::pin(void* self, void* base, uint64_t bytes) {
  const DeviceGuard guard(static_cast<ProxyDevice*>(self)->device_, std::nothrow);
  if (cudaError_t e = guard.error()) return -static_cast<int>(e);
  return -static_cast<int>(cudaHostRegister(base, bytes, cudaHostRegisterPortable));
}

int ProxyDevice::unpin(void* self, void* base) {
  const DeviceGuard guard(static_cast<ProxyDevice*>(self)->device_, std::nothrow);
  if (cudaError_t e = guard.error()) return -static_cast<int>(e);
  return -static_cast<int>(cudaHostUnregister(base));
}

// A device that cannot be made current fails the first call that needs it.
void ProxyDevice::enter(void* self) { cudaSetDevice(static_cast<ProxyDevice*>(self)->device_); }

MappedFifo::MappedFifo(mknet_fifo* fifo) : host_(fifo) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, sizeof *place_), "device memory");
  place_ = static_cast<FifoPlace*>(memory);
  try {
    reset();
    check_cuda(cudaHostRegister(fifo, fifo->bytes, cudaHostRegisterMapped | cudaHostRegisterPortable), "mapping the FIFO");
  } catch (...) {
    cudaFree(place_);
    throw;
  }
  const cudaError_t e = cudaHostGetDevicePointer(&memory, fifo, 0);
  device_ = static_cast<char*>(memory);
  if (e == cudaSuccess) return;
  cudaHostUnregister(fifo);
  cudaFree(place_);
  check_cuda(e, "mapping the FIFO");
}

MappedFifo::~MappedFifo() {
  cudaHostUnregister(host_);
  cudaFree(place_);
}

void MappedFifo::reset() {
  const FifoPlace first = {host_->start, host_->start};
  check_cuda(cudaMemcpy(place_, &first, sizeof first, cudaMemcpyHostToDevice), "the place in the FIFO");
}

void MappedFifo::open(SendSpace& s) const {
  s.fifo = reinterpret_cast<mknet_fifo*>(device_);
  s.slots = reinterpret_cast<mknet_command*>(device_ + host_->slots);
  s.capacity = host_->capacity;
  s.place = place_;
}

NodeNetwork::NodeNetwork(const mk_context_desc& desc, const Driver& driver, SymmetricHeap& heap, const std::string& place)
    : desc_(desc), place_(place), driver_(driver), heap_(heap), device_(desc.device, largest_piece(desc)), mapped_(desc.world),
      peers_(desc.world) {}

NodeNetwork::NodeNetwork(const mk_context_desc& desc, const Driver& driver, SymmetricHeap& heap, const std::vector<bool>& same_gpu,
                         const std::vector<int>& node_of)
    : NodeNetwork(desc, driver, heap, place_of(node_of[desc.rank])) {
  const bool emu = is_emulated(desc);
  for (int r = 0; r < desc.world; ++r) {
    mapped_[r] = heap.base(r);
    peers_[r] = emu || node_of[r] != node_of[desc.rank];
    if (r != desc.rank && same_gpu[r] && heap.base(r) != nullptr) device_.on_same_gpu(heap.base(r), heap.bytes());
  }
  aborting_ = make_urgent_stream("stream for aborts");
  void* word = nullptr;
  check_cuda(cudaHostAlloc(&word, sizeof *one_, cudaHostAllocPortable), "pinned memory");
  one_ = new (word) uint64_t(1);
  const mknet_device functions = device_.functions();
  mknet_desc d = describe_nics();
  d.device = &functions;
  mknet_range range = emu ? mknet_range{} : device_range(driver, heap.base(desc.rank), heap.bytes());
  if (emu) {
    MKNET_INIT(&range);
    range.base = heap.base(desc.rank), range.bytes = heap.bytes(), range.memory = MKNET_DEVICE, range.fd = -1;
  }
  const mknet_group g = group();
  mknet_error e;
  const int code = mknet_join(&d, &range, &g, &net_, &e);
  if (range.fd >= 0) close(range.fd);
  check_net(code, e);
  if (emu) {
    MKNET_INIT(&range);
    range.base = reinterpret_cast<void*>(kFirstAddress), range.bytes = kAllAddresses, range.memory = MKNET_DEVICE, range.fd = -1;
    everything_ = add(range);
  } else {
    sources_ = std::make_unique<SourceRegions>(driver, heap.base(desc.rank), heap.bytes(), [this](const mknet_range& r) { return add(r); });
  }
  fifo_ = std::make_unique<MappedFifo>(mknet_queue(net_));
}

// What the caller said of NICs, and what only the context knows.
mknet_desc NodeNetwork::describe_nics() const {
  mknet_desc d;
  if (desc_.network == MK_NETWORK_NIC) {
    d = *desc_.net;
  } else {
    MKNET_INIT(&d);
    d.backend = "emu";
    d.emu.bandwidth = desc_.net_bandwidth;
    d.emu.latency_ns = desc_.net_latency_ns;
    d.emu.piece = kPiece;
  }
  d.rank = desc_.rank;
  d.world = desc_.world;
  d.device_producers = 1;
  d.timeout_ns = desc_.timeout_ns;
  d.failed = failed;
  d.failed_user = const_cast<NodeNetwork*>(this);
  return d;
}

mknet_group NodeNetwork::group() const {
  mknet_group g;
  MKNET_INIT(&g);
  g.allgather = desc_.allgather;
  g.user = desc_.user;
  g.peers = peers_.data();
  g.mapped = mapped_.data();
  g.place = place_.c_str();
  g.open_ns = opening_limit(desc_.timeout_ns);
  if (desc_.network == MK_NETWORK_NIC) g.verify_ns = desc_.timeout_ns != 0 ? desc_.timeout_ns : kDefaultTimeout;
  return g;
}

uint32_t NodeNetwork::add(const mknet_range& range) {
  uint32_t region = 0;
  mknet_error e;
  check_net(mknet_register(net_, &range, &region, &e), e);
  return region;
}

NodeNetwork::~NodeNetwork() {
  fifo_.reset();
  if (net_ != nullptr) {
    mknet_error ignored;
    mknet_destroy(net_, &ignored);
  }
  if (aborting_ != nullptr) cudaStreamDestroy(aborting_);
  if (one_ != nullptr) cudaFreeHost(one_);
}

SourceRegions::Place NodeNetwork::locate(const void* memory) {
  if (sources_) return sources_->find(memory);
  return {everything_, reinterpret_cast<uintptr_t>(memory) - kFirstAddress};
}

std::string NodeNetwork::describe() const {
  char text[2000] = "";
  mknet_error ignored;
  mknet_describe(net_, text, sizeof text, &ignored);
  return text;
}

void NodeNetwork::reset() {
  const mknet_group g = group();
  mknet_error e;
  fifo_->reset();
  check_net(mknet_rejoin(net_, &g, &e), e);
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
