// Our declarations of libfabric against its real headers, where they are installed (Debian: libfabric-dev).
// make ofi-layout compiles it; it holds if it compiles.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <cstddef>

#include "net/ofi_api.h"

namespace o = mk::net::ofi;

#define SAME_SIZE(ours, theirs) static_assert(sizeof(o::ours) == sizeof(theirs))
#define SAME(ours, ours_field, theirs, theirs_field)                                      \
  static_assert(offsetof(o::ours, ours_field) == offsetof(theirs, theirs_field) &&        \
                sizeof(o::ours::ours_field) == sizeof(theirs::theirs_field))

SAME_SIZE(Fid, fid);
SAME(Fid, ops, fid, ops);
SAME(FidOps, close, fi_ops, close);
SAME(FidOps, bind, fi_ops, bind);
SAME(FidOps, control, fi_ops, control);
SAME_SIZE(TxAttr, fi_tx_attr);
SAME(TxAttr, op_flags, fi_tx_attr, op_flags);
SAME(TxAttr, msg_order, fi_tx_attr, msg_order);
SAME(TxAttr, size, fi_tx_attr, size);
SAME_SIZE(RxAttr, fi_rx_attr);
SAME(RxAttr, msg_order, fi_rx_attr, msg_order);
SAME(RxAttr, comp_order, fi_rx_attr, comp_order);
SAME_SIZE(EpAttr, fi_ep_attr);
SAME(EpAttr, type, fi_ep_attr, type);
SAME(EpAttr, protocol, fi_ep_attr, protocol);
SAME(EpAttr, max_msg_size, fi_ep_attr, max_msg_size);
SAME(EpAttr, max_order_waw_size, fi_ep_attr, max_order_waw_size);
SAME(DomainAttr, name, fi_domain_attr, name);
SAME(DomainAttr, threading, fi_domain_attr, threading);
SAME(DomainAttr, control_progress, fi_domain_attr, control_progress);
SAME(DomainAttr, data_progress, fi_domain_attr, data_progress);
SAME(DomainAttr, resource_mgmt, fi_domain_attr, resource_mgmt);
SAME(DomainAttr, av_type, fi_domain_attr, av_type);
SAME(DomainAttr, mr_mode, fi_domain_attr, mr_mode);
SAME(DomainAttr, mr_key_size, fi_domain_attr, mr_key_size);
SAME(DomainAttr, cq_data_size, fi_domain_attr, cq_data_size);
SAME_SIZE(FabricAttr, fi_fabric_attr);
SAME(FabricAttr, name, fi_fabric_attr, name);
SAME(FabricAttr, prov_name, fi_fabric_attr, prov_name);
SAME_SIZE(Info, fi_info);
SAME(Info, next, fi_info, next);
SAME(Info, caps, fi_info, caps);
SAME(Info, mode, fi_info, mode);
SAME(Info, addr_format, fi_info, addr_format);
SAME(Info, src_addrlen, fi_info, src_addrlen);
SAME(Info, src_addr, fi_info, src_addr);
SAME(Info, tx_attr, fi_info, tx_attr);
SAME(Info, rx_attr, fi_info, rx_attr);
SAME(Info, ep_attr, fi_info, ep_attr);
SAME(Info, domain_attr, fi_info, domain_attr);
SAME(Info, fabric_attr, fi_info, fabric_attr);
SAME(Info, nic, fi_info, nic);
SAME(NicAttr, bus_attr, fid_nic, bus_attr);
SAME(NicAttr, link_attr, fid_nic, link_attr);
SAME(BusAttr, bus_type, fi_bus_attr, bus_type);
SAME(BusAttr, pci, fi_bus_attr, attr.pci);
SAME(LinkAttr, state, fi_link_attr, state);
SAME(LinkAttr, speed, fi_link_attr, speed);
SAME(FabricOps, domain, fi_ops_fabric, domain);
SAME(FabricOps, trywait, fi_ops_fabric, trywait);
SAME(Fabric, ops, fid_fabric, ops);
SAME_SIZE(AvAttr, fi_av_attr);
SAME(AvAttr, type, fi_av_attr, type);
SAME(AvAttr, count, fi_av_attr, count);
SAME(AvOps, insert, fi_ops_av, insert);
SAME(AvOps, straddr, fi_ops_av, straddr);
SAME(Av, ops, fid_av, ops);
SAME_SIZE(CqAttr, fi_cq_attr);
SAME(CqAttr, size, fi_cq_attr, size);
SAME(CqAttr, format, fi_cq_attr, format);
SAME(CqAttr, wait_obj, fi_cq_attr, wait_obj);
SAME_SIZE(CqEntry, fi_cq_data_entry);
SAME(CqEntry, flags, fi_cq_data_entry, flags);
SAME(CqEntry, data, fi_cq_data_entry, data);
SAME(CqError, op_context, fi_cq_err_entry, op_context);
SAME(CqError, err, fi_cq_err_entry, err);
SAME(CqError, prov_errno, fi_cq_err_entry, prov_errno);
SAME(CqError, err_data, fi_cq_err_entry, err_data);
SAME(CqError, err_data_size, fi_cq_err_entry, err_data_size);
static_assert(sizeof(o::CqError) >= sizeof(fi_cq_err_entry) + 64);
SAME(CqOps, read, fi_ops_cq, read);
SAME(CqOps, readerr, fi_ops_cq, readerr);
SAME(CqOps, strerror, fi_ops_cq, strerror);
SAME(Cq, ops, fid_cq, ops);
SAME_SIZE(Mr, fid_mr);
SAME(Mr, mem_desc, fid_mr, mem_desc);
SAME(Mr, key, fid_mr, key);
SAME(MrOps, reg, fi_ops_mr, reg);
SAME_SIZE(RmaIov, fi_rma_iov);
SAME(RmaIov, len, fi_rma_iov, len);
SAME(RmaIov, key, fi_rma_iov, key);
SAME_SIZE(MsgRma, fi_msg_rma);
SAME(MsgRma, desc, fi_msg_rma, desc);
SAME(MsgRma, addr, fi_msg_rma, addr);
SAME(MsgRma, rma_iov, fi_msg_rma, rma_iov);
SAME(MsgRma, context, fi_msg_rma, context);
SAME(MsgRma, data, fi_msg_rma, data);
SAME(RmaOps, writemsg, fi_ops_rma, writemsg);
SAME(CmOps, getname, fi_ops_cm, getname);
SAME(Ep, cm, fid_ep, cm);
SAME(Ep, rma, fid_ep, rma);
SAME(DomainOps, av_open, fi_ops_domain, av_open);
SAME(DomainOps, cq_open, fi_ops_domain, cq_open);
SAME(DomainOps, endpoint, fi_ops_domain, endpoint);
SAME_SIZE(Domain, fid_domain);
SAME(Domain, ops, fid_domain, ops);
SAME(Domain, mr, fid_domain, mr);

