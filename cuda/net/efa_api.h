// The part of libefa (efadv) and of the extended verbs that is used, declared here so that nothing of it is needed to
// build; what distributions ship is often older than RDMA writes. Layouts are those of the stable ABI;
// tests/efa_layout.cpp compares them with real headers, old and new.
#pragma once
#include <string>

#include "net/verbs_api.h"

namespace mk::net::verbs {

// PCI device ids by generation of the device. Later ones are not refused: the device's own capabilities decide.
enum : uint32_t { kEfaFirst = 0xefa0, kEfaSecond = 0xefa1, kEfaThird = 0xefa2, kEfaLast = 0xefa4 };

enum : int { kQpTypeDriver = 0xff };
enum : uint32_t { kEfaSrd = 0 };
enum : uint16_t { kEfaUnsolicitedReceive = 1 << 0, kEfaInlineWrite = 1 << 1 };
enum : uint32_t { kEfaHasRead = 1 << 0, kEfaHasRnrRetry = 1 << 1, kEfaHasWrite = 1 << 3, kEfaHasUnsolicited = 1 << 4 };
enum : uint32_t { kQpInitPd = 1 << 0, kQpInitSendOps = 1 << 6 };
enum : uint64_t { kSendOpWrite = 1 << 0, kSendOpWriteImmediate = 1 << 1 };
enum : uint64_t { kCqWithImmediate = 1 << 1 };
enum : int { kAttrQkey = 1 << 6 };

// What the device says about a failed work request (vendor error).
enum : uint32_t {
  kEfaOk = 0, kEfaFlushed = 1, kEfaInternal = 2, kEfaUnsupported = 3, kEfaBadHandle = 4, kEfaBadLocalKey = 5, kEfaTooLong = 6,
  kEfaBadAddress = 7, kEfaAborted = 8, kEfaBadQp = 9, kEfaNotReady = 10, kEfaBadLength = 11, kEfaBadStatus = 12, kEfaUnresponsive = 13,
  kEfaUnknownPeer = 14, kEfaUnreachable = 15, kEfaFeatures = 18
};

struct Ah {
  Context* context;
  Pd* pd;
  uint32_t handle;
};

struct QpInitEx {
  void* qp_context;
  Cq* send_cq;
  Cq* recv_cq;
  void* srq;
  QpCap cap;
  int qp_type, sq_sig_all;
  uint32_t comp_mask;
  Pd* pd;
  void* xrcd;
  uint32_t create_flags;
  uint16_t max_tso_header;
  void* rwq_ind_tbl;
  struct {
    uint8_t function, key_length;
    uint8_t* key;
    uint64_t fields;
  } hash;
  uint32_t source_qpn;
  uint64_t send_ops_flags;
};

// A queue pair that is posted to by functions, from start() to complete(), which posts all or nothing.
struct QpEx {
  Qp base;
  uint64_t comp_mask, wr_id;
  unsigned wr_flags;
  void* before_write[5];
  void (*write)(QpEx*, uint32_t rkey, uint64_t address);
  void (*write_immediate)(QpEx*, uint32_t rkey, uint64_t address, uint32_t immediate);  // network byte order
  void* sends[4];
  void (*set_address)(QpEx*, Ah*, uint32_t qp, uint32_t qkey);
  void* set_xrc;
  void (*set_inline)(QpEx*, void*, size_t);
  void* set_inline_list;
  void (*set_sge)(QpEx*, uint32_t lkey, uint64_t address, uint32_t length);
  void* set_sge_list;
  void (*start)(QpEx*);
  int (*complete)(QpEx*);
  void (*abort)(QpEx*);
};

struct CqInitEx {
  uint32_t cqe;
  void* cq_context;
  void* channel;
  uint32_t comp_vector;
  uint64_t wc_flags;
  uint32_t comp_mask, flags;
  Pd* parent_domain;
};

struct PollAttr {
  uint32_t comp_mask;
};

// A completion queue that is read by functions, from start_poll() to end_poll(). A Cq is its beginning.
struct CqEx {
  Cq base;
  uint32_t comp_mask;
  int status;
  uint64_t wr_id;
  int (*start_poll)(CqEx*, PollAttr*);
  int (*next_poll)(CqEx*);
  void (*end_poll)(CqEx*);
  int (*read_opcode)(CqEx*);
  uint32_t (*read_vendor_error)(CqEx*);
  uint32_t (*read_bytes)(CqEx*);
  uint32_t (*read_immediate)(CqEx*);  // network byte order
  uint32_t (*read_qp)(CqEx*);
  uint32_t (*read_source_qp)(CqEx*);
  unsigned (*read_flags)(CqEx*);
};

struct EfaDeviceAttr {
  uint64_t comp_mask;
  uint32_t max_sq_wr, max_rq_wr;
  uint16_t max_sq_sge, max_rq_sge, inline_buf_size;
  uint16_t inline_buf_size_ex;  // 0 before rdma-core 63
  uint32_t device_caps, max_rdma_size;
};

struct EfaQpInit {
  uint64_t comp_mask;
  uint32_t driver_qp_type;
  uint16_t flags;    // 0 before rdma-core 52
  uint8_t sl;        // 0 before rdma-core 55
  uint8_t reserved;
};

struct EfaCqInit {
  uint64_t comp_mask, wc_flags;
};

struct EfaApi {
  const Api* verbs;  // of the libibverbs that libefa is linked with
  std::string file;  // that was loaded
  int (*query_device)(Context*, EfaDeviceAttr*, uint32_t);
  Qp* (*create_qp)(Context*, QpInitEx*, EfaQpInit*, uint32_t);
  CqEx* (*create_cq)(Context*, CqInitEx*, EfaCqInit*, uint32_t);
  QpEx* (*extended)(Qp*);
  Ah* (*create_ah)(Pd*, AhAttr*);
  int (*destroy_ah)(Ah*);
  int (*query_gid)(Context*, uint8_t, int, Gid*);
};

// Loads libefa: `file`, or libefa.so.1 in the library folders of the installation at `home`, at the place of Amazon's
// installer, or at the usual places. Throws Error UNSUPPORTED that says where it was looked for. Stays loaded.
const EfaApi& load_efa(const char* file, const char* home);

}  // namespace mk::net::verbs
