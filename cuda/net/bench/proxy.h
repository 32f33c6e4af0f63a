// What the proxy of one rank costs and how fast it is there.
#pragma once

namespace bench {

void measure_proxy();

}  // namespace bench
