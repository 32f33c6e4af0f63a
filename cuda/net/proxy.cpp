#include "net/proxy.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "net/clock.h"

namespace mk::net {

namespace {

constexpr uint64_t kDeviceSpin = 100000000;  // ns of spinning after the last command when GPUs produce
constexpr uint64_t kHostSpin = 50000;        // the same when NICs may bring work, or host threads, who wake us, brought much
constexpr int kMuch = 8;                     // commands, each within that time after the one before
constexpr uint64_t kFirstNap = 10000;
constexpr uint64_t kBusyNap = 50000;         // longest while writes are under way
constexpr uint64_t kIdleNap = 1000000;       // longest while a command or an arrival may come unannounced
constexpr uint64_t kNicNap = 4000000;        // longest while NICs wake us: one that forgets to costs no more
constexpr uint64_t kLongNap = 4000000;       // longest when nothing has come for long,
constexpr uint64_t kIdlePart = 500;          // which is this part of the time since the last work
constexpr int kTake = 64;                    // commands between two looks at the NICs
constexpr uint64_t kAskNap = 50000;
constexpr uint64_t kPatience = 60000000000u;  // until the thread must have done what it was asked for, on a busy machine

void nap(uint64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

bool Verdict::set(int code, const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return false;
  code_ = code;
  text_ = text;
  ended_.store(true, std::memory_order_release);
  changed_.notify_all();
  return true;
}

void Verdict::check() const {
  if (!ended()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  throw Error(code_, text_);
}

void Verdict::wait(uint64_t timeout_ns) const {
  std::unique_lock<std::mutex> lock(mutex_);
  // By the monotonic clock: whoever sets the system's neither cuts the time nor stretches it.
  changed_.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kLongestWait)), [this] { return ended_.load(); });
}

mknet_error Verdict::error() const {
  std::lock_guard<std::mutex> lock(mutex_);
  mknet_error e;
  report(&e, code_, text_.c_str());
  return e;
}

void Verdict::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  ended_ = false;
  code_ = MKNET_OK;
  text_.clear();
}

Proxy::Proxy(Ring& ring, Transfer& transfer, Verdict& verdict, const ProxySettings& settings)
    : ring_(ring), transfer_(transfer), verdict_(verdict), s_(settings), thread_([this] { run(); }) {
  pin();
}

Proxy::~Proxy() {
  stop_ = true;
  ring_.wake();
  thread_.join();
}

void Proxy::run() {
  prctl(PR_SET_NAME, "mknet-proxy");
  prctl(PR_SET_TIMERSLACK, 1ul);  // naps are short
  try {
    loop();
    return;
  } catch (const Error& e) {
    verdict_.set(e.code, e.what());
  } catch (const std::bad_alloc&) {
    verdict_.set(MKNET_ERROR_MEMORY, "the proxy is out of host memory");
  } catch (const std::exception& e) {
    verdict_.set(MKNET_ERROR_SYSTEM, e.what());
  }
  request_ = 0;
  ring_.abort();
  const mknet_error error = verdict_.error();
  if (s_.failed != nullptr) s_.failed(s_.failed_user, &error);
}

// The mask of the thread that starts us is that of the rank's own work, which we may have to stay off. What the process
// may not use at all, as in a container, the kernel leaves out.
void Proxy::pin() {
  if (s_.cpus.empty()) return;
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int cpu : s_.cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &wanted);
  const int error = pthread_setaffinity_np(thread_.native_handle(), sizeof wanted, &wanted);
  place_ = error == 0 ? "CPUs " : format("any CPU (pinning it: %s), not ", strerror(error));
  for (size_t i = 0, last; i < s_.cpus.size(); i = last + 1) {
    for (last = i; last + 1 < s_.cpus.size() && s_.cpus[last + 1] == s_.cpus[last] + 1;) ++last;
    place_ += (i == 0 ? "" : ",") + std::to_string(s_.cpus[i]) + (last > i ? "-" + std::to_string(s_.cpus[last]) : "");
  }
}

void Proxy::loop() {
  active_ns_ = now_ns();
  nap_ns_ = kFirstNap;
  while (!stop_) {
    if (verdict_.ended()) verdict_.check();
    if (ring_.aborted()) fail(MKNET_ERROR_ABORTED, "a producer of the command FIFO gave up waiting");
    bool busy = false;
    mknet_command c;
    for (int i = 0; i < kTake && transfer_.room() && ring_.take(&c); ++i) {
      note_command();
      transfer_.submit(c, ring_.next() - 1);
      busy = true;
    }
    slept_ns_ = 0;
    busy |= serve();
    busy |= transfer_.progress();
    if (busy) publish();
    const uint64_t now = now_ns();
    if (busy) {
      active_ns_ = now;
      nap_ns_ = kFirstNap;
    } else {
      rest(now);
    }
  }
}

// How soon the first command after a sleep was here; before the work with it begins.
void Proxy::note_command() {
  if (slept_ns_ == 0) return;
  woken_ns_ = now_ns();
  late_ns_ = woken_ns_ - slept_ns_;
  slept_ns_ = 0;
  ++wakes_;
}

void Proxy::publish() {
  transfer_.completions([this](uint32_t peer, uint64_t position) { ring_.complete(peer, position); });
  ring_.complete(transfer_.completed());
  const TransferCounts& c = transfer_.counts();
  const uint64_t values[5] = {c.commands, c.writes, c.doorbells, c.bytes, c.flags_raised};
  for (int i = 0; i < 5; ++i) counts_[i].store(values[i], std::memory_order_relaxed);
}

