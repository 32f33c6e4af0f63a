// The backends by name.
#pragma once
#include <memory>
#include <vector>

#include "net/memory.h"
#include "net/nic.h"

namespace mk::net {

// The NICs of the backend that `desc` names, in the order of rails; throws Error UNSUPPORTED, with what is missing, when
// there are none.
std::vector<std::unique_ptr<Nic>> open_nics(const mknet_desc& desc, const Device& device);

}  // namespace mk::net
