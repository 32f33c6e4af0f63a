#include "net/ring.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "net/clock.h"
#include "net/error.h"

namespace mk::net {

namespace {

constexpr uint32_t kSlots = 1024;  // offset of slot 0
static_assert(sizeof(mknet_fifo) <= kSlots && kSlots % 64 == 0);

constexpr int kSpins = 1000;                 // looks at a full FIFO before the producer naps
constexpr uint64_t kProducerNap = 20000;     // ns

template <class T>
T load(const T* p, int order) {
  return __atomic_load_n(p, order);
}

timespec time_of(uint64_t ns) { return {static_cast<time_t>(ns / 1000000000u), static_cast<long>(ns % 1000000000u)}; }

void nap(uint64_t ns) {
  const timespec t = time_of(ns);
  nanosleep(&t, nullptr);
}

void wake_futex(uint32_t* word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

// A counter that is full, as it could be after 2^64 - 2 calls, wakes as well.
void add_one(int eventfd) {
  const uint64_t one = 1;
  if (write(eventfd, &one, sizeof one) != sizeof one) return;
}

}  // namespace

Ring::Ring(uint32_t capacity, uint64_t start, uint32_t peers) : peers_(peers) {
  if (capacity == 0) capacity = kDefaultCapacity;
  if ((capacity & (capacity - 1)) != 0 || capacity > kMaxCapacity)
    fail(MKNET_ERROR_ARGUMENT, "a FIFO of %u slots: a power of two up to %u is needed", capacity, kMaxCapacity);
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t words = kSlots + uint64_t{capacity} * sizeof(mknet_command);
  const uint64_t bytes = (words + peers * sizeof(uint64_t) + page - 1) / page * page;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(MKNET_ERROR_MEMORY, "a FIFO of %u slots: %s", capacity, strerror(errno));
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    const int e = errno;
    munmap(memory, bytes);
    fail(MKNET_ERROR_SYSTEM, "a descriptor by which producers wake the proxy: %s", strerror(e));
  }
  head_ = static_cast<mknet_fifo*>(memory);
  head_->wake_fd = wake_fd;
  head_->capacity = capacity;
  head_->slots = kSlots;
  head_->bytes = bytes;
  head_->peers = words;
  reset(start);
  head_->magic = MKNET_FIFO_MAGIC;
}

Ring::~Ring() {
  close(head_->wake_fd);
  munmap(head_, head_->bytes);
}

mknet_command* Ring::slot(uint64_t position) const {
  auto* slots = reinterpret_cast<mknet_command*>(reinterpret_cast<char*>(head_) + head_->slots);
  return slots + (position & (head_->capacity - 1));
}

uint64_t* Ring::peer_word(uint32_t peer) const {
  return reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(head_) + head_->peers) + peer;
}

