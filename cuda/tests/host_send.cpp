// Where a kernel is in the FIFO: no slot is written that the proxy has not taken, and the proxy's word is read seldom.
#include <cstdint>

#include "comm/send.h"
#include "tests/check.h"

using namespace mk;

TEST(a_full_fifo_is_seen_and_a_free_one_not_asked) {
  constexpr uint64_t kCapacity = 8, kCommands = 1000;
  for (const uint64_t start : {uint64_t{0}, UINT64_MAX - 500}) {
    for (const uint64_t lag : {uint64_t{0}, uint64_t{3}, kCapacity}) {  // commands that the proxy leaves in the FIFO
      FifoPlace at = {start, start};
      uint64_t consumed = start, looks = 0, taken_early = 0;
      for (uint64_t i = 0; i < kCommands; ++i) {
        if (may_be_full(at, kCapacity)) {
          ++looks;
          if (at.next - consumed == kCapacity) ++consumed;  // it waits for the proxy
          at.freed = consumed;
          taken_early += may_be_full(at, kCapacity);
        }
        CHECK(at.next - consumed < kCapacity);
        ++at.next;
        while (at.next - consumed > lag) ++consumed;
      }
      CHECK(taken_early == 0);
      CHECK(looks <= kCommands / (kCapacity - lag == 0 ? 1 : kCapacity - lag) + 1);
      CHECK(looks >= (kCommands - kCapacity) / kCapacity);
    }
  }
}
