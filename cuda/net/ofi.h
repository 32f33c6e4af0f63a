// Backend ofi: reliable datagram endpoints (FI_EP_RDM) of libfabric that write into memory of peers.
#pragma once
#include <memory>
#include <vector>

#include "net/nic.h"

namespace mk::net {

std::vector<std::unique_ptr<Nic>> open_ofi(const mknet_desc& desc);

}  // namespace mk::net
