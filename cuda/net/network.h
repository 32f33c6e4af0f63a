// A rank's network: NICs, registered memory, FIFO, transfer and proxy, from create to destroy.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "net/memory.h"
#include "net/nic.h"
#include "net/proxy.h"

namespace mk::net {

class Network {
 public:
  explicit Network(const mknet_desc& desc);
  virtual ~Network();

  uint32_t add(const mknet_range& range);
  const Blob& endpoint(int32_t peer);
  void connect(uint32_t peer, const Blob& common, const Blob& own, void* mapped);
  void start();
  void verify(uint64_t timeout_ns);
  void drain(uint64_t timeout_ns);
  void reset(uint64_t job);
  void abort(const char* reason);

  uint32_t rank() const { return rank_; }
  uint32_t world() const { return world_; }
  Ring& ring() { return ring_; }
  const Verdict& verdict() const { return verdict_; }
  uint64_t push(const mknet_command& command, uint64_t timeout_ns);
  void flush(int32_t peer, uint64_t position, uint64_t timeout_ns) const;
  std::string describe() const;
  void statistics(mknet_stats* out) const;

 private:
  void add_control_memory();
  void add_region(uint32_t number, Region r);
  bool may_bounce(uint32_t number, const Region& r, const Error& why) const;
  void add_bounced(uint32_t number, Region& r, const Error& why);
  // NICs of both sides that are connected, as (own, peer's).
  std::vector<std::pair<uint32_t, uint32_t>> pair_nics(const std::vector<uint32_t>& theirs) const;
  void release();
  void build_common();
  void set_up_transfer();
  [[noreturn]] void refuse(uint32_t peer, const Error& e) const;

  const uint32_t rank_, world_;
  const std::string backend_;
  const uint64_t start_, timeout_ns_;
  uint64_t job_;
  const bool may_bounce_;
  Device device_;
  Bounce bounce_;
  std::string bounced_;  // why the heap is; "": it is not
  ProxySettings proxy_settings_;
  Ring ring_;
  Verdict verdict_;
  std::vector<Region> regions_;
  uint32_t registered_ = 0;
  std::vector<std::unique_ptr<Nic>> nics_;
  std::vector<uint32_t> rails_;  // of the NICs
  Blob common_;
  std::vector<Blob> endpoints_;  // by peer; made when asked for
  std::vector<uint32_t> peers_;  // connected
  std::unique_ptr<Transfer> transfer_;
  std::unique_ptr<Proxy> proxy_;
};


}  // namespace mk::net
