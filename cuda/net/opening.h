// Opening NICs within a bound: a library or a driver that does not come back is given up.
#pragma once
#include <functional>
#include <memory>

#include "net/network.h"

namespace mk::net {

using Maker = std::function<std::unique_ptr<Network>(const mknet_desc& desc)>;

// What `make` makes of `desc`. Where it takes longer than `limit_ns` (0: as long as it likes), that is an error, and the
// thread that is inside the library stays there: nothing can end its call but the end of the process. If it comes back,
// what it has opened is closed again.
std::unique_ptr<Network> open_within(uint64_t limit_ns, const mknet_desc& desc, const Maker& make);

}  // namespace mk::net
