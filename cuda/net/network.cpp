#include "net/network.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <thread>

#include "net/backends.h"
#include "net/emu_wire.h"

namespace mk::net {

namespace {

constexpr uint64_t kDefaultTimeout = 10000000000u;
constexpr int kSpins = 2000;
constexpr uint64_t kNap = 20000;

// "0-7,16" as numbers.
std::vector<int> parse_cpus(const char* text) {
  std::vector<int> cpus;
  if (text == nullptr) return cpus;
  for (const char* at = text; *at != '\0';) {
    int first, last, used = 0;
    if (sscanf(at, "%d-%d%n", &first, &last, &used) < 2 || used == 0) {
      used = 0;
      if (sscanf(at, "%d%n", &first, &used) != 1) fail(MKNET_ERROR_ARGUMENT, "\"%s\" is no list of CPUs such as 0-7,16", text);
      last = first;
    }
    if (first < 0 || last < first || last > 100000) fail(MKNET_ERROR_ARGUMENT, "\"%s\" is no list of CPUs such as 0-7,16", text);
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    at += used;
    if (*at == ',') ++at;
  }
  return cpus;
}

// "2,3" as the rails of `nics` NICs; without a text their positions.
std::vector<uint32_t> parse_rails(const char* text, size_t nics) {
  std::vector<uint32_t> rails;
  if (text == nullptr) {
    for (uint32_t i = 0; i < nics; ++i) rails.push_back(i);
    return rails;
  }
  for (const char* at = text; *at != '\0';) {
    uint32_t rail;
    int used = 0;
    if (sscanf(at, "%u%n", &rail, &used) != 1 || (at[used] != ',' && at[used] != '\0')) fail(MKNET_ERROR_ARGUMENT, "\"%s\" is no list of rails such as 2,3", text);
    if (std::find(rails.begin(), rails.end(), rail) != rails.end()) fail(MKNET_ERROR_ARGUMENT, "rail %u has two NICs in \"%s\"", rail, text);
    rails.push_back(rail);
    at += used;
    if (*at == ',') ++at;
  }
  if (rails.size() != nics) fail(MKNET_ERROR_ARGUMENT, "\"%s\" names %s, for %s", text, counted(rails.size(), "rail").c_str(), counted(nics, "NIC").c_str());
  return rails;
}

const mknet_desc& checked(const mknet_desc& d) {
  if (d.backend == nullptr) fail(MKNET_ERROR_ARGUMENT, "no backend is named");
  if (d.world < 1 || static_cast<uint32_t>(d.world) > kMaxWorld)
    fail(MKNET_ERROR_ARGUMENT, "a world of %d ranks; 1 to %u can be numbered", d.world, kMaxWorld);
  if (d.rank < 0 || d.rank >= d.world) fail(MKNET_ERROR_ARGUMENT, "rank %d is not in a world of %d", d.rank, d.world);
  return d;
}

}  // namespace

Network::Network(const mknet_desc& d)
    : rank_(static_cast<uint32_t>(checked(d).rank)),
      world_(static_cast<uint32_t>(d.world)),
      backend_(d.backend),
      start_(d.start),
      timeout_ns_(d.timeout_ns != 0 ? d.timeout_ns : kDefaultTimeout),
      job_(d.job),
      may_bounce_(d.bounce != 0),
      device_(d.device),
      bounce_(device_),
      ring_(d.capacity, d.start, world_),
      regions_(kRegions),
      nics_(open_nics(d, device_)),
      rails_(parse_rails(d.rails, nics_.size())),
      endpoints_(world_) {
  proxy_settings_.device_producers = d.device_producers != 0;
  proxy_settings_.cpus = parse_cpus(d.cpus);
  proxy_settings_.failed = d.failed;
  proxy_settings_.failed_user = d.failed_user;
  for (const auto& nic : nics_) proxy_settings_.listens |= nic->listens();
  try {
    add_control_memory();
  } catch (...) {
    release();
    throw;
  }
}

Network::~Network() {
  ring_.abort();
  const bool used = proxy_ != nullptr && device_.given();
  proxy_.reset();
  transfer_.reset();
  if (used) device_.settle();  // whose copies may be for memory that the caller frees next
  release();
}

void Network::release() {
  nics_.clear();  // memory stays until no NIC knows it
  for (Region& r : regions_)
    if (r.fd >= 0) close(r.fd);
  for (const uint32_t r : {kInbox, kOutbox})
    if (regions_[r].base != nullptr) munmap(regions_[r].base, regions_[r].bytes);
}

void Network::add_control_memory() {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const uint32_t number : {kInbox, kOutbox}) {
    Region& r = regions_[number];
    r.bytes = ((number == kInbox ? inbox_bytes(world_) : outbox_bytes(world_)) + page - 1) / page * page;
    r.fd = new_memfd("mknet-control", r.bytes);
    r.writable = number == kInbox;
    void* p = mmap(nullptr, r.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0);
    if (p == MAP_FAILED) fail(MKNET_ERROR_MEMORY, "%" PRIu64 " bytes for the proxy: %s", r.bytes, strerror(errno));
    r.base = static_cast<char*>(p);
    for (const auto& nic : nics_) nic->add_region(number, r);
  }
}

