// The part of libfabric that is used, declared here so that nothing of it is needed to build, and loaded at run time so
// that hosts without it lack this backend and nothing else. Most of libfabric's calls go through tables of functions that
// objects carry, so the tables are declared too, up to the last entry that is used. Layouts are those of symbol version
// FABRIC_1.3, which every libfabric since 1.9 keeps; tests/ofi_layout.cpp compares them with the real headers.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mk::net::ofi {

constexpr uint32_t kVersion = 1 << 16 | 14;  // of the interface that is asked for

// Capabilities and flags of operations.
constexpr uint64_t kMsg = 1 << 1, kRma = 1 << 2, kWrite = 1 << 9, kRemoteWrite = 1 << 13, kRemoteCqData = 1 << 17;
constexpr uint64_t kCompletion = 1 << 24, kTransmit = 1 << 11, kReceive = 1 << 10, kDeliveryComplete = 1 << 28;
constexpr uint64_t kContext = uint64_t{1} << 59, kContext2 = uint64_t{1} << 52;  // modes
// Modes of memory registration.
enum : int { kMrLocal = 1 << 2, kMrVirtAddr = 1 << 4, kMrAllocated = 1 << 5, kMrProvKey = 1 << 6, kMrEndpoint = 1 << 9 };
constexpr uint64_t kOrderWaw = 1 << 4, kOrderData = 1 << 16, kOrderRmaWaw = uint64_t{1} << 35;
constexpr uint64_t kAddressNone = ~uint64_t{0};
enum : uint32_t { kSockaddrIn = 2, kSockaddrIn6 = 3, kAddrStr = 9 };
enum : int { kProgressAuto = 1, kProgressManual = 2, kThreadSafe = 1, kManaged = 2, kEndpointRdm = 3 };
enum : int { kBusPci = 1, kLinkDown = 1 };
enum : int { kGetWait = 5, kEnable = 6 };  // control commands
enum : int { kCqFormatData = 3, kWaitNone = 0, kWaitFd = 3 };
enum : int { kErrorAvailable = 259, kErrorNoKey = 266, kErrorOverrun = 268, kErrorNoReceive = 269 };  // the others are errno's

struct Fid;
struct FidOps {
  size_t size;
  int (*close)(Fid*);
  int (*bind)(Fid*, Fid*, uint64_t flags);
  int (*control)(Fid*, int command, void* argument);
};
struct Fid {  // every object begins with one
  size_t fclass;
  void* context;
  FidOps* ops;
};

struct TxAttr {
  uint64_t caps, mode, op_flags, msg_order, comp_order;
  size_t inject_size, size, iov_limit, rma_iov_limit;
  uint32_t tclass;
};
struct RxAttr {
  uint64_t caps, mode, op_flags, msg_order, comp_order;
  size_t total_buffered_recv, size, iov_limit;
};
struct EpAttr {
  int type;
  uint32_t protocol, protocol_version;
  size_t max_msg_size, msg_prefix_size, max_order_raw_size, max_order_war_size, max_order_waw_size;
  uint64_t mem_tag_format;
  size_t tx_ctx_cnt, rx_ctx_cnt, auth_key_size;
  uint8_t* auth_key;
};
struct DomainAttr {
  Fid* domain;
  char* name;
  int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
  size_t mr_key_size, cq_data_size, cq_cnt;
};
struct FabricAttr {
  Fid* fabric;
  char* name;
  char* prov_name;
  uint32_t prov_version, api_version;
};
struct BusAttr {
  int bus_type;
  struct {
    uint16_t domain_id;
    uint8_t bus_id, device_id, function_id;
  } pci;
};
struct LinkAttr {
  char* address;
  size_t mtu, speed;
  int state;
  char* network_type;
};
struct NicAttr {
  Fid fid;
  void* device_attr;
  BusAttr* bus_attr;
  LinkAttr* link_attr;
};
struct Info {
  Info* next;
  uint64_t caps, mode;
  uint32_t addr_format;
  size_t src_addrlen, dest_addrlen;
  void *src_addr, *dest_addr;
  Fid* handle;
  TxAttr* tx_attr;
  RxAttr* rx_attr;
  EpAttr* ep_attr;
  DomainAttr* domain_attr;
  FabricAttr* fabric_attr;
  NicAttr* nic;
};

