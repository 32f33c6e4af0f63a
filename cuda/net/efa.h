// Backend efa: Elastic Fabric Adapter by its scalable reliable datagrams (SRD). Writes come in any order, so flags come by
// immediate.
#pragma once
#include <memory>
#include <vector>

#include "net/nic.h"

namespace mk::net {

std::vector<std::unique_ptr<Nic>> open_efa(const mknet_desc& desc);

}  // namespace mk::net
