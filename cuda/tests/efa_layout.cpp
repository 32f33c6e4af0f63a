// Compares net/efa_api.h with the headers of rdma-core, old or new; compiled where those are installed. Nothing to run.
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <type_traits>

#include "net/efa_api.h"
#include "tests/layout.h"


// A field that only newer headers have: true there if it is where ours is, and where there is none.
#define NEWER(name, ours, ours_field, theirs_field)                                                            \
  template <class T, class = void>                                                                             \
  struct name : std::true_type {};                                                                             \
  template <class T>                                                                                           \
  struct name<T, std::void_t<decltype(T::theirs_field)>>                                                       \
      : std::bool_constant<offsetof(T, theirs_field) == offsetof(v::ours, ours_field) &&                       \
                           sizeof(T::theirs_field) == sizeof(v::ours::ours_field)> {}

SAME_SIZE(Ah, ibv_ah);
SAME_SIZE(QpInitEx, ibv_qp_init_attr_ex);
SAME(QpInitEx, cap, ibv_qp_init_attr_ex, cap);
SAME(QpInitEx, qp_type, ibv_qp_init_attr_ex, qp_type);
SAME(QpInitEx, comp_mask, ibv_qp_init_attr_ex, comp_mask);
SAME(QpInitEx, pd, ibv_qp_init_attr_ex, pd);
SAME(QpInitEx, hash, ibv_qp_init_attr_ex, rx_hash_conf);
SAME(QpInitEx, send_ops_flags, ibv_qp_init_attr_ex, send_ops_flags);
static_assert(sizeof(v::QpEx) <= sizeof(ibv_qp_ex));
SAME(QpEx, wr_id, ibv_qp_ex, wr_id);
SAME(QpEx, wr_flags, ibv_qp_ex, wr_flags);
SAME(QpEx, write, ibv_qp_ex, wr_rdma_write);
SAME(QpEx, write_immediate, ibv_qp_ex, wr_rdma_write_imm);
SAME(QpEx, set_address, ibv_qp_ex, wr_set_ud_addr);
SAME(QpEx, set_inline, ibv_qp_ex, wr_set_inline_data);
SAME(QpEx, set_sge, ibv_qp_ex, wr_set_sge);
SAME(QpEx, start, ibv_qp_ex, wr_start);
SAME(QpEx, complete, ibv_qp_ex, wr_complete);
SAME(QpEx, abort, ibv_qp_ex, wr_abort);
SAME_SIZE(CqInitEx, ibv_cq_init_attr_ex);
SAME(CqInitEx, cqe, ibv_cq_init_attr_ex, cqe);
SAME(CqInitEx, wc_flags, ibv_cq_init_attr_ex, wc_flags);
SAME(CqInitEx, comp_mask, ibv_cq_init_attr_ex, comp_mask);
SAME(CqInitEx, parent_domain, ibv_cq_init_attr_ex, parent_domain);
SAME_SIZE(PollAttr, ibv_poll_cq_attr);
static_assert(sizeof(v::CqEx) <= sizeof(ibv_cq_ex));
static_assert(offsetof(v::CqEx, base) + offsetof(v::Cq, cqe) == offsetof(ibv_cq_ex, cqe));
SAME(CqEx, status, ibv_cq_ex, status);
SAME(CqEx, wr_id, ibv_cq_ex, wr_id);
SAME(CqEx, start_poll, ibv_cq_ex, start_poll);
SAME(CqEx, next_poll, ibv_cq_ex, next_poll);
SAME(CqEx, end_poll, ibv_cq_ex, end_poll);
SAME(CqEx, read_opcode, ibv_cq_ex, read_opcode);
SAME(CqEx, read_vendor_error, ibv_cq_ex, read_vendor_err);
SAME(CqEx, read_immediate, ibv_cq_ex, read_imm_data);
SAME(CqEx, read_flags, ibv_cq_ex, read_wc_flags);

SAME_SIZE(EfaDeviceAttr, efadv_device_attr);
SAME(EfaDeviceAttr, max_sq_wr, efadv_device_attr, max_sq_wr);
SAME(EfaDeviceAttr, max_rq_wr, efadv_device_attr, max_rq_wr);
SAME(EfaDeviceAttr, inline_buf_size, efadv_device_attr, inline_buf_size);
SAME(EfaDeviceAttr, device_caps, efadv_device_attr, device_caps);
SAME(EfaDeviceAttr, max_rdma_size, efadv_device_attr, max_rdma_size);
NEWER(InlineEx, EfaDeviceAttr, inline_buf_size_ex, inline_buf_size_ex);
static_assert(InlineEx<efadv_device_attr>::value);
static_assert(sizeof(v::EfaQpInit) == 16 && sizeof(v::EfaQpInit) <= sizeof(efadv_qp_init_attr));
SAME(EfaQpInit, driver_qp_type, efadv_qp_init_attr, driver_qp_type);
NEWER(Flags, EfaQpInit, flags, flags);
NEWER(ServiceLevel, EfaQpInit, sl, sl);
static_assert(Flags<efadv_qp_init_attr>::value && ServiceLevel<efadv_qp_init_attr>::value);
static_assert(sizeof(v::EfaCqInit) <= sizeof(efadv_cq_init_attr));
SAME(EfaCqInit, wc_flags, efadv_cq_init_attr, wc_flags);

static_assert(v::kQpTypeDriver == IBV_QPT_DRIVER && v::kEfaSrd == EFADV_QP_DRIVER_TYPE_SRD);
static_assert(v::kEfaHasRead == EFADV_DEVICE_ATTR_CAPS_RDMA_READ && v::kEfaHasRnrRetry == EFADV_DEVICE_ATTR_CAPS_RNR_RETRY);
static_assert(v::kQpInitPd == IBV_QP_INIT_ATTR_PD && v::kQpInitSendOps == IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
static_assert(v::kSendOpWrite == IBV_QP_EX_WITH_RDMA_WRITE && v::kSendOpWriteImmediate == IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
static_assert(v::kCqWithImmediate == IBV_WC_EX_WITH_IMM && v::kAttrQkey == IBV_QP_QKEY);

#ifdef EFADV_TEST_NEWEST  // constants that cannot be looked for; with headers of rdma-core 64 and newer
static_assert(v::kEfaHasWrite == EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE && v::kEfaHasUnsolicited == EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV);
static_assert(v::kEfaUnsolicitedReceive == EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV && v::kEfaInlineWrite == EFADV_QP_FLAGS_INLINE_WRITE);
#endif
