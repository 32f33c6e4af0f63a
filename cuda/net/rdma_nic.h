// What the backends over libibverbs have in common: an open port, a protection domain, registered memory, asynchronous
// events of the device, and the names of work requests.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "net/nic.h"
#include "net/rdma_port.h"

namespace mk::net {

// wr_id: kind, queue pair, number of the work request on it. Never 0.
enum WrKind : uint64_t { kSend = 1, kReceive = 2 };
constexpr int kWrQpShift = 40;
constexpr uint64_t kWrNumberMask = (uint64_t{1} << kWrQpShift) - 1;
inline uint64_t wr_id(WrKind kind, uint32_t qp, uint64_t number) {
  return kind << 60 | uint64_t{qp} << kWrQpShift | (number & kWrNumberMask);
}
inline uint64_t wr_kind(uint64_t id) { return id >> 60; }
inline size_t wr_qp(uint64_t id) { return static_cast<size_t>((id >> kWrQpShift) & 0xfffff); }
inline uint64_t wr_number(uint64_t id) { return id & kWrNumberMask; }

// A peer's memory, as its endpoint data gives it.
struct RemoteMemory {
  uint64_t base, bytes;
  uint32_t rkey;
};

// What a failed registration or creation may be about: "; at most ... may be locked", or "".
std::string memlock_hint(int error);

// A result of a verb as an error number: they return it, or -1 and errno, or its negative.
int error_of(int result);

class RdmaNic : public Nic {
 public:
  ~RdmaNic() override;

  const NicProperties& properties() const override { return p_; }
  void add_region(uint32_t number, const Region& region) override;
  size_t poll(Completion* completions, size_t n) override;
  void check() override;

 protected:
  // `peer_memory`: device memory that comes without a dma-buf may be registered by its address.
  RdmaNic(const verbs::Port& port, const mknet_desc& desc, bool peer_memory);

  const char* name() const { return p_.name.c_str(); }

  // The heap and the inbox, with their keys.
  void put_memory(BlobWriter& w) const;
  // A bad address would end queue pairs on both sides, so it is refused here.
  static bool inside(const Write& w, const RemoteMemory& there) {
    return w.target <= there.bytes && w.bytes <= there.bytes - w.target && w.bytes <= UINT32_MAX;
  }
  [[noreturn]] static void refuse(const Write& w, const RemoteMemory& there, const std::string& path);

  // Takes completions from the device into ready_; throws the reason that one with an error tells.
  virtual void poll_device() = 0;
  // Takes the device's events; returns the text of one that ends queue pairs. Those about our port are counted.
  std::string read_events();
  // "; 3 port events, the last: port error", or "".
  std::string events_text() const;
  // Whether the NIC's own port is down now.
  bool port_down() const;

  const verbs::Api& api_;
  const verbs::Port port_;
  mknet_rdma s_;
  const uint32_t world_;
  NicProperties p_;
  verbs::Pd* pd_ = nullptr;
  std::vector<Region> regions_;
  std::vector<verbs::Mr*> mrs_;
  std::string how_;  // the heap was registered
  std::deque<Completion> ready_;

 private:
  verbs::Mr* add(const Region& region, int access, bool relaxed, std::string* how);

  const bool peer_memory_;
  uint64_t port_events_ = 0;
  std::string last_event_;
};

}  // namespace mk::net