void Proxy::rest(uint64_t now) {
  const bool idle = transfer_.idle(), by_nics = !idle || s_.listens;
  // Where only host threads can bring work, spinning must pay: they may need this processor themselves. And Linux 6.18 takes a
  // yield as the end of a turn, so whoever has yielded to another thread and then sleeps is woken milliseconds late.
  const bool spins = s_.device_producers || by_nics || quick_ >= kMuch;
  if (spins && now - active_ns_ < (s_.device_producers ? kDeviceSpin : kHostSpin)) {
    pause();
    if (!s_.device_producers) sched_yield();
    return;
  }
  const std::vector<int>& nics = by_nics ? transfer_.descriptors() : no_nics_;
  uint64_t longest = s_.long_sleep_ns;
  if (s_.device_producers || (!nics.empty() && !idle)) longest = kIdleNap;
  else if (!nics.empty()) longest = kNicNap;
  else if (by_nics) longest = idle ? kIdleNap : kBusyNap;
  // Naps get longer where only looking finds what NICs bring. With GPU producers the spinning was long enough already.
  const bool grows = by_nics && nics.empty() && !s_.device_producers;
  uint64_t ns = grows ? nap_ns_ : longest;
  if (ns == kIdleNap && idle) ns = std::clamp((now - active_ns_) / kIdlePart, kIdleNap, kLongNap);
  const Woken why = ring_.sleep(ns, nics);
  quick_ = now_ns() - active_ns_ < kHostSpin ? quick_ + 1 : 0;
  if (why == Woken::kNever) return;
  if (why == Woken::kByNic) ++nic_wakes_;
  slept_ns_ = now;
  nap_ns_ = std::min(nap_ns_ * 2, longest);
  ++naps_;
}

bool Proxy::serve() {
  uint32_t request = request_.load(std::memory_order_acquire);
  if (request == 0 || !request_.compare_exchange_strong(request, kServing)) return false;
  const bool done = request == kProbe ? send_probes() : request == kLook ? look_for_probes() : request == kCall ? called() : drained();
  request_.store(done ? 0 : request, std::memory_order_release);
  return done;
}

bool Proxy::send_probes() {
  for (; probes_sent_ < probe_peers_.size() * kMaxLanes; ++probes_sent_) {
    const uint32_t peer = probe_peers_[probes_sent_ / kMaxLanes], lane = probes_sent_ % kMaxLanes;
    if (lane >= transfer_.lanes(peer)) continue;
    if (!transfer_.room()) return false;
    transfer_.probe(peer, lane, probe_value_);
  }
  return true;
}

bool Proxy::look_for_probes() {
  missing_.clear();
  for (const uint32_t peer : probe_peers_)
    for (uint32_t lane = 0; lane < transfer_.lanes(peer) && missing_.empty(); ++lane)
      if (transfer_.probe_seen(peer, lane) != probe_value_)
        missing_ = format("rank %u over %s", peer, transfer_.lane_text(peer, lane).c_str());
  return true;
}

// What kernels pushed nobody has counted: it ends where no command waits.
bool Proxy::drained() {
  const bool all = s_.device_producers ? !ring_.waits() : ring_.next() == ring_.tail();
  if (!all || !transfer_.idle()) return false;
  publish();
  return true;
}

bool Proxy::called() {
  try {
    call_();
  } catch (...) {
    call_error_ = std::current_exception();
  }
  return true;
}

void Proxy::ask(uint32_t what, uint64_t deadline_ns, const char* doing) {
  verdict_.check();
  request_.store(what, std::memory_order_release);
  ring_.wake();
  for (bool late = false; request_.load(std::memory_order_acquire) != 0;) {
    if (verdict_.ended() || late) {
      // Taken back, unless the thread is at it; after a failure it no longer is.
      uint32_t mine = what;
      if (request_.compare_exchange_strong(mine, 0)) {
        verdict_.check();
        fail(MKNET_ERROR_TIMEOUT, "%s took too long", doing);
      }
      verdict_.check();
    }
    late = now_ns() >= deadline_ns;
    nap(kAskNap);
  }
  verdict_.check();  // a thread that failed takes the request back
}

void Proxy::verify(const std::vector<uint32_t>& peers, uint64_t value, uint64_t deadline_ns) {
  std::lock_guard<std::mutex> lock(asking_);
  probe_peers_ = peers;
  probe_value_ = value;
  probes_sent_ = 0;
  if (peers.empty()) return;
  ask(kProbe, std::max(deadline_ns, now_ns() + kPatience), "sending probes to the peers");
  for (;;) {
    ask(kLook, std::max(deadline_ns, now_ns() + kPatience), "looking for the peers' probes");
    if (missing_.empty()) return;
    if (now_ns() >= deadline_ns) fail(MKNET_ERROR_TIMEOUT, "no probe came from %s", missing_.c_str());
    nap(kAskNap);
  }
}

void Proxy::drain(uint64_t deadline_ns) {
  std::lock_guard<std::mutex> lock(asking_);
  ask(kDrain, deadline_ns, "completing all commands");
}

void Proxy::call(const std::function<void()>& f) {
  std::lock_guard<std::mutex> lock(asking_);
  call_ = f;
  call_error_ = nullptr;
  ask(kCall, now_ns() + kPatience, "work beside the commands");
  if (call_error_) std::rethrow_exception(call_error_);
}

void Proxy::statistics(mknet_stats* out) const {
  uint64_t* values[5] = {&out->commands, &out->writes, &out->doorbells, &out->bytes, &out->flags_raised};
  for (int i = 0; i < 5; ++i) *values[i] = counts_[i].load(std::memory_order_relaxed);
  out->wakes = wakes_;
  out->naps = naps_;
  out->nic_wakes = nic_wakes_;
  out->late_ns = late_ns_;
  out->woken_ns = woken_ns_;
}

}  // namespace mk::net
