// Setting a network up among ranks that have an all-gather: every step is taken by all of them, and what fails on one
// fails on all, with that one's reason.
#pragma once
#include "net/opening.h"

namespace mk::net {

std::unique_ptr<Network> join(const mknet_desc& desc, const mknet_range& heap, const mknet_group& group, const Maker& make);
void rejoin(Network& net, const mknet_group& group);

}  // namespace mk::net
