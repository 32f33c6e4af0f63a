// Backend emu: one host pretends to be several nodes. A software NIC that copies into the memory of peers on the same
// host, at the pace of the link that is emulated; ordered like RC queue pairs, or not, like SRD.
#pragma once
#include <memory>

#include "net/clock.h"
#include "net/memory.h"
#include "net/nic.h"

namespace mk::net {

struct EmuSettings {
  mknet_emu link = {};
  uint32_t index = 0;  // of this NIC
  uint32_t rank = 0;
  uint32_t world = 1;
  ClockRef clock;
};

std::unique_ptr<Nic> make_emu(const EmuSettings& settings, const Device& device);

}  // namespace mk::net
