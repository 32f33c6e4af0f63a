// Which devices, ports and GIDs are used, and what two ports have in common.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "net/blob.h"
#include "net/verbs_api.h"

namespace mk::net::verbs {

// A port of an open device. `context` is closed with the last user.
struct Port {
  const Api* api = nullptr;
  std::shared_ptr<Context> context;
  DeviceAttr device = {};
  PortAttr attr = {};
  uint8_t number = 1;
  std::string name;       // mlx5_0, or mlx5_0:2 for ports after the first
  uint16_t pkey_index = 0;
  GidEntry gid = {};      // Ethernet: the chosen one; InfiniBand: index 0
  uint32_t mtu = 0;       // bytes, of the port and the settings
};

std::string text_of(const Gid& gid);
uint32_t mtu_bytes(int code);
int mtu_code(uint32_t bytes);  // 0: no such MTU

// The ports that the settings name, or all that can be used, in the order of their PCI addresses. Throws UNSUPPORTED,
// with what was found and why each was passed over, when there is none.
std::vector<Port> find_ports(const Api& api, const mknet_rdma& settings);

// What a peer must know of a port.
struct PortAddress {
  uint8_t link_layer = 0, lmc = 0;
  uint16_t lid = 0, pkey = 0;
  uint32_t mtu = 0, max_message = 0, gid_type = 0, reads = 0;
  Gid gid = {};
  bool grh = false;
  std::string name;
};
PortAddress address_of(const Port& port, uint32_t pkey);
void put(BlobWriter& w, const PortAddress& a);
PortAddress get_address(BlobReader& r);

// The address vector from one port to the other; throws if they cannot talk.
AhAttr path(const Port& from, const PortAddress& mine, const PortAddress& theirs, const mknet_rdma& settings);

// What the error of a queue pair's transition to RTR means, for people.
const char* hint_of_rtr(int error);

}  // namespace mk::net::verbs
