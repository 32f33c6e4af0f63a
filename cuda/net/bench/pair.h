// Two ranks in two processes, for measurements: the control connection between them, and a network of theirs.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "include/mknet.h"
#include "net/clock.h"

namespace bench {

constexpr uint64_t kSecond = 1000000000u;
constexpr uint64_t kPatience = 60 * kSecond;  // for what must come
constexpr uint64_t kLargest = 16u << 20;
constexpr uint64_t kFlag = kLargest;              // in the heap: the flag that is waited for,
constexpr uint64_t kHeapBytes = kLargest + 4096;  // behind the data

[[noreturn]] void die(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The TCP connection by which the ranks agree on what comes next. Rank 0 listens.
class Control {
 public:
  Control(int rank, const char* address, const char* port);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return rank_; }
  void send(const void* data, uint64_t bytes) const;
  void receive(void* data, uint64_t bytes) const;
  void send_blob(const std::vector<char>& blob) const;
  std::vector<char> receive_blob() const;
  void barrier() const;

 private:
  int rank_, fd_ = -1;
};

// What is measured: a way to write bytes and then a flag into the other rank's memory, and to see the own flag.
class Way {
 public:
  virtual ~Way() = default;
  // Writes the first `bytes` of the data and raises the peer's flag to `value`; may return before it is done.
  virtual void write(uint64_t bytes, uint64_t value) = 0;
  // Waits until the own flag has reached `value`.
  virtual void wait(uint64_t value) = 0;
  virtual std::string describe() = 0;
};

// Why mknet has no such network here, or "".
std::string missing(const std::string& spec);
// A network of mknet. `spec`: ibverbs[:DEVICE], ofi[:PROVIDER], emu-cx7 or emu-efa.
std::unique_ptr<Way> open_mknet(const std::string& spec, const Control& control);
// One connection of its own with plain writes and reads: what --net tcp is built on.
std::unique_ptr<Way> open_socket(const Control& control, const char* address);

}  // namespace bench
