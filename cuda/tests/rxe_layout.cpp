// Compares net/verbs_api.h with the headers of rdma-core; compiled where those are installed. Nothing to run.
#include <infiniband/verbs.h>
#undef ibv_query_port

#include <cstddef>

#include "net/verbs_api.h"
#include "tests/layout.h"

SAME_SIZE(Device, ibv_device);
SAME(Device, transport_type, ibv_device, transport_type);
SAME(Device, name, ibv_device, name);
SAME(Device, ibdev_path, ibv_device, ibdev_path);
SAME_SIZE(DeviceAttr, ibv_device_attr);
SAME(DeviceAttr, vendor_id, ibv_device_attr, vendor_id);
SAME(DeviceAttr, max_qp_wr, ibv_device_attr, max_qp_wr);
SAME(DeviceAttr, max_cqe, ibv_device_attr, max_cqe);
SAME(DeviceAttr, max_qp_rd_atom, ibv_device_attr, max_qp_rd_atom);
SAME(DeviceAttr, max_qp_init_rd_atom, ibv_device_attr, max_qp_init_rd_atom);
SAME(DeviceAttr, max_pkeys, ibv_device_attr, max_pkeys);
SAME(DeviceAttr, phys_port_cnt, ibv_device_attr, phys_port_cnt);
SAME_SIZE(PortAttr, ibv_port_attr);
SAME(PortAttr, gid_tbl_len, ibv_port_attr, gid_tbl_len);
SAME(PortAttr, max_msg_sz, ibv_port_attr, max_msg_sz);
SAME(PortAttr, lid, ibv_port_attr, lid);
SAME(PortAttr, lmc, ibv_port_attr, lmc);
SAME(PortAttr, link_layer, ibv_port_attr, link_layer);
SAME(PortAttr, flags, ibv_port_attr, flags);
SAME_SIZE(GidEntry, ibv_gid_entry);
SAME(GidEntry, gid_type, ibv_gid_entry, gid_type);
SAME(GidEntry, ndev_ifindex, ibv_gid_entry, ndev_ifindex);
SAME_SIZE(Pd, ibv_pd);
SAME_SIZE(Mr, ibv_mr);
SAME(Mr, lkey, ibv_mr, lkey);
SAME(Mr, rkey, ibv_mr, rkey);
SAME_SIZE(Cq, ibv_cq);
SAME(Cq, cqe, ibv_cq, cqe);
SAME_SIZE(Qp, ibv_qp);
SAME(Qp, qp_num, ibv_qp, qp_num);
SAME_SIZE(QpInit, ibv_qp_init_attr);
SAME(QpInit, cap, ibv_qp_init_attr, cap);
SAME(QpInit, sq_sig_all, ibv_qp_init_attr, sq_sig_all);
SAME_SIZE(AhAttr, ibv_ah_attr);
SAME(AhAttr, sgid_index, ibv_ah_attr, grh.sgid_index);
SAME(AhAttr, traffic_class, ibv_ah_attr, grh.traffic_class);
SAME(AhAttr, dlid, ibv_ah_attr, dlid);
SAME(AhAttr, port_num, ibv_ah_attr, port_num);
SAME_SIZE(QpAttr, ibv_qp_attr);
SAME(QpAttr, path_mtu, ibv_qp_attr, path_mtu);
SAME(QpAttr, dest_qp_num, ibv_qp_attr, dest_qp_num);
SAME(QpAttr, ah_attr, ibv_qp_attr, ah_attr);
SAME(QpAttr, pkey_index, ibv_qp_attr, pkey_index);
SAME(QpAttr, max_rd_atomic, ibv_qp_attr, max_rd_atomic);
SAME(QpAttr, timeout, ibv_qp_attr, timeout);
SAME(QpAttr, rnr_retry, ibv_qp_attr, rnr_retry);
SAME_SIZE(Sge, ibv_sge);
SAME_SIZE(SendWr, ibv_send_wr);
SAME(SendWr, send_flags, ibv_send_wr, send_flags);
SAME(SendWr, imm_data, ibv_send_wr, imm_data);
SAME(SendWr, wr.rdma.remote_addr, ibv_send_wr, wr.rdma.remote_addr);
SAME(SendWr, wr.rdma.rkey, ibv_send_wr, wr.rdma.rkey);
SAME_SIZE(RecvWr, ibv_recv_wr);
SAME_SIZE(Wc, ibv_wc);
SAME(Wc, imm_data, ibv_wc, imm_data);
SAME(Wc, wc_flags, ibv_wc, wc_flags);
SAME_SIZE(AsyncEvent, ibv_async_event);
SAME(AsyncEvent, event_type, ibv_async_event, event_type);
SAME_SIZE(Context, ibv_context);
SAME(Context, ops.poll_cq, ibv_context, ops.poll_cq);
SAME(Context, ops.post_send, ibv_context, ops.post_send);
SAME(Context, ops.post_recv, ibv_context, ops.post_recv);
SAME(Context, async_fd, ibv_context, async_fd);
SAME(Context, abi_compat, ibv_context, abi_compat);

