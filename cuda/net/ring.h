// The two ends of the command FIFO on the host; the layout and the protocol are in fifo.h.
#pragma once
#include <poll.h>

#include <cstdint>
#include <vector>

#include "net/fifo.h"

namespace mk::net {

constexpr uint32_t kDefaultCapacity = 1024;
constexpr uint32_t kMaxCapacity = 1u << 20;

// Why a sleep ended.
enum class Woken { kNever, kByProducer, kByNic, kByTime };

class Ring {
 public:
  // `peers`: ranks that commands may be for.
  Ring(uint32_t capacity, uint64_t start, uint32_t peers = 1);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  mknet_fifo* head() const { return head_; }

  // Producer, any thread. Waits for a free slot until the deadline (clock.h); returns the command's position. Throws on
  // time-out and after an abort; no slot is left claimed then.
  uint64_t push(const mknet_command& command, uint64_t deadline_ns);

  // Proxy: the next command, if there is one.
  bool take(mknet_command* out);
  // Proxy: whether there is one.
  bool waits() const;
  // Proxy: the position that take() looks at.
  uint64_t next() const { return next_; }
  // Proxy: commands below `position` are complete.
  void complete(uint64_t position);
  // Proxy: those to a peer are.
  void complete(uint32_t peer, uint64_t position);
  // Proxy: sleeps until a host producer pushes, wake() is called, one of the descriptors of NICs can be read, or the time
  // is over: by futex without descriptors, else by ppoll. kNever: there was a command already, or an abort. What was stored
  // before a wake() is seen after the next sleep, also if wake() came before it.
  Woken sleep(uint64_t ns, const std::vector<int>& nics = {}) { return announce(nics) ? wait(ns, nics) : Woken::kNever; }
  // The two halves of sleep(), between which tests act: says that the proxy sleeps, and looks once more; false: for nothing,
  // as there is a command or an abort.
  bool announce(const std::vector<int>& nics = {});
  Woken wait(uint64_t ns, const std::vector<int>& nics = {});

  void wake();
  void abort();
  bool aborted() const;
  uint64_t completed() const;
  uint64_t completed(uint32_t peer) const;
  uint64_t tail() const;

  // Empties the FIFO; no producer and no proxy may be at work.
  void reset(uint64_t start);

 private:
  // Whether somebody has woken the proxy since the last call.
  bool woken();
  Woken wait_by_futex(uint64_t ns);
  Woken wait_by_fd(uint64_t ns, const std::vector<int>& nics);

  mknet_command* slot(uint64_t position) const;
  uint64_t* peer_word(uint32_t peer) const;

  const uint32_t peers_;
  mknet_fifo* head_ = nullptr;
  uint64_t next_ = 0;
  uint32_t seen_ = 0;          // of head_->wakes
  bool rung_ = false;          // somebody may have added to the eventfd since it was read
  std::vector<pollfd> waits_;  // of wait(): the eventfd, then NICs
};

}  // namespace mk::net
