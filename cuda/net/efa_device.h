// Backend efa: which devices are used, what they can do, and what their errors mean.
#pragma once
#include <vector>

#include "net/efa_api.h"
#include "net/rdma_port.h"

namespace mk::net::verbs {

// An EFA device that takes RDMA writes; `port.gid` is its address.
struct EfaDevice {
  const EfaApi* api = nullptr;
  Port port;
  EfaDeviceAttr attr = {};
};

// As rdma_port.h's find_ports.
std::vector<EfaDevice> find_efa_devices(const EfaApi& api, const char* names);

// What a completion's status of the device (its vendor error) means, for people.
const char* hint_of_efa(uint32_t status);

// What to look at when nothing passes between devices that are well.
constexpr const char* kEfaAdvice =
    "does the security group allow all traffic from and to itself, inbound and outbound (a rule for 0.0.0.0/0 does not), "
    "and are the devices in one subnet?";

}  // namespace mk::net::verbs
