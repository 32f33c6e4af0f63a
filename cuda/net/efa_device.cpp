#include "net/efa_device.h"

#include <cerrno>

#include "net/rdma_nic.h"

namespace mk::net::verbs {

namespace {

EfaDeviceAttr attributes(const EfaApi& api, const Port& p) {
  EfaDeviceAttr a = {};
  if (const int rc = api.query_device(p.context.get(), &a, sizeof a); rc != 0)
    fail(MKNET_ERROR_UNSUPPORTED, "%s does not know it as an EFA device: %s", api.file.c_str(), strerror(error_of(rc)));
  if ((a.device_caps & kEfaHasWrite) == 0) {
    const uint32_t part = p.device.vendor_part_id;
    const char* library = "libefa (rdma-core 46 and newer) and the efa driver may be too old to show them";
    const char* device = "the first two generations of the device (0xefa0, 0xefa1) have none";
    fail(MKNET_ERROR_UNSUPPORTED, "its device %#x shows no RDMA writes: %s%s%s", part, part >= kEfaThird ? "" : device,
         part >= kEfaThird ? "" : ", and ", library);
  }
  if (a.max_rdma_size == 0 || a.max_sq_wr == 0 || a.max_rq_wr == 0)
    fail(MKNET_ERROR_UNSUPPORTED, "it says that it takes writes of up to %u bytes, %u sends and %u receives", a.max_rdma_size, a.max_sq_wr, a.max_rq_wr);
  return a;
}

void check_port(const EfaApi& api, Port& p) {
  if (p.device.vendor_id != kVendorAmazon) fail(MKNET_ERROR_UNSUPPORTED, "it is no EFA device (its PCI vendor is %#x)", p.device.vendor_id);
  if (p.attr.state != kPortActive) fail(MKNET_ERROR_UNSUPPORTED, "the port is down");
  attributes(api, p);
  if (const int rc = api.query_gid(p.context.get(), p.number, 0, &p.gid.gid); rc != 0)
    fail(MKNET_ERROR_SYSTEM, "reading its address (GID 0): %s", strerror(error_of(rc)));
  if (is_zero(p.gid.gid)) fail(MKNET_ERROR_UNSUPPORTED, "it has no address (GID 0 is empty)");
}

}  // namespace

std::vector<EfaDevice> find_efa_devices(const EfaApi& api, const char* names) {
  std::vector<EfaDevice> devices;
  for (const Port& p : find_ports(*api.verbs, names, [&api](Port& port) { check_port(api, port); }))
    devices.push_back({&api, p, attributes(api, p)});
  return devices;
}

const char* hint_of_efa(uint32_t status) {
  switch (status) {
    case kEfaFlushed: return "the queue pair had ended before";
    case kEfaUnsupported: return "the device has no such operation";
    case kEfaBadHandle: return "the address handle of the peer is none";
    case kEfaBadLocalKey: return "the own memory region does not cover it";
    case kEfaTooLong: return "the device takes no writes of this size";
    case kEfaBadAddress: return "the peer refuses the address or key: of an earlier job?";
    case kEfaAborted: return "the peer reset the connection";
    case kEfaBadQp: return "the peer's queue pair has ended";
    case kEfaNotReady: return "the peer has no receive posted";
    case kEfaUnresponsive: return "the peer does not answer any more: is its process or host gone?";
    case kEfaUnknownPeer: return "the peer has no address handle for this device: it has not connected, or has ended";
    case kEfaUnreachable: return kEfaAdvice;
    case kEfaFeatures: return "the peer's device or driver has not the same features: use the same versions on all hosts";
    default: return "";
  }
}

}  // namespace mk::net::verbs