uint64_t Ring::push(const mknet_command& command, uint64_t deadline_ns) {
  uint64_t position = load(&head_->tail, __ATOMIC_RELAXED);
  for (int tries = 0;; ++tries) {
    if (aborted()) fail(MKNET_ERROR_ABORTED, "the network was aborted");
    if (position - load(&head_->consumed, __ATOMIC_ACQUIRE) < head_->capacity) {
      if (__atomic_compare_exchange_n(&head_->tail, &position, position + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        break;
      continue;  // position is the new tail
    }
    if (tries > kSpins) {
      if (now_ns() >= deadline_ns)
        fail(MKNET_ERROR_TIMEOUT, "the command FIFO stayed full: position %llu, the proxy is at %llu",
             static_cast<unsigned long long>(position),
             static_cast<unsigned long long>(load(&head_->consumed, __ATOMIC_RELAXED)));
      nap(kProducerNap);
    }
    position = load(&head_->tail, __ATOMIC_RELAXED);
  }
  mknet_command* s = slot(position);
  memcpy(reinterpret_cast<char*>(s) + 8, reinterpret_cast<const char*>(&command) + 8, sizeof command - 8);
  // Sequentially consistent, as the load of `sleeping`: either the proxy sees the command before it sleeps, or we see
  // that it sleeps.
  __atomic_store_n(&s->sequence, position + 1, __ATOMIC_SEQ_CST);
  if (load(&head_->sleeping, __ATOMIC_SEQ_CST) == 0) return position;
  const uint32_t how = __atomic_exchange_n(&head_->sleeping, 0, __ATOMIC_SEQ_CST);
  if (how == 0) return position;
  __atomic_fetch_add(&head_->wakes, 1, __ATOMIC_SEQ_CST);
  if (how == MKNET_BY_FUTEX)
    wake_futex(&head_->wakes);
  else
    add_one(head_->wake_fd);
  return position;
}

bool Ring::waits() const { return load(&slot(next_)->sequence, __ATOMIC_ACQUIRE) == next_ + 1; }

bool Ring::take(mknet_command* out) {
  if (!waits()) return false;
  memcpy(out, slot(next_), sizeof *out);
  ++next_;
  __atomic_store_n(&head_->consumed, next_, __ATOMIC_RELEASE);
  return true;
}

void Ring::complete(uint64_t position) { __atomic_store_n(&head_->completed, position, __ATOMIC_RELEASE); }

void Ring::complete(uint32_t peer, uint64_t position) { __atomic_store_n(peer_word(peer), position, __ATOMIC_RELEASE); }

bool Ring::announce(const std::vector<int>& nics) {
  if (!nics.empty() && rung_) {
    // Before we say that we sleep, so that what is added from now on is for this sleep; and not as soon as it wakes us, since
    // then there is a command to look at.
    uint64_t count;
    rung_ = read(head_->wake_fd, &count, sizeof count) != sizeof count && errno != EAGAIN;
  }
  __atomic_store_n(&head_->sleeping, nics.empty() ? MKNET_BY_FUTEX : MKNET_BY_FD, __ATOMIC_SEQ_CST);
  if (load(&slot(next_)->sequence, __ATOMIC_SEQ_CST) != next_ + 1 && !aborted()) return true;
  __atomic_store_n(&head_->sleeping, 0, __ATOMIC_SEQ_CST);
  return false;
}

Woken Ring::wait(uint64_t ns, const std::vector<int>& nics) {
  const Woken why = woken() ? Woken::kByProducer : nics.empty() ? wait_by_futex(ns) : wait_by_fd(ns, nics);
  __atomic_store_n(&head_->sleeping, 0, __ATOMIC_SEQ_CST);
  return why;
}

// Each wake-up counts in `wakes`, which stays different from what we have seen until we look: none is lost between two
// sleeps, nor between the look and the sleep.
bool Ring::woken() {
  const uint32_t wakes = load(&head_->wakes, __ATOMIC_ACQUIRE);
  if (wakes == seen_) return false;
  seen_ = wakes;
  rung_ = true;
  return true;
}

// A producer may call when its count was seen already: that ends a sleep for nothing.
Woken Ring::wait_by_futex(uint64_t ns) {
  const timespec t = time_of(ns);
  const bool over = syscall(SYS_futex, &head_->wakes, FUTEX_WAIT_PRIVATE, seen_, &t, nullptr, 0) != 0 && errno == ETIMEDOUT;
  woken();
  return over ? Woken::kByTime : Woken::kByProducer;
}

Woken Ring::wait_by_fd(uint64_t ns, const std::vector<int>& nics) {
  const timespec t = time_of(ns);
  waits_.assign(1, {head_->wake_fd, POLLIN, 0});
  for (const int fd : nics) waits_.push_back({fd, POLLIN, 0});
  const int ready = ppoll(waits_.data(), waits_.size(), &t, nullptr);
  const bool rung = ready > 0 && waits_[0].revents != 0, counted = woken();
  rung_ |= rung;
  return ready == 0 ? Woken::kByTime : ready > 0 && !rung && !counted ? Woken::kByNic : Woken::kByProducer;
}

void Ring::wake() {
  __atomic_fetch_add(&head_->wakes, 1, __ATOMIC_SEQ_CST);
  wake_futex(&head_->wakes);
  add_one(head_->wake_fd);
}

void Ring::abort() {
  __atomic_store_n(&head_->abort, 1, __ATOMIC_SEQ_CST);
  wake();
}

bool Ring::aborted() const { return load(&head_->abort, __ATOMIC_SEQ_CST) != 0; }
uint64_t Ring::completed() const { return load(&head_->completed, __ATOMIC_ACQUIRE); }
uint64_t Ring::completed(uint32_t peer) const { return load(peer_word(peer), __ATOMIC_ACQUIRE); }
uint64_t Ring::tail() const { return load(&head_->tail, __ATOMIC_ACQUIRE); }

void Ring::reset(uint64_t start) {
  next_ = start;
  head_->start = start;
  // A sequence that no command near `start` has.
  for (uint32_t i = 0; i < head_->capacity; ++i) __atomic_store_n(&slot(i)->sequence, start, __ATOMIC_RELAXED);
  __atomic_store_n(&head_->tail, start, __ATOMIC_RELAXED);
  __atomic_store_n(&head_->consumed, start, __ATOMIC_RELAXED);
  __atomic_store_n(&head_->completed, start, __ATOMIC_RELAXED);
  for (uint32_t peer = 0; peer < peers_; ++peer) __atomic_store_n(peer_word(peer), start, __ATOMIC_RELAXED);
  __atomic_store_n(&head_->sleeping, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&head_->abort, 0, __ATOMIC_RELEASE);
}

}  // namespace mk::net