uint32_t Network::add(const mknet_range& range) {
  if (range.replaces > registered_ || (range.replaces == 1 + kHeap)) fail(MKNET_ERROR_ARGUMENT, "there is no range %u to replace", range.replaces - 1);
  const uint32_t number = range.replaces != 0 ? range.replaces - 1 : registered_;
  if (number == kHeap && !common_.empty()) fail(MKNET_ERROR_ARGUMENT, "the heap is registered before the endpoint is asked for");
  if (number == kStage) fail(MKNET_ERROR_ARGUMENT, "%u ranges are registered already, no more can be", registered_);
  if (range.base == nullptr || range.bytes == 0) fail(MKNET_ERROR_ARGUMENT, "an empty range cannot be registered");
  if (reinterpret_cast<uintptr_t>(range.base) + range.bytes < range.bytes) fail(MKNET_ERROR_ARGUMENT, "the range is no memory");
  if (range.memory != MKNET_HOST && range.memory != MKNET_DEVICE) fail(MKNET_ERROR_ARGUMENT, "unknown kind of memory %d", range.memory);
  if (number == kHeap && reinterpret_cast<uintptr_t>(range.base) % 8 != 0)
    fail(MKNET_ERROR_ARGUMENT, "the heap's flags need a base that is aligned to 8 bytes");
  Region r;
  r.base = static_cast<char*>(range.base);
  r.bytes = range.bytes;
  r.memory = range.memory;
  r.fd_offset = range.fd_offset;
  r.writable = number == kHeap;
  if (range.fd >= 0 && (r.fd = dup(range.fd)) < 0) fail(MKNET_ERROR_SYSTEM, "keeping the range's descriptor: %s", strerror(errno));
  try {
    // While the network works, NICs are the proxy's. It must not pin memory, which may wait for kernels that wait for it.
    const auto by_proxy = [&] { proxy_->call([&] { add_region(number, r); }); };
    if (!proxy_) {
      add_region(number, r);
    } else if (bounce_.has_stage()) {
      by_proxy();
    } else {
      try {
        by_proxy();
      } catch (const Error& e) {
        if (!may_bounce(number, r, e)) throw;
        bounce_.make_stage();
        by_proxy();
      }
    }
  } catch (...) {
    if (r.fd >= 0) close(r.fd);
    throw;
  }
  registered_ = std::max(registered_, number + 1);
  return number;
}

void Network::add_region(uint32_t number, Region r) {
  try {
    for (const auto& nic : nics_) nic->add_region(number, r);
  } catch (const Error& e) {
    if (!may_bounce(number, r, e) || (proxy_ && !bounce_.has_stage())) throw;
    add_bounced(number, r, e);
  }
  if (regions_[number].fd >= 0) close(regions_[number].fd);
  regions_[number] = r;
}

bool Network::may_bounce(uint32_t number, const Region& r, const Error& why) const {
  return why.code == MKNET_ERROR_UNSUPPORTED && r.memory == MKNET_DEVICE && device_.given() && (number != kHeap || may_bounce_);
}

void Network::add_bounced(uint32_t number, Region& r, const Error& why) {
  if (regions_[kStage].base == nullptr) {
    const Region stage = bounce_.make_stage();
    for (const auto& nic : nics_) nic->add_region(kStage, stage);
    regions_[kStage] = stage;
  }
  if (number == kHeap) {
    const Region mirror = bounce_.make_mirror(r.bytes);
    for (const auto& nic : nics_) nic->add_region(kHeap, mirror);
    bounced_ = why.what();
  }
  r.bounced = true;
}