struct Domain;
struct Fabric;
struct FabricOps {
  size_t size;
  int (*domain)(Fabric*, Info*, Domain**, void* context);
  void* unused[3];
  int (*trywait)(Fabric*, Fid** fids, int count);
};
struct Fabric {
  Fid fid;
  FabricOps* ops;
};

struct AvAttr {
  int type, rx_ctx_bits;
  size_t count, ep_per_node;
  const char* name;
  void* map_addr;
  uint64_t flags;
};
struct Av;
struct AvOps {
  size_t size;
  int (*insert)(Av*, const void* address, size_t count, uint64_t* out, uint64_t flags, void* context);
  void* unused[4];
  const char* (*straddr)(Av*, const void* address, char* text, size_t* length);
};
struct Av {
  Fid fid;
  AvOps* ops;
};

struct CqAttr {
  size_t size;
  uint64_t flags;
  int format, wait_obj, signaling_vector, wait_cond;
  void* wait_set;
};
struct CqEntry {
  void* op_context;
  uint64_t flags;
  size_t len;
  void* buf;
  uint64_t data;
};
struct CqError {
  void* op_context;
  uint64_t flags;
  size_t len;
  void* buf;
  uint64_t data, tag;
  size_t olen;
  int err, prov_errno;
  void* err_data;
  size_t err_data_size;
  uint64_t spare[8];  // later interfaces have more
};
struct Cq;
struct CqOps {
  size_t size;
  ssize_t (*read)(Cq*, void* entries, size_t count);
  void* readfrom;
  ssize_t (*readerr)(Cq*, CqError*, uint64_t flags);
  void* unused[3];
  const char* (*strerror)(Cq*, int prov_errno, const void* err_data, char* text, size_t length);
};
struct Cq {
  Fid fid;
  CqOps* ops;
};

struct Mr {
  Fid fid;
  void* mem_desc;
  uint64_t key;
};
struct MrOps {
  size_t size;
  int (*reg)(Fid* domain, const void* base, size_t bytes, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, Mr**, void* context);
};

struct RmaIov {
  uint64_t addr;
  size_t len;
  uint64_t key;
};
struct MsgRma {
  const iovec* msg_iov;
  void** desc;
  size_t iov_count;
  uint64_t addr;
  const RmaIov* rma_iov;
  size_t rma_iov_count;
  void* context;
  uint64_t data;
};
struct Ep;
struct RmaOps {
  size_t size;
  void* unused[5];
  ssize_t (*writemsg)(Ep*, const MsgRma*, uint64_t flags);
};
struct CmOps {
  size_t size;
  void* setname;
  int (*getname)(Fid*, void* address, size_t* length);
};
struct Ep {
  Fid fid;
  void* ops;
  CmOps* cm;
  void* msg;
  RmaOps* rma;
};

struct DomainOps {
  size_t size;
  int (*av_open)(Domain*, AvAttr*, Av**, void* context);
  int (*cq_open)(Domain*, CqAttr*, Cq**, void* context);
  int (*endpoint)(Domain*, Info*, Ep**, void* context);
};
struct Domain {
  Fid fid;
  DomainOps* ops;
  MrOps* mr;
};

struct Api {
  std::string file;
  int (*getinfo)(uint32_t version, const char* node, const char* service, uint64_t flags, const Info* hints, Info**);
  void (*freeinfo)(Info*);
  Info* (*dupinfo)(const Info*);
  int (*fabric)(FabricAttr*, Fabric**, void* context);
  uint32_t (*version)();
  const char* (*strerror)(int error);
};

// Loads libfabric: `file` only, or, if NULL, where `efa_home` (may be NULL) and the usual installations have it. Throws
// UNSUPPORTED, with what was tried, if there is none. Signal handlers stay as they are: some of what libfabric links
// installs its own when it is loaded.
const Api& load(const char* file, const char* efa_home);

// What load() tries without a file, in order.
std::vector<std::string> places(const char* efa_home);

}  // namespace mk::net::ofi
