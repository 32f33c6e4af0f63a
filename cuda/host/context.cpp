#include "host/context.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "host/error.h"
#include "kernels/ag_gemm.h"

mk_context::~mk_context() { mk::free_wait_record(barrier_record); }

namespace mk {

namespace {

template <class Function>
void look_up(Function& f, const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &address, 4000, cudaEnableDefault, &found) != cudaSuccess || found != cudaDriverEntryPointSuccess)
    cudaGetLastError();
  else
    f = reinterpret_cast<Function>(address);
}

// Functions that are not there are NULL; what then fails without a driver says so.
const CurrentContext& current_context() {
  static const CurrentContext functions = [] {
    CurrentContext f = {};
    look_up(f.set, "cuCtxSetCurrent");
    if (f.set != nullptr) look_up(f.get, "cuCtxGetCurrent");
    return f;
  }();
  return functions;
}

}  // namespace

DeviceGuard::DeviceGuard(int device, const std::nothrow_t&) : kept_(current_context()), error_(cudaSetDevice(device)) {}
DeviceGuard::DeviceGuard(int device) : DeviceGuard(device, std::nothrow) { check_cuda(error_, "selecting the device"); }

WaitRecord* make_wait_record() {
  void* p = nullptr;
  check_cuda(cudaHostAlloc(&p, sizeof(WaitRecord), cudaHostAllocMapped | cudaHostAllocPortable), "pinned memory");
  return new (p) WaitRecord{};
}
void free_wait_record(WaitRecord* record) {
  if (record != nullptr) cudaFreeHost(record);
}

cudaStream_t make_urgent_stream(const char* what) {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), what);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), what);
  return stream;
}

void host_barrier(const mk_context& c) {
  if (c.world == 1) return;
  const char mine = 1;
  std::vector<char> ignored(c.world);
  if (c.allgather(c.user, &mine, ignored.data(), 1) != 0) fail(MK_ERROR_BOOTSTRAP, "the all-gather callback failed");
}

uint32_t missing_in_barrier(uint64_t barrier_at, uint64_t flag) {
  return static_cast<uint32_t>((flag - barrier_at - offsetof(Control, met)) / sizeof(Word));
}

void check_barrier(const mk_context& c) {
  const volatile WaitRecord* gave_up = c.barrier_record;
  if (gave_up->valid)
    fail(MK_ERROR_ABORTED, "rank %u waited more than %.3g s in a barrier for rank %u, which did not come", gave_up->rank, 1e-9 * double(c.timeout_ns),
         missing_in_barrier(c.barrier_at, gave_up->flag));
}

WaitContext wait_context(const mk_context& c, uint64_t offset, WaitRecord* record) {
  WaitContext w = {};
  for (int r = 0; r < c.world; ++r)
    if (c.heap->base(r) != nullptr) w.control[r] = reinterpret_cast<Control*>(c.heap->base(r) + offset);
  if (offset != c.barrier_at) w.barrier_abort = reinterpret_cast<uint64_t*>(c.heap->base(c.rank) + c.barrier_at + offsetof(Control, abort));
  w.record = record;
  w.heap = c.heap->base(c.rank);
  w.timeout_ns = c.timeout_ns;
  w.rank = c.rank;
  w.world = c.world;
  return w;
}

namespace {

static_assert(kMaxRanks == MK_MOST_RANKS);
constexpr uint64_t kMostHeapBytes = uint64_t{1} << 50;  // sums with it do not overflow

void check_device(const mk_context_desc& d) {
  int devices = 0;
  const cudaError_t e = cudaGetDeviceCount(&devices);
  if (e == cudaErrorInsufficientDriver || e == cudaErrorNoDevice) {
    cudaGetLastError();
    if (e == cudaErrorInsufficientDriver) // also said where there is none
      fail(MK_ERROR_UNSUPPORTED, "no CUDA device: there is no NVIDIA driver, or one that is too old (%s)", cudaGetErrorString(e));
    fail(MK_ERROR_UNSUPPORTED, "no CUDA device: %s", cudaGetErrorString(e));
  }
  check_cuda(e, "counting the devices");
  if (d.device < 0 || d.device >= devices)
    fail(MK_ERROR_ARGUMENT, "device %d does not exist, this process sees %d", d.device, devices);
  int major = 0, minor = 0, cooperative = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d.device), "compute capability");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d.device), "compute capability");
  if (major != 9 || minor != 0)
    fail(MK_ERROR_UNSUPPORTED, "device %d has compute capability %d.%d, these kernels are for 9.0 (H100, H200)", d.device,
         major, minor);
  check_cuda(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, d.device), "cooperative launch");
  if (!cooperative) fail(MK_ERROR_UNSUPPORTED, "device %d has no cooperative launch", d.device);
}

