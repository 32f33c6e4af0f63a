// A libfabric without any network: endpoints of this process write into each other's memory. It keeps what is promised
// and no more: writes arrive late and, unless told otherwise, in any order; objects are closed before what they are made
// of; memory has keys, bounds and rights; queues have room for what they were made for. Every call fails on demand.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "net/ofi_api.h"

namespace fakefabric {

namespace o = mk::net::ofi;

struct DomainSettings {
  std::string provider = "fake";
  std::string name = "fake0";
  std::string address;      // IPv4; "": none, the provider has addresses of its own
  bool hardware = true;
  bool down = false;        // its link
  uint32_t protocol = 99;
};

struct Settings {
  std::vector<DomainSettings> domains = {{}};
  int mr_mode = o::kMrLocal | o::kMrVirtAddr | o::kMrAllocated | o::kMrProvKey | o::kMrEndpoint;
  size_t mr_key_size = 8, cq_data_size = 8, max_msg_size = 4096, tx_size = 64;
  uint64_t msg_order = 0, comp_order = 0;
  size_t max_order_waw_size = 0;
  int data_progress = o::kProgressAuto;
  bool ordered = false;     // whether writes arrive in order
  uint64_t seed = 1;
  uint32_t busy = 0;        // every so many calls of write find no room; 0: none
  std::map<std::string, int> fail;  // what a call returns: getinfo, fabric, domain, cq, av, endpoint, bind, enable, getname, reg, insert, write, read
  uint64_t bad_write = 0;   // the write with this number, from 1, ends with an error
  int bad_err = 0, bad_prov = 0;
  bool canceled_first = false;  // before that error, another write's cancellation is told
  bool lose = false;        // writes never end
  bool no_descriptors = false;  // its completion queues wake nobody
  int ports_taken = 0;      // so many endpoints find theirs in use when they are enabled
};

// What was seen; live objects must be 0 at the end.
struct Seen {
  int fabrics = 0, domains = 0, cqs = 0, avs = 0, eps = 0, mrs = 0;
  int wrong_order = 0;      // objects closed while others were made of them, and a queue waited for after its endpoint was closed
  uint64_t writes = 0, most_queued = 0, cq_size = 0;
  std::vector<uint64_t> keys;        // asked for
  std::vector<uint64_t> access;      // of registered memory
  int live() const { return fabrics + domains + cqs + avs + eps + mrs; }
};

struct Control {
  std::mutex mutex;         // proxies of several ranks are threads of this process; held to change settings under them
  Settings settings;
  Seen seen;
};

}  // namespace fakefabric