static_assert(FI_VERSION_GE(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), o::kVersion));
static_assert(o::kMsg == FI_MSG && o::kRma == FI_RMA && o::kWrite == FI_WRITE && o::kRemoteWrite == FI_REMOTE_WRITE);
static_assert(o::kRemoteCqData == FI_REMOTE_CQ_DATA && o::kCompletion == FI_COMPLETION && o::kTransmit == FI_TRANSMIT);
static_assert(o::kReceive == FI_RECV && o::kDeliveryComplete == FI_DELIVERY_COMPLETE);
static_assert(o::kContext == FI_CONTEXT && o::kContext2 == FI_CONTEXT2);
static_assert(o::kMrLocal == FI_MR_LOCAL && o::kMrVirtAddr == FI_MR_VIRT_ADDR && o::kMrAllocated == FI_MR_ALLOCATED);
static_assert(o::kMrProvKey == FI_MR_PROV_KEY && o::kMrEndpoint == FI_MR_ENDPOINT);
static_assert(o::kOrderWaw == FI_ORDER_WAW && o::kOrderRmaWaw == FI_ORDER_RMA_WAW && o::kOrderData == FI_ORDER_DATA);
static_assert(o::kAddressNone == FI_ADDR_NOTAVAIL && o::kSockaddrIn == FI_SOCKADDR_IN && o::kSockaddrIn6 == FI_SOCKADDR_IN6 &&
              o::kAddrStr == FI_ADDR_STR);
static_assert(o::kProgressAuto == FI_PROGRESS_AUTO && o::kProgressManual == FI_PROGRESS_MANUAL);
static_assert(o::kThreadSafe == FI_THREAD_SAFE && o::kManaged == FI_RM_ENABLED && o::kEndpointRdm == FI_EP_RDM);
static_assert(o::kBusPci == FI_BUS_PCI && o::kLinkDown == FI_LINK_DOWN && o::kEnable == FI_ENABLE && o::kGetWait == FI_GETWAIT);
static_assert(o::kCqFormatData == FI_CQ_FORMAT_DATA && o::kWaitNone == FI_WAIT_NONE && o::kWaitFd == FI_WAIT_FD);
static_assert(o::kErrorAvailable == FI_EAVAIL && o::kErrorNoKey == FI_ENOKEY && o::kErrorOverrun == FI_EOVERRUN);
static_assert(o::kErrorNoReceive == FI_ENORX);
