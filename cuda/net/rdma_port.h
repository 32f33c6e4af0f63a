// The RDMA devices of this host, and which of their ports a backend uses.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/error.h"
#include "net/verbs_api.h"

namespace mk::net::verbs {

// A port of an open device. `context` is closed with the last user.
struct Port {
  const Api* api = nullptr;
  std::shared_ptr<Context> context;
  int transport = 0;
  DeviceAttr device = {};
  PortAttr attr = {};
  uint8_t number = 1;
  std::string name;       // mlx5_0, or mlx5_0:2 for ports after the first
  uint16_t pkey_index = 0;
  GidEntry gid = {};      // Ethernet: the chosen one; InfiniBand and EFA: index 0
  uint32_t mtu = 0;       // bytes, of the port and the settings
};

inline bool is_zero(const Gid& g) { return g.words[0] == 0 && g.words[1] == 0; }
inline bool is_ipv4(const Gid& g) { return g.words[0] == 0 && g.raw[8] == 0 && g.raw[9] == 0 && g.raw[10] == 0xff && g.raw[11] == 0xff; }
std::string text_of(const Gid& gid);

// What a user library without a driver for the kernel's devices cannot say: "; the kernel has ...", with what to do; or "".
std::string unseen_devices(const char* folder = "/sys/class/infiniband");

// The ports that `names` has (NAME or NAME:PORT, separated by commas), in that order, or all, in the order of their PCI
// addresses, for which `check` does not throw; it may change the port, whose attributes were read. Throws UNSUPPORTED,
// with what was found and why each was passed over, when there is none, or one of the names cannot be used.
std::vector<Port> find_ports(const Api& api, const char* names, const std::function<void(Port&)>& check);

}  // namespace mk::net::verbs
