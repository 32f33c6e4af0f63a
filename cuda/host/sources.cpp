#include "host/sources.h"

#include <unistd.h>

#include "host/error.h"
#include "net/memory.h"

namespace mk {

mknet_range device_range(const Driver& driver, const void* base, uint64_t bytes) {
  mknet_range r;
  MKNET_INIT(&r);
  r.base = const_cast<void*>(base);
  r.bytes = bytes;
  r.memory = MKNET_DEVICE;
  r.fd = -1;
  if (driver.range_handle == nullptr) return r;
  const net::Pages pages = net::pages_around(reinterpret_cast<uintptr_t>(base), bytes, static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  int fd = -1;
  // Without it the NIC tries nvidia-peermem, and pinned memory after that; both are said in what describes the network.
  if (driver.range_handle(&fd, pages.base, pages.bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) != CUDA_SUCCESS) return r;
  r.fd = fd;
  r.fd_offset = pages.offset;
  return r;
}

SourceRegions::Place SourceRegions::find(const void* memory) {
  const uint64_t at = reinterpret_cast<uintptr_t>(memory);
  if (memory == nullptr) return {};
  if (at >= heap_ && at - heap_ < heap_bytes_) return {0, at - heap_};
  CUdeviceptr base = 0;
  size_t bytes = 0;
  driver_.check(driver_.address_range(&base, &bytes, at), "finding the allocation of an operand");
  unsigned long long id = 0;
  driver_.check(driver_.pointer_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at), "finding the allocation of an operand");
  Known* gone = nullptr;
  for (Known& k : known_) {
    if (k.base == base && k.bytes == bytes && k.id == id) return {k.region, at - base};
    if (k.base < base + bytes && base < k.base + k.bytes) gone = &k;
  }
  mknet_range range = device_range(driver_, reinterpret_cast<void*>(base), bytes);
  if (gone != nullptr) range.replaces = 1 + gone->region;
  Known fresh = {base, bytes, id, 0};
  try {
    fresh.region = add_(range);
  } catch (...) {
    if (range.fd >= 0) close(range.fd);
    throw;
  }
  if (range.fd >= 0) close(range.fd);
  if (gone != nullptr)
    *gone = fresh;
  else
    known_.push_back(fresh);
  return {fresh.region, at - base};
}

}  // namespace mk
