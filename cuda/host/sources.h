// Device memory for NICs: its dma-bufs, and the regions of the network in which operands lie.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "host/driver.h"
#include "include/mknet.h"

namespace mk {

// A range as NICs want it: with a dma-buf of the pages around it where the driver gives one. The caller closes its fd.
mknet_range device_range(const Driver& driver, const void* base, uint64_t bytes);

// Where operands lie. An allocation is registered when something in it is first sent, and again when its addresses have
// got to another one since.
class SourceRegions {
 public:
  using Register = std::function<uint32_t(const mknet_range& range)>;
  struct Place {
    uint32_t region = 0;
    uint64_t offset = 0;
  };

  // `add` registers a range and returns its number.
  SourceRegions(const Driver& driver, const void* heap, uint64_t heap_bytes, Register add)
      : driver_(driver), heap_(reinterpret_cast<uintptr_t>(heap)), heap_bytes_(heap_bytes), add_(std::move(add)) {}

  Place find(const void* memory);  // throws Error

 private:
  struct Known {
    uint64_t base, bytes;
    unsigned long long id;  // of the allocation
    uint32_t region;
  };
  const Driver& driver_;
  const uint64_t heap_, heap_bytes_;
  const Register add_;
  std::vector<Known> known_;
};

}  // namespace mk