void check_desc(const mk_context_desc* d) {
  check_struct(d, "mk_context_desc");
  if (d->world < 1 || d->world > kMaxRanks)
    fail(MK_ERROR_ARGUMENT, "world is %d, this library takes 1 to %d ranks", d->world, kMaxRanks);
  if (d->rank < 0 || d->rank >= d->world) fail(MK_ERROR_ARGUMENT, "rank %d is not in a world of %d", d->rank, d->world);
  if (d->world > 1 && d->allgather == nullptr) fail(MK_ERROR_ARGUMENT, "more than one rank needs an all-gather callback");
  if (d->heap_bytes == 0 || d->heap_bytes > kMostHeapBytes)
    fail(MK_ERROR_ARGUMENT, "heap_bytes is %llu; what mk_ag_gemm_heap_bytes says, summed over the operators, is wanted, at most 2^50",
         static_cast<unsigned long long>(d->heap_bytes));
  check_timeout(d->timeout_ns);
  if (d->nodes < 0 || d->nodes > d->world) fail(MK_ERROR_ARGUMENT, "nodes is %d for %d ranks", d->nodes, d->world);
  if (d->nodes > 0 && d->node_ranks == nullptr) fail(MK_ERROR_ARGUMENT, "node_ranks is NULL for %d nodes", d->nodes);
  int64_t ranks = 0;
  for (int i = 0; i < d->nodes; ++i) {
    if (d->node_ranks[i] < 1) fail(MK_ERROR_ARGUMENT, "node %d has %d ranks", i, d->node_ranks[i]);
    ranks += d->node_ranks[i];
  }
  if (d->nodes > 0 && ranks != d->world)
    fail(MK_ERROR_ARGUMENT, "the nodes have %lld ranks together, the world has %d", static_cast<long long>(ranks), d->world);
  if (d->nodes > 1 && d->network != MK_NETWORK_EMU && d->network != MK_NETWORK_NIC)
    fail(MK_ERROR_UNSUPPORTED, "network %d is unknown: between nodes this library has emu (%d) and NICs (%d)", d->network, MK_NETWORK_EMU,
         MK_NETWORK_NIC);
  if (d->nodes > 1 && d->network == MK_NETWORK_NIC && d->net == nullptr) fail(MK_ERROR_ARGUMENT, "net is NULL: it says which NICs");
  if (d->nodes > 1 && d->network == MK_NETWORK_NIC && (d->net->version != MKNET_VERSION || d->net->size != sizeof *d->net))
    fail(MK_ERROR_ARGUMENT, "mknet_desc has %u bytes and interface version %u, this library has %zu and %u: %s", d->net->size, d->net->version,
         sizeof *d->net, MKNET_VERSION, kWhyAnotherStruct);
}

// Ranks were given different values in a field of their descriptions.
void check_same(const char* field, uint64_t theirs, uint64_t own, int their_rank, int own_rank) {
  if (theirs != own)
    fail(MK_ERROR_ARGUMENT, "%s is %llu on rank %d and %llu on rank %d: all ranks pass the same", field, static_cast<unsigned long long>(theirs), their_rank,
         static_cast<unsigned long long>(own), own_rank);
}

// Ranks that were given different values would hang later; they learn it here. Also counts who shares a GPU.
void meet(mk_context& c, const mk_context_desc& d) {
  if (c.world == 1) return;
  struct Facts {
    uint64_t version, heap, timeout;
    int32_t world, rank;
    char gpu[16];
  };
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, c.device), "device properties");
  Facts mine = {MK_VERSION, d.heap_bytes, c.timeout_ns, c.world, c.rank, {}};
  static_assert(sizeof properties.uuid.bytes == sizeof mine.gpu);
  memcpy(mine.gpu, properties.uuid.bytes, sizeof mine.gpu);
  std::vector<Facts> all(c.world);
  if (c.allgather(c.user, &mine, all.data(), sizeof mine) != 0)
    fail(MK_ERROR_BOOTSTRAP, "the all-gather callback failed");
  for (int r = 0; r < c.world; ++r) {
    const Facts& f = all[r];
    if (f.rank != r) fail(MK_ERROR_BOOTSTRAP, "the all-gather callback gave rank %d's data in place %d", f.rank, r);
    check_same("the version of the library", f.version, mine.version, r, c.rank);
    check_same("world", static_cast<uint64_t>(f.world), static_cast<uint64_t>(mine.world), r, c.rank);
    check_same("heap_bytes", f.heap, mine.heap, r, c.rank);
    check_same("timeout_ns", f.timeout, mine.timeout, r, c.rank);
    c.same_gpu.push_back(memcmp(f.gpu, mine.gpu, sizeof f.gpu) == 0);
    int on_same = 0;
    for (int other = 0; other < c.world; ++other) {
      if (memcmp(all[other].gpu, f.gpu, sizeof f.gpu) != 0) continue;
      ++on_same;
      if (other < r && !d.share_gpus)
        fail(MK_ERROR_ARGUMENT, "ranks %d and %d are on one GPU: give each a device of its own, or say that ranks may share (share_gpus)", other, r);
    }
    c.sharers = std::max(c.sharers, on_same);
  }
}

}  // namespace
}  // namespace mk

