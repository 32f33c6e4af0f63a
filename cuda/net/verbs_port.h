// Backend ibverbs: which ports and GIDs are used, and what two ports have in common.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "net/blob.h"
#include "net/rdma_port.h"

namespace mk::net::verbs {

uint32_t mtu_bytes(int code);
int mtu_code(uint32_t bytes);  // 0: no such MTU

// The ports for reliable connections, as rdma_port.h's.
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
