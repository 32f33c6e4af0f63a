// The part of libibverbs that is used, declared here so that nothing of it is needed to build, and loaded at run time so
// that hosts without it lack this backend and nothing else. Layouts are those of its stable ABI (IBVERBS_1.1);
// tests/rxe_layout.cpp compares them with the real headers.
#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

namespace mk::net::verbs {

struct Context;
struct Qp;
struct Cq;

union Gid {
  uint8_t raw[16];
  uint64_t words[2];
};

enum : int { kPortInit = 2, kPortArmed = 3, kPortActive = 4 };
enum : uint8_t { kLinkInfiniband = 1, kLinkEthernet = 2 };
enum : uint8_t { kPortGrhRequired = 1 };
enum : int { kQpReset = 0, kQpInit = 1, kQpRtr = 2, kQpRts = 3, kQpError = 6 };
enum : int { kQpTypeRc = 2 };
enum : int { kTransportInfiniband = 0 };
enum : uint32_t { kGidInfiniband = 0, kGidRoceV1 = 1, kGidRoceV2 = 2 };
enum : uint32_t { kVendorAmazon = 0x1d0f };
enum : int { kWrWrite = 0, kWrWriteImmediate = 1 };
enum : unsigned { kSignaled = 2, kInline = 8 };
enum : int { kLocalWrite = 1, kRemoteWrite = 2, kRelaxedOrdering = 1 << 20 };
enum : int { kWcRecvImmediate = 129 };
enum : unsigned { kWcWithImmediate = 2 };
enum : int {
  kWcSuccess = 0, kWcLocalLength = 1, kWcLocalQp = 2, kWcLocalProtection = 4, kWcFlushed = 5, kWcRemoteRequest = 9,
  kWcRemoteAccess = 10, kWcRemoteOperation = 11, kWcRetries = 12, kWcNotReady = 13
};
enum : int {
  kAttrState = 1 << 0, kAttrAccess = 1 << 3, kAttrPkey = 1 << 4, kAttrPort = 1 << 5, kAttrAv = 1 << 7, kAttrMtu = 1 << 8,
  kAttrTimeout = 1 << 9, kAttrRetries = 1 << 10, kAttrRnr = 1 << 11, kAttrRqPsn = 1 << 12, kAttrReads = 1 << 13,
  kAttrRnrTimer = 1 << 15, kAttrSqPsn = 1 << 16, kAttrDestReads = 1 << 17, kAttrDest = 1 << 20
};
enum : int {
  kEventCq = 0, kEventQpFatal = 1, kEventQpRequest = 2, kEventQpAccess = 3, kEventDeviceFatal = 8, kEventPortActive = 9,
  kEventPortError = 10, kEventLid = 11, kEventPkey = 12, kEventGid = 18
};

struct Device {
  void* ops[2];
  int node_type, transport_type;
  char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};

struct DeviceAttr {
  char fw_ver[64];
  uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
  uint32_t vendor_id, vendor_part_id, hw_ver;
  int max_qp, max_qp_wr;
  unsigned device_cap_flags;
  int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
      max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
      max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay, phys_port_cnt;
};

struct PortAttr {
  int state, max_mtu, active_mtu, gid_tbl_len;
  uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
  uint16_t pkey_tbl_len, lid, sm_lid;
  uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags;
  uint16_t port_cap_flags2;
};

struct GidEntry {
  Gid gid;
  uint32_t gid_index, port_num, gid_type, ndev_ifindex;
};

struct Pd {
  Context* context;
  uint32_t handle;
};
struct Mr {
  Context* context;
  Pd* pd;
  void* addr;
  size_t length;
  uint32_t handle, lkey, rkey;
};
struct Cq {
  Context* context;
  void* channel;
  void* cq_context;
  uint32_t handle;
  int cqe;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t comp_events_completed, async_events_completed;
};
struct Qp {
  Context* context;
  void* qp_context;
  Pd* pd;
  Cq* send_cq;
  Cq* recv_cq;
  void* srq;
  uint32_t handle, qp_num;
  int state, qp_type;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t events_completed;
};

struct QpCap {
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};
struct QpInit {
  void* qp_context;
  Cq* send_cq;
  Cq* recv_cq;
  void* srq;
  QpCap cap;
  int qp_type, sq_sig_all;
};
struct AhAttr {
  Gid dgid;
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class;
  uint16_t dlid;
  uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};
struct QpAttr {
  int qp_state, cur_qp_state, path_mtu, path_mig_state;
  uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
  unsigned qp_access_flags;
  QpCap cap;
  AhAttr ah_attr, alt_ah_attr;
  uint16_t pkey_index, alt_pkey_index;
  uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
      alt_port_num, alt_timeout;
  uint32_t rate_limit;
};

struct Sge {
  uint64_t addr;
  uint32_t length, lkey;
};
struct SendWr {
  uint64_t wr_id;
  SendWr* next;
  Sge* sg_list;
  int num_sge, opcode;
  unsigned send_flags;
  uint32_t imm_data;  // network byte order
  union {
    struct {
      uint64_t remote_addr;
      uint32_t rkey;
    } rdma;
    uint64_t words[4];
  } wr;
  uint64_t rest[7];
};
struct RecvWr {
  uint64_t wr_id;
  RecvWr* next;
  Sge* sg_list;
  int num_sge;
};
struct Wc {
  uint64_t wr_id;
  int status, opcode;
  uint32_t vendor_err, byte_len, imm_data, qp_num, src_qp;
  unsigned wc_flags;
  uint16_t pkey_index, slid;
  uint8_t sl, dlid_path_bits;
};
struct AsyncEvent {
  union {
    Cq* cq;
    Qp* qp;
    int port_num;
  } element;
  int event_type;
};

struct Context {
  Device* device;
  struct {
    void* before_poll[11];
    int (*poll_cq)(Cq*, int, Wc*);
    void* between[13];
    int (*post_send)(Qp*, SendWr*, SendWr**);
    int (*post_recv)(Qp*, RecvWr*, RecvWr**);
    void* after[5];
  } ops;
  int cmd_fd, async_fd, num_comp_vectors;
  pthread_mutex_t mutex;
  void* abi_compat;
};

// The library's functions. All of rdma-core 1.1's ABI; those that may be missing are marked.
struct Api {
  Device** (*get_device_list)(int*);
  void (*free_device_list)(Device**);
  Context* (*open_device)(Device*);
  int (*close_device)(Context*);
  int (*query_device)(Context*, DeviceAttr*);
  int (*query_port)(Context*, uint8_t, PortAttr*);
  int (*query_pkey)(Context*, uint8_t, int, uint16_t*);
  ssize_t (*query_gid_table)(Context*, GidEntry*, size_t, uint32_t, size_t);
  Pd* (*alloc_pd)(Context*);
  int (*dealloc_pd)(Pd*);
  Mr* (*reg_mr)(Pd*, void*, size_t, int);
  Mr* (*reg_mr_iova2)(Pd*, void*, size_t, uint64_t, unsigned);             // may be missing
  Mr* (*reg_dmabuf_mr)(Pd*, uint64_t, size_t, uint64_t, int, int);         // may be missing
  int (*dereg_mr)(Mr*);
  Cq* (*create_cq)(Context*, int, void*, void*, int);
  int (*destroy_cq)(Cq*);
  Qp* (*create_qp)(Pd*, QpInit*);
  int (*modify_qp)(Qp*, QpAttr*, int);
  int (*query_qp)(Qp*, QpAttr*, int, QpInit*);
  int (*destroy_qp)(Qp*);
  int (*get_async_event)(Context*, AsyncEvent*);
  void (*ack_async_event)(AsyncEvent*);
  const char* (*wc_status_str)(int);
  const char* (*event_type_str)(int);
};

// Loads libibverbs (`file` or the usual names); throws Error UNSUPPORTED that says where it was looked for. Stays loaded.
const Api& load(const char* file);

// The functions of a library that is open; `file` is for the error when one that is needed is missing.
Api resolve_verbs(void* library, const char* file);
void* symbol(void* library, const char* file, const char* name, bool needed);
template <class F>
void find_symbol(void* library, const char* file, const char* name, F& f, bool needed = true) {
  f = reinterpret_cast<F>(symbol(library, file, name, needed));
}

}  // namespace mk::net::verbs
