// Backend ibverbs: reliable connections (RC) over InfiniBand or RoCE v2.
#pragma once
#include <memory>
#include <vector>

#include "net/clock.h"
#include "net/nic.h"

namespace mk::net {

std::vector<std::unique_ptr<Nic>> open_verbs(const mknet_desc& desc);

}  // namespace mk::net