extern "C" {

uint32_t mk_version(void) { return MK_VERSION; }

int mk_context_create(const mk_context_desc* desc, mk_context** out, mk_error* error) {
  return mk::guarded(error, [&] {
    if (out == nullptr) mk::fail(MK_ERROR_ARGUMENT, "out is NULL");
    *out = nullptr;
    mk::check_desc(desc);
    mk::check_device(*desc);
    const mk::DeviceGuard guard(desc->device);
    mk::check_cuda(cudaFree(nullptr), "initialising the device");
    auto c = std::make_unique<mk_context>();
    c->rank = desc->rank;
    c->world = desc->world;
    c->device = desc->device;
    c->timeout_ns = desc->timeout_ns != 0 ? desc->timeout_ns : 10'000'000'000ull;
    c->allgather = desc->allgather;
    c->user = desc->user;
    c->driver = mk::Driver::load();
    mk::check_cuda(cudaDeviceGetAttribute(&c->sms, cudaDevAttrMultiProcessorCount, desc->device), "SM count");
    if (desc->nodes > 0)
      c->node_ranks.assign(desc->node_ranks, desc->node_ranks + desc->nodes);
    else
      c->node_ranks = {desc->world};
    for (size_t node = 0; node < c->node_ranks.size(); ++node) c->node_of.insert(c->node_of.end(), c->node_ranks[node], static_cast<int>(node));
    mk::meet(*c, *desc);
    // With NICs, ranks of other nodes may be on other hosts.
    const bool nics = c->node_ranks.size() > 1 && !mk::is_emulated(*desc);
    std::vector<bool> mapped;
    for (const int node : c->node_of) mapped.push_back(!nics || node == c->node_of[c->rank]);
    c->heap = std::make_unique<mk::SymmetricHeap>(c->driver, desc->heap_bytes, c->device, c->rank, mapped, nics, c->allgather, c->user);
    c->barrier_at = c->heap->offsets().allocate(sizeof(mk::Control), "the barrier");
    c->barrier_record = mk::make_wait_record();
    if (c->node_ranks.size() > 1) c->network = std::make_unique<mk::NodeNetwork>(*desc, c->driver, *c->heap, c->same_gpu, c->node_of);
    *out = c.release();
  });
}

int mk_context_destroy(mk_context* c, mk_error* error) {
  return mk::guarded(error, [&] {
    if (c == nullptr) return;
    const std::unique_ptr<mk_context> owned(c);
    const mk::DeviceGuard guard(c->device);
    mk::check_cuda(cudaDeviceSynchronize(), "waiting for the device");
    mk::host_barrier(*c);
    c->network.reset();
    c->heap.reset();
  });
}

int mk_context_network(mk_context* c, char* text, uint64_t length, mk_error* error) {
  return mk::guarded(error, [&] {
    if (c == nullptr) mk::fail(MK_ERROR_ARGUMENT, "context is NULL");
    if (text == nullptr || length == 0) mk::fail(MK_ERROR_ARGUMENT, "no room for the text");
    snprintf(text, length, "%s", c->network ? c->network->describe().c_str() : "");
  });
}

int mk_barrier(mk_context* c, mk_stream stream, mk_error* error) {
  return mk::guarded(error, [&] {
    if (c == nullptr) mk::fail(MK_ERROR_ARGUMENT, "context is NULL");
    mk::check_barrier(*c);
    const mk::DeviceGuard guard(c->device);
    // The kernel meets the ranks whose memory is mapped; the others are met before, on the host.
    for (int r = 0; r < c->world; ++r) {
      if (c->heap->base(r) != nullptr) continue;
      mk::check_cuda(cudaStreamSynchronize(stream), "waiting for what the barrier follows");
      mk::host_barrier(*c);
      break;
    }
    mk::check_cuda(mk::barrier_launch(mk::wait_context(*c, c->barrier_at, c->barrier_record), stream), "barrier");
  });
}

}  // extern "C"
