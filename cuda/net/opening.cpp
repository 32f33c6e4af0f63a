#include "net/opening.h"

#include "net/clock.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace mk::net {

namespace {

// A description whose texts and functions are its own: the caller's may be gone while a call is still inside a library.
class Kept {
 public:
  explicit Kept(const mknet_desc& d) : desc_(d) {
    for (const char** text : {&desc_.backend, &desc_.cpus, &desc_.rails, &desc_.rdma.devices, &desc_.rdma.library, &desc_.rdma.efa_home,
                              &desc_.ofi.provider, &desc_.ofi.devices, &desc_.ofi.address, &desc_.ofi.library})
      if (*text != nullptr) *text = texts_.emplace_back(*text).c_str();
    if (d.device != nullptr) {
      device_ = *d.device;
      desc_.device = &device_;
    }
  }
  Kept(const Kept&) = delete;
  const mknet_desc& desc() const { return desc_; }

 private:
  mknet_desc desc_;
  mknet_device device_ = {};
  std::deque<std::string> texts_;
};

struct Opening {
  Opening(const mknet_desc& d, const Maker& m) : kept(d), make(m) {}
  const Kept kept;
  const Maker make;
  std::mutex mutex;  // of all that follows
  std::condition_variable changed;
  std::unique_ptr<Network> made;
  std::exception_ptr why;  // it was not
  bool ended = false, given_up = false;
};

void run(Opening& o) {
  {
    const std::lock_guard<std::mutex> lock(o.mutex);
    if (o.given_up) return;
    const mknet_device* device = o.kept.desc().device;
    if (device != nullptr && device->enter != nullptr) device->enter(device->user);
  }
  std::unique_ptr<Network> made;
  std::exception_ptr why;
  try {
    made = o.make(o.kept.desc());
  } catch (...) {
    why = std::current_exception();
  }
  const std::lock_guard<std::mutex> lock(o.mutex);
  o.ended = true;
  if (o.given_up) return;  // a network that nobody has seen yet calls none of the caller's functions when it goes
  o.made = std::move(made);
  o.why = why;
  o.changed.notify_one();
}

// The library that opens the NICs, and the program that shows whether it can.
struct Library {
  const char *file, *test;
};
Library library_of(const mknet_desc& d) {
  const std::string backend = d.backend != nullptr ? d.backend : "";
  if (backend == "ibverbs") return {d.rdma.library != nullptr ? d.rdma.library : "libibverbs.so.1", "ibv_devinfo"};
  if (backend == "efa") return {d.rdma.library != nullptr ? d.rdma.library : "libefa.so.1", "ibv_devinfo"};
  if (backend == "ofi") return {d.ofi.library != nullptr ? d.ofi.library : "libfabric.so.1", "fi_info"};
  return {"its library", "the host"};
}

}  // namespace

std::unique_ptr<Network> open_within(uint64_t limit_ns, const mknet_desc& desc, const Maker& make) {
  if (limit_ns == 0) return make(desc);
  limit_ns = std::min(limit_ns, kLongestWait);
  const auto o = std::make_shared<Opening>(desc, make);
  std::thread thread([o] { run(*o); });
  std::unique_lock<std::mutex> lock(o->mutex);
  if (!o->changed.wait_for(lock, std::chrono::nanoseconds(limit_ns), [&] { return o->ended; })) {
    o->given_up = true;
    thread.detach();
    const Library l = library_of(o->kept.desc());
    fail(MKNET_ERROR_TIMEOUT, "%s did not open its NICs within %g s: %s, or a driver under it, hangs. See whether %s answers there; leave out NICs "
         "that do not, or take another network", o->kept.desc().backend, static_cast<double>(limit_ns) / 1e9, l.file, l.test);
  }
  lock.unlock();
  thread.join();
  if (o->why) std::rethrow_exception(o->why);
  return std::move(o->made);
}

}  // namespace mk::net
