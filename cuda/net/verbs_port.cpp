#include "net/verbs_port.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>

namespace mk::net::verbs {

namespace {

bool is_link_local(const Gid& g) { return g.raw[0] == 0xfe && (g.raw[1] & 0xc0) == 0x80; }

// The netdev of a GID is in this network namespace. 0: the device does not say.
bool is_ours(const GidEntry& e) {
  char name[IF_NAMESIZE];
  return e.ndev_ifindex == 0 || if_indextoname(e.ndev_ifindex, name) != nullptr;
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
  const PortAttr& a = p.attr;
  if (p.device.vendor_id == kVendorAmazon) fail(MKNET_ERROR_UNSUPPORTED, "it has no reliable connections: use the efa backend");
  if (p.transport != kTransportInfiniband) fail(MKNET_ERROR_UNSUPPORTED, "it is no device with InfiniBand transport");
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

}  // namespace

uint32_t mtu_bytes(int code) { return code >= 1 && code <= 5 ? 128u << code : 0; }
int mtu_code(uint32_t bytes) {
  for (int code = 1; code <= 5; ++code)
    if (mtu_bytes(code) == bytes) return code;
  return 0;
}

std::vector<Port> find_ports(const Api& api, const mknet_rdma& s) {
  if (s.mtu != 0 && mtu_code(s.mtu) == 0) fail(MKNET_ERROR_ARGUMENT, "a path MTU of %u bytes; there are 256, 512, 1024, 2048 and 4096", s.mtu);
  if (s.gid_family != 0 && s.gid_family != 4 && s.gid_family != 6) fail(MKNET_ERROR_ARGUMENT, "address family %u of GIDs; there are 4 and 6", s.gid_family);
  return find_ports(api, s.devices, [&s](Port& p) { check_port(p, s); });
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
