#include "net/verbs_port.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

namespace mk::net::verbs {

namespace {

bool is_zero(const Gid& g) { return g.words[0] == 0 && g.words[1] == 0; }
bool is_link_local(const Gid& g) { return g.raw[0] == 0xfe && (g.raw[1] & 0xc0) == 0x80; }
bool is_ipv4(const Gid& g) { return g.words[0] == 0 && g.raw[8] == 0 && g.raw[9] == 0 && g.raw[10] == 0xff && g.raw[11] == 0xff; }

// The netdev of a GID is in this network namespace. 0: the device does not say.
bool is_ours(const GidEntry& e) {
  char name[IF_NAMESIZE];
  return e.ndev_ifindex == 0 || if_indextoname(e.ndev_ifindex, name) != nullptr;
}

std::string pci_of(const Device* d) {
  char target[512];
  const std::string link = std::string(d->ibdev_path) + "/device";
  const ssize_t n = readlink(link.c_str(), target, sizeof target - 1);
  if (n <= 0) return "";
  target[n] = '\0';
  const char* slash = strrchr(target, '/');
  return slash != nullptr ? slash + 1 : target;
}

// mlx5_10 after mlx5_9.
bool natural_less(const std::string& a, const std::string& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (isdigit(static_cast<unsigned char>(a[i])) && isdigit(static_cast<unsigned char>(b[j]))) {
      size_t ni, nj;
      const unsigned long x = std::stoul(a.substr(i, 9), &ni), y = std::stoul(b.substr(j, 9), &nj);
      if (x != y) return x < y;
      i += ni, j += nj;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  return a.size() < b.size();
}

// The GIDs of a port, empty slots left out.
std::vector<GidEntry> gids_of(const Port& p) {
  std::vector<GidEntry> all(static_cast<size_t>(p.device.phys_port_cnt) * static_cast<size_t>(std::max(p.attr.gid_tbl_len, 1)));
  const ssize_t n = p.api->query_gid_table(p.context.get(), all.data(), all.size(), 0, sizeof(GidEntry));
  if (n < 0) fail(MKNET_ERROR_SYSTEM, "%s: reading its GIDs: %s", p.name.c_str(), strerror(static_cast<int>(-n)));
  all.resize(static_cast<size_t>(n));
  all.erase(std::remove_if(all.begin(), all.end(), [&](const GidEntry& e) { return e.port_num != p.number || is_zero(e.gid); }), all.end());
  return all;
}

void choose_gid(Port& p, const mknet_rdma& s) {
  const std::vector<GidEntry> all = gids_of(p);
  if (p.attr.link_layer == kLinkInfiniband) {
    if (!all.empty()) p.gid = all.front();
    return;
  }
  if (s.gid != 0) {
    const uint32_t index = s.gid - 1;
    for (const GidEntry& e : all) {
      if (e.gid_index != index) continue;
      if (e.gid_type != kGidRoceV2) fail(MKNET_ERROR_UNSUPPORTED, "GID %u (%s) is not RoCE v2", index, text_of(e.gid).c_str());
      if (!is_ours(e)) fail(MKNET_ERROR_UNSUPPORTED, "the network interface of GID %u is not in this network namespace", index);
      p.gid = e;
      return;
    }
    fail(MKNET_ERROR_UNSUPPORTED, "GID %u is an empty slot", index);
  }
  // RoCE v2 of a netdev of ours; routable before link-local, IPv4 before IPv6 unless told, then the lowest index.
  const GidEntry* best = nullptr;
  int best_rank = 0;
  for (const GidEntry& e : all) {
    if (e.gid_type != kGidRoceV2 || !is_ours(e)) continue;
    const bool v4 = is_ipv4(e.gid), wanted = s.gid_family == 0 || (s.gid_family == 4) == v4;
    const int rank = (is_link_local(e.gid) ? 1 : v4 ? 3 : 2) + (wanted ? 3 : 0);
    if (!wanted && s.gid_family != 0) continue;
    if (rank > best_rank) best = &e, best_rank = rank;
  }
  if (best == nullptr)
    fail(MKNET_ERROR_UNSUPPORTED, "none of its %zu GIDs is RoCE v2 of a network interface here%s", all.size(),
         s.gid_family != 0 ? " of the wanted address family" : "");
  p.gid = *best;
}

void choose_pkey(Port& p, uint32_t value) {
  for (int i = 0; i < p.attr.pkey_tbl_len; ++i) {
    uint16_t key = 0;
    if (p.api->query_pkey(p.context.get(), p.number, i, &key) != 0) continue;
    // The top bit is full or limited membership.
    if ((ntohs(key) & 0x7fff) != (value & 0x7fff)) continue;
    p.pkey_index = static_cast<uint16_t>(i);
    return;
  }
  fail(MKNET_ERROR_UNSUPPORTED, "it is not in partition %#x", value);
}

// Throws when the port cannot be used.
void check_port(Port& p, const mknet_rdma& s) {
  if (p.api->query_port(p.context.get(), p.number, &p.attr) != 0) fail(MKNET_ERROR_SYSTEM, "its port %u cannot be queried", p.number);
  const PortAttr& a = p.attr;
  if (a.link_layer != kLinkInfiniband && a.link_layer != kLinkEthernet) fail(MKNET_ERROR_UNSUPPORTED, "its link layer %u is neither InfiniBand nor Ethernet", a.link_layer);
  if (a.link_layer == kLinkInfiniband && (a.state == kPortInit || a.state == kPortArmed || (a.state == kPortActive && a.lid == 0)))
    fail(MKNET_ERROR_UNSUPPORTED, "it has no LID: no subnet manager");
  if (a.state != kPortActive) fail(MKNET_ERROR_UNSUPPORTED, "the port is down");
  choose_gid(p, s);
  choose_pkey(p, s.pkey != 0 ? s.pkey : 0xffff);
  p.mtu = mtu_bytes(a.active_mtu);
  if (p.mtu == 0) fail(MKNET_ERROR_SYSTEM, "its MTU has the unknown code %d", a.active_mtu);
  if (s.mtu != 0) p.mtu = std::min(p.mtu, s.mtu);
}

bool named(const std::string& list, const std::string& name) { return ("," + list + ",").find("," + name + ",") != std::string::npos; }

// Position in the list of names; rails are numbered by it.
size_t place(const std::string& list, const std::string& name) { return ("," + list + ",").find("," + name + ","); }

}  // namespace

std::string text_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (is_ipv4(gid))
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

uint32_t mtu_bytes(int code) { return code >= 1 && code <= 5 ? 128u << code : 0; }
int mtu_code(uint32_t bytes) {
  for (int code = 1; code <= 5; ++code)
    if (mtu_bytes(code) == bytes) return code;
  return 0;
}

std::vector<Port> find_ports(const Api& api, const mknet_rdma& s) {
  if (s.mtu != 0 && mtu_code(s.mtu) == 0) fail(MKNET_ERROR_ARGUMENT, "a path MTU of %u bytes; there are 256, 512, 1024, 2048 and 4096", s.mtu);
  if (s.gid_family != 0 && s.gid_family != 4 && s.gid_family != 6) fail(MKNET_ERROR_ARGUMENT, "address family %u of GIDs; there are 4 and 6", s.gid_family);
  const std::string wanted = s.devices != nullptr ? s.devices : "";
  int count = 0;
  errno = 0;
  Device** list = api.get_device_list(&count);
  if (list == nullptr)
    fail(MKNET_ERROR_UNSUPPORTED, "no RDMA devices: %s", errno == ENOSYS ? "the kernel has no ib_uverbs module loaded" : strerror(errno));
  std::vector<Device*> devices(list, list + count);
  std::vector<std::pair<std::string, Device*>> sorted;
  for (Device* d : devices) sorted.emplace_back(pci_of(d) + "/" + d->name, d);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return natural_less(a.first, b.first); });
  std::vector<Port> ports;
  std::string passed;  // and why
  const auto pass = [&](const std::string& name, const std::string& why) { passed += (passed.empty() ? "" : "; ") + name + ": " + why; };
  for (const auto& [_, d] : sorted) {
    if (d->transport_type != kTransportInfiniband) {
      pass(d->name, "it is no device with InfiniBand transport");
      continue;
    }
    errno = 0;
    Context* opened = api.open_device(d);
    if (opened == nullptr) {
      pass(d->name, format("it cannot be opened (%s); is its /dev/infiniband file here and allowed?", strerror(errno)));
      continue;
    }
    std::shared_ptr<Context> context(opened, [&api](Context* c) { api.close_device(c); });
    Port p;
    p.api = &api;
    p.context = context;
    if (api.query_device(opened, &p.device) != 0) {
      pass(d->name, "it cannot be queried");
      continue;
    }
    for (uint32_t n = 1; n <= p.device.phys_port_cnt; ++n) {
      Port port = p;
      port.number = static_cast<uint8_t>(n);
      port.name = n == 1 ? d->name : format("%s:%u", d->name, n);
      if (!wanted.empty() && !named(wanted, port.name) && !named(wanted, format("%s:%u", d->name, n))) continue;
      try {
        check_port(port, s);
        ports.push_back(port);
      } catch (const Error& e) {
        pass(port.name, e.what());
      }
    }
  }
  api.free_device_list(list);
  if (!wanted.empty()) {
    std::stable_sort(ports.begin(), ports.end(), [&](const Port& a, const Port& b) { return place(wanted, a.name) < place(wanted, b.name); });
    const size_t names = 1 + static_cast<size_t>(std::count(wanted.begin(), wanted.end(), ','));
    if (ports.size() != names)
      fail(MKNET_ERROR_UNSUPPORTED, "of the NICs %s, %zu can be used%s%s", wanted.c_str(), ports.size(), passed.empty() ? "" : ": ", passed.c_str());
  }
  if (ports.empty()) fail(MKNET_ERROR_UNSUPPORTED, "no RDMA device can be used%s%s", passed.empty() ? ": there is none" : ": ", passed.c_str());
  return ports;
}