static_assert(v::kPortActive == IBV_PORT_ACTIVE && v::kPortInit == IBV_PORT_INIT && v::kPortArmed == IBV_PORT_ARMED);
static_assert(v::kLinkInfiniband == IBV_LINK_LAYER_INFINIBAND && v::kLinkEthernet == IBV_LINK_LAYER_ETHERNET);
static_assert(v::kPortGrhRequired == IBV_QPF_GRH_REQUIRED);
static_assert(v::kQpInit == IBV_QPS_INIT && v::kQpRtr == IBV_QPS_RTR && v::kQpRts == IBV_QPS_RTS && v::kQpError == IBV_QPS_ERR);
static_assert(v::kQpTypeRc == IBV_QPT_RC && v::kTransportInfiniband == IBV_TRANSPORT_IB);
static_assert(v::kGidRoceV1 == IBV_GID_TYPE_ROCE_V1 && v::kGidRoceV2 == IBV_GID_TYPE_ROCE_V2 && v::kGidInfiniband == IBV_GID_TYPE_IB);
static_assert(v::kWrWrite == IBV_WR_RDMA_WRITE && v::kWrWriteImmediate == IBV_WR_RDMA_WRITE_WITH_IMM);
static_assert(v::kSignaled == IBV_SEND_SIGNALED && v::kInline == IBV_SEND_INLINE);
static_assert(v::kLocalWrite == IBV_ACCESS_LOCAL_WRITE && v::kRemoteWrite == IBV_ACCESS_REMOTE_WRITE);
static_assert(v::kRelaxedOrdering == IBV_ACCESS_RELAXED_ORDERING);
static_assert(v::kWcRecvImmediate == IBV_WC_RECV_RDMA_WITH_IMM && v::kWcWithImmediate == IBV_WC_WITH_IMM);
static_assert(v::kWcLocalLength == IBV_WC_LOC_LEN_ERR && v::kWcLocalQp == IBV_WC_LOC_QP_OP_ERR);
static_assert(v::kWcLocalProtection == IBV_WC_LOC_PROT_ERR && v::kWcFlushed == IBV_WC_WR_FLUSH_ERR);
static_assert(v::kWcRemoteRequest == IBV_WC_REM_INV_REQ_ERR && v::kWcRemoteAccess == IBV_WC_REM_ACCESS_ERR);
static_assert(v::kWcRemoteOperation == IBV_WC_REM_OP_ERR && v::kWcRetries == IBV_WC_RETRY_EXC_ERR);
static_assert(v::kWcNotReady == IBV_WC_RNR_RETRY_EXC_ERR);
static_assert(v::kAttrState == IBV_QP_STATE && v::kAttrAccess == IBV_QP_ACCESS_FLAGS && v::kAttrPkey == IBV_QP_PKEY_INDEX);
static_assert(v::kAttrPort == IBV_QP_PORT && v::kAttrAv == IBV_QP_AV && v::kAttrMtu == IBV_QP_PATH_MTU);
static_assert(v::kAttrTimeout == IBV_QP_TIMEOUT && v::kAttrRetries == IBV_QP_RETRY_CNT && v::kAttrRnr == IBV_QP_RNR_RETRY);
static_assert(v::kAttrRqPsn == IBV_QP_RQ_PSN && v::kAttrReads == IBV_QP_MAX_QP_RD_ATOMIC && v::kAttrRnrTimer == IBV_QP_MIN_RNR_TIMER);
static_assert(v::kAttrSqPsn == IBV_QP_SQ_PSN && v::kAttrDestReads == IBV_QP_MAX_DEST_RD_ATOMIC && v::kAttrDest == IBV_QP_DEST_QPN);
static_assert(v::kEventCq == IBV_EVENT_CQ_ERR && v::kEventQpFatal == IBV_EVENT_QP_FATAL && v::kEventQpRequest == IBV_EVENT_QP_REQ_ERR);
static_assert(v::kEventQpAccess == IBV_EVENT_QP_ACCESS_ERR && v::kEventDeviceFatal == IBV_EVENT_DEVICE_FATAL);
static_assert(v::kEventPortActive == IBV_EVENT_PORT_ACTIVE && v::kEventPortError == IBV_EVENT_PORT_ERR);
static_assert(v::kEventLid == IBV_EVENT_LID_CHANGE && v::kEventPkey == IBV_EVENT_PKEY_CHANGE && v::kEventGid == IBV_EVENT_GID_CHANGE);
