// Keeps a program's handlers of signals from libraries.
#pragma once
#include <csignal>

namespace mk::net {

// Puts handlers back, at its end, that a library has taken since it was made. libpsm_infinipath and libpsm2, which Debian's
// libfabric links, take the signals of faults, and SIGINT and SIGTERM, when they are loaded; libfabric's provider shm does with
// its first endpoint. That is for the program to decide, and Go's runtime ends a process whose handlers are not its own.
class KeptSignals {
 public:
  KeptSignals() {
    for (int s = 1; s < kSignals; ++s) known_[s] = sigaction(s, nullptr, &was_[s]) == 0;
  }
  ~KeptSignals() {
    for (int s = 1; s < kSignals; ++s) {
      struct sigaction now;
      if (known_[s] && sigaction(s, nullptr, &now) == 0 && now.sa_sigaction != was_[s].sa_sigaction) sigaction(s, &was_[s], nullptr);
    }
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr int kSignals = 32;
  struct sigaction was_[kSignals];
  bool known_[kSignals];
};

}  // namespace mk::net