PortAddress address_of(const Port& p, uint32_t pkey) {
  PortAddress a;
  a.link_layer = p.attr.link_layer;
  a.lmc = p.attr.lmc;
  a.lid = p.attr.lid;
  a.pkey = static_cast<uint16_t>(pkey != 0 ? pkey : 0xffff);
  a.mtu = p.mtu;
  a.max_message = p.attr.max_msg_sz;
  a.gid_type = p.gid.gid_type;
  a.reads = static_cast<uint32_t>(std::max(0, std::min(p.device.max_qp_rd_atom, p.device.max_qp_init_rd_atom)));
  a.gid = p.gid.gid;
  a.grh = (p.attr.flags & kPortGrhRequired) != 0;
  a.name = p.name;
  return a;
}

void put(BlobWriter& w, const PortAddress& a) {
  w.put(a.link_layer), w.put(a.lmc), w.put(a.lid), w.put(a.pkey), w.put(a.mtu), w.put(a.max_message), w.put(a.gid_type), w.put(a.reads);
  w.put(a.gid), w.put(a.grh);
  w.put_text(a.name);
}

PortAddress get_address(BlobReader& r) {
  PortAddress a;
  a.link_layer = r.get<uint8_t>(), a.lmc = r.get<uint8_t>(), a.lid = r.get<uint16_t>(), a.pkey = r.get<uint16_t>();
  a.mtu = r.get<uint32_t>(), a.max_message = r.get<uint32_t>(), a.gid_type = r.get<uint32_t>(), a.reads = r.get<uint32_t>();
  a.gid = r.get<Gid>(), a.grh = r.get<bool>();
  a.name = r.get_text();
  if (mtu_code(a.mtu) == 0) fail(MKNET_ERROR_PEER, "its path MTU of %u bytes is none", a.mtu);
  if (a.max_message == 0) fail(MKNET_ERROR_PEER, "its NIC takes no messages");
  return a;
}