void Network::set_up_transfer() {
  if (transfer_) return;
  TransferSettings s;
  s.rank = rank_;
  s.world = world_;
  s.start = start_;
  s.timeout_ns = timeout_ns_;
  s.device = &device_;
  if (device_.given()) s.bounce = &bounce_;
  for (const auto& nic : nics_) s.nics.push_back(nic.get());
  s.regions = &regions_;
  transfer_ = nics_[0]->properties().ordered ? make_ordered(s) : make_unordered(s);
}

void Network::start() {
  if (proxy_) fail(MKNET_ERROR_ARGUMENT, "the network was started already");
  verdict_.check();
  if (common_.empty()) fail(MKNET_ERROR_ARGUMENT, "the endpoint is made before the start");
  set_up_transfer();
  proxy_ = std::make_unique<Proxy>(ring_, *transfer_, verdict_, proxy_settings_);
}

void Network::verify(uint64_t timeout_ns) {
  if (!proxy_) fail(MKNET_ERROR_ARGUMENT, "the network was not started");
  try {
    proxy_->verify(peers_, job_ | uint64_t{1} << 63, now_ns() + timeout_ns);
    proxy_->call([&] {
      for (const auto& nic : nics_) nic->found();
    });
  } catch (const Error& e) {
    if (e.code != MKNET_ERROR_TIMEOUT) throw;
    fail(e.code, "rank %u: the connections stand, but %s within %.3g s: %s", rank_, e.what(),
         static_cast<double>(timeout_ns) / 1e9, nics_[0]->advice());
  }
}

void Network::drain(uint64_t timeout_ns) {
  if (proxy_) proxy_->drain(now_ns() + timeout_ns);
}

void Network::abort(const char* reason) {
  verdict_.set(MKNET_ERROR_ABORTED, reason != nullptr && *reason != '\0' ? reason : "aborted");
  ring_.abort();
}

void Network::reset(uint64_t job) {
  ring_.abort();
  proxy_.reset();
  transfer_.reset();
  const bool settled = !device_.given() || device_.settle();
  for (const auto& nic : nics_) nic->disconnect();
  peers_.clear();
  common_.clear();
  endpoints_.assign(world_, {});
  // What is copied later would come into the next generation.
  if (!settled) {
    constexpr const char* kText = "the device does not end the copies of the network that was reset";
    verdict_.clear();  // the proxy may have said that it was aborted
    verdict_.set(MKNET_ERROR_SYSTEM, kText);
    fail(MKNET_ERROR_SYSTEM, "%s", kText);
  }
  bounce_.reset();
  job_ = job;
  verdict_.clear();
  ring_.reset(start_);
}

uint64_t Network::push(const mknet_command& command, uint64_t timeout_ns) {
  verdict_.check();
  try {
    return ring_.push(command, now_ns() + timeout_ns);
  } catch (const Error&) {
    verdict_.check();  // why the FIFO was aborted
    throw;
  }
}

void Network::flush(int32_t peer, uint64_t position, uint64_t timeout_ns) const {
  if (peer < -1 || peer >= static_cast<int32_t>(world_)) fail(MKNET_ERROR_ARGUMENT, "rank %d is not in a world of %u", peer, world_);
  const auto completed = [&] { return peer < 0 ? ring_.completed() : ring_.completed(static_cast<uint32_t>(peer)); };
  const uint64_t deadline = now_ns() + timeout_ns;
  for (int tries = 0; static_cast<int64_t>(completed() - position) < 0; ++tries) {
    verdict_.check();
    if (tries < kSpins) continue;
    if (now_ns() >= deadline)
      fail(MKNET_ERROR_TIMEOUT, "rank %u: commands%s below %" PRIu64 " are complete, waited for %" PRIu64, rank_,
           peer < 0 ? "" : format(" to rank %d", peer).c_str(), completed(), position);
    std::this_thread::sleep_for(std::chrono::nanoseconds(kNap));
  }
}

std::string Network::describe() const {
  std::string text = backend_;
  for (const auto& nic : nics_) text += (nic == nics_.front() ? ": " : "; ") + nic->describe();
  if (!bounced_.empty()) text += "; the heap is bounced through pinned memory: " + bounced_;
  if (proxy_ && !proxy_->place().empty()) text += "; proxy on " + proxy_->place();
  return text;
}

void Network::statistics(mknet_stats* out) const {
  if (proxy_) proxy_->statistics(out);
}

}  // namespace mk::net
