// A completion queue of libfabric: its errors, and the descriptor by which it wakes who sleeps.
#pragma once
#include <string>

#include "net/ofi_api.h"

namespace mk::net::ofi {

class CompletionQueue {
 public:
  CompletionQueue() = default;
  ~CompletionQueue() { close(); }
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // 0, or libfabric's result. `waits`: with a descriptor, if the provider has such.
  int open(Fabric* fabric, Domain* domain, size_t entries, bool waits);
  void close();
  Cq* get() const { return cq_; }

  ssize_t read(CqEntry* entries, size_t n) { return cq_->ops->read(cq_, entries, n); }

  // Takes the errors that are queued: the cause, which is the first that is no consequence of another, and what the
  // provider says of it. False: there is none.
  bool take_cause(CqError* cause, std::string* said);

  // Readable when there may be completions, or when the provider wants to be moved, if may_sleep() said so before; -1: none.
  int wait_fd() const { return wait_fd_; }
  bool may_sleep();

 private:
  Fabric* fabric_ = nullptr;
  Cq* cq_ = nullptr;
  int wait_fd_ = -1;
};

// What an error's number means, for people: ": ...", or "".
const char* hint_of(int error);

}  // namespace mk::net::ofi