AhAttr path(const Port& from, const PortAddress& mine, const PortAddress& theirs, const mknet_rdma& s) {
  if (mine.link_layer != theirs.link_layer)
    fail(MKNET_ERROR_UNSUPPORTED, "%s is %s and its %s is %s", mine.name.c_str(), mine.link_layer == kLinkEthernet ? "Ethernet" : "InfiniBand",
         theirs.name.c_str(), theirs.link_layer == kLinkEthernet ? "Ethernet" : "InfiniBand");
  if ((mine.pkey & 0x7fff) != (theirs.pkey & 0x7fff)) fail(MKNET_ERROR_UNSUPPORTED, "partition %#x here and %#x there", mine.pkey, theirs.pkey);
  AhAttr a = {};
  a.port_num = from.number;
  a.sl = static_cast<uint8_t>(s.service_level);
  if (mine.link_layer == kLinkEthernet) {
    if (mine.gid_type != theirs.gid_type) fail(MKNET_ERROR_UNSUPPORTED, "GID %s here and %s there are of different RoCE types", text_of(mine.gid).c_str(), text_of(theirs.gid).c_str());
    if (is_ipv4(mine.gid) != is_ipv4(theirs.gid))
      fail(MKNET_ERROR_UNSUPPORTED, "GID %s here and %s there are of different address families", text_of(mine.gid).c_str(), text_of(theirs.gid).c_str());
    a.is_global = 1;
  } else {
    if (theirs.lid == 0) fail(MKNET_ERROR_PEER, "its %s has no LID: no subnet manager", theirs.name.c_str());
    a.dlid = theirs.lid;
    a.is_global = mine.grh || theirs.grh || mine.gid.words[0] != theirs.gid.words[0];
  }
  if (a.is_global) {
    a.dgid = theirs.gid;
    a.sgid_index = static_cast<uint8_t>(from.gid.gid_index);
    a.hop_limit = 255;
    a.traffic_class = static_cast<uint8_t>(s.traffic_class);
  }
  return a;
}

const char* hint_of_rtr(int error) {
  switch (error) {
    case ENODEV: return "the GID's network interface is not in this network namespace (a macvlan container?)";
    case ENODATA: return "the GID index is an empty slot";
    case ETIMEDOUT: return "no answer to ARP or neighbour discovery for the peer's GID: not on this network, or another rail";
    case ENETUNREACH: return "no route to the peer's GID";
    case EINVAL: return "the device refuses these values; the peer's GID may be malformed, or the MTU above the port's";
    default: return "";
  }
}

}  // namespace mk::net::verbs
