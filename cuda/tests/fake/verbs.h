// What a test can say to the fake verbs library: which devices there are, what fails, in what order things happen.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "net/efa_api.h"

namespace fake {

namespace v = mk::net::verbs;

struct PortSettings {
  v::PortAttr attr = {};
  std::vector<v::GidEntry> gids;   // zero GIDs are empty slots
  std::vector<uint16_t> pkeys = {0xffff};
};

struct DeviceSettings {
  std::string name = "fake0";
  std::string pci = "";
  v::DeviceAttr attr = {};
  int transport = v::kTransportInfiniband;
  bool openable = true;
  std::vector<PortSettings> ports;
  uint32_t max_inline = 64;
  v::EfaDeviceAttr efa = {};          // EFA devices
};

struct Settings {
  std::vector<DeviceSettings> devices;
  uint64_t seed = 1;
  bool slow = false;                  // work is done a little with each poll, in the order of a seed
  std::map<std::string, int> fail;    // function, or function and device: errno of its next call, whoever's that is
  int status = 0;                     // of the next send that is executed, if not 0
  bool lose = false;                  // sends are never completed
  bool negative = false;              // post_send tells errors as -1 and errno
  bool drop_attribute = false;        // modify_qp forgets the retry count
  bool no_receives = false;           // receives are swallowed
  bool no_dma_buf = false;            // as kernels without it
  std::string stuck;                  // sends of this device are never executed
  bool hold = false;                  // polls do not return
  std::string hang;                   // opening this device does not return
  int lost_immediates = 0;            // so many of the next ones never arrive, though their senders see them complete
  // EFA only.
  uint32_t efa_status = 0;            // as `status`, as the device tells it
  uint32_t old_library = 0;           // rdma-core 44: knows nothing of RDMA writes; 46: of flags and service levels
  bool early_full = false;            // queues say now and then that they are full before they are
  bool early_completion = false;      // a write may be acknowledged before all of it is in memory
  bool forget_handles = false;        // the device forgets who its peers are
  bool unsolicited = false;           // immediates take no receive
  bool repeat_completion = false;     // the next completion comes twice
  bool drop_key = false;              // modify_qp forgets the key
};

// What the fake saw.
struct Seen {
  uint64_t posts = 0, writes = 0, signalled = 0, inlined = 0;
  uint64_t opened = 0;                   // devices
  uint64_t relaxed_mrs = 0, mrs = 0, mr_access_of_readers = 0;
  int live_mrs = 0, live_qps = 0, live_cqs = 0, live_pds = 0, live_contexts = 0, live_ahs = 0;
  uint64_t handles = 0, sessions = 0, out_of_order = 0, refills = 0, receives = 0;  // EFA only
  v::AhAttr last_handle = {};
  v::QpInitEx last_qp = {};
  v::EfaQpInit last_efa_qp = {};
  uint64_t zero_ids = 0, largest = 0, without_rts = 0;
  uint64_t held = 0;                     // polls that do not return
  uint64_t polls_after_error = 0;        // of completion queues from which an error was taken
  uint64_t plain_writes_to_relaxed = 0;  // without an immediate, into memory of relaxed ordering
  v::QpAttr last_rtr = {}, last_rts = {};
};

struct Control {
  std::mutex* mutex;  // of all that follows: held by whoever touches or calls it while networks run
  Settings settings;
  Seen seen;
  void (*event)(const char* device, int type, int port);  // an asynchronous event
  void (*kill_qps)(const char* device);                   // all queue pairs of a device go to the error state
};

inline v::GidEntry gid(uint32_t type, std::vector<uint8_t> tail, std::vector<uint8_t> head = {}, uint32_t ndev = 1) {
  v::GidEntry e = {};
  e.gid_type = type;
  e.ndev_ifindex = ndev;
  for (size_t i = 0; i < head.size(); ++i) e.gid.raw[i] = head[i];
  for (size_t i = 0; i < tail.size(); ++i) e.gid.raw[16 - tail.size() + i] = tail[i];
  return e;
}
inline v::GidEntry ipv4(uint32_t type, uint8_t net, uint8_t host, uint32_t ndev = 1) { return gid(type, {0xff, 0xff, 10, 9, net, host}, {}, ndev); }

inline DeviceSettings device(const std::string& name) {
  DeviceSettings d;
  d.name = name;
  d.attr.vendor_id = 0x15b3;
  d.attr.max_qp = 1000, d.attr.max_qp_wr = 8192, d.attr.max_cqe = 1 << 20, d.attr.max_qp_rd_atom = 16, d.attr.max_qp_init_rd_atom = 16;
  d.ports.emplace_back();
  v::PortAttr& a = d.ports[0].attr;
  a.state = v::kPortActive;
  a.max_mtu = a.active_mtu = 5;
  a.max_msg_sz = 1 << 30;
  return d;
}
// A RoCE port as Linux shows it: link-local and IPv4, each as v1 and v2.
inline DeviceSettings roce(const std::string& name, uint8_t host) {
  DeviceSettings d = device(name);
  d.ports[0].attr.link_layer = v::kLinkEthernet;
  d.ports[0].gids = {gid(v::kGidRoceV1, {host}, {0xfe, 0x80}), gid(v::kGidRoceV2, {host}, {0xfe, 0x80}), ipv4(v::kGidRoceV1, 1, host), ipv4(v::kGidRoceV2, 1, host)};
  return d;
}
inline DeviceSettings infiniband(const std::string& name, uint16_t lid) {
  DeviceSettings d = device(name);
  d.ports[0].attr.link_layer = v::kLinkInfiniband;
  d.ports[0].attr.lid = lid;
  d.ports[0].gids = {gid(v::kGidInfiniband, {static_cast<uint8_t>(lid)}, {0xfe, 0x80})};
  return d;
}

// An EFA device as of p5: one port without a link layer, an address, no reads.
inline DeviceSettings efa(const std::string& name, uint8_t host) {
  DeviceSettings d = device(name);
  d.attr.vendor_id = v::kVendorAmazon, d.attr.vendor_part_id = v::kEfaThird;
  d.attr.max_qp_rd_atom = d.attr.max_qp_init_rd_atom = 0;
  d.attr.max_cqe = 1 << 15;
  d.transport = 4;
  d.ports[0].attr.max_msg_sz = 8928;
  d.ports[0].gids = {gid(0, {2, 0x34, 0x56, 0xff, 0xfe, 0, 0, host}, {0xfe, 0x80}, 0)};
  d.efa.max_sq_wr = 4096, d.efa.max_rq_wr = 8192, d.efa.max_sq_sge = d.efa.max_rq_sge = 2;
  d.efa.inline_buf_size = 32;
  d.efa.device_caps = v::kEfaHasRead | v::kEfaHasRnrRetry | v::kEfaHasWrite | v::kEfaHasUnsolicited;
  d.efa.max_rdma_size = 1 << 30;
  return d;
}

}  // namespace fake

extern "C" fake::Control* fake_control();
