#include "net/bounce.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>

namespace mk::net {

Bounce::~Bounce() {
  // A device that still writes would write into someone else's memory.
  if (used_ && !device_.settle()) return;
  if (stage_ != nullptr) free_memory(stage_, kSlots * kSlot);
  if (mirror_ != nullptr) free_memory(mirror_, mirror_bytes_);
}

char* Bounce::make(uint64_t bytes, const char* what) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) fail(MKNET_ERROR_MEMORY, "%" PRIu64 " bytes of host memory for %s: %s", bytes, what, strerror(errno));
  try {
    device_.pin(p, bytes);
  } catch (...) {
    munmap(p, bytes);
    throw;
  }
  return static_cast<char*>(p);
}

void Bounce::free_memory(char* base, uint64_t bytes) noexcept {
  device_.unpin(base);
  munmap(base, bytes);
}

Region Bounce::make_stage() {
  if (stage_ == nullptr) stage_ = make(kSlots * kSlot, "sending device memory");
  Region r;
  r.base = stage_;
  r.bytes = kSlots * kSlot;
  return r;
}

Region Bounce::make_mirror(uint64_t bytes) {
  mirror_ = make(bytes, "receiving into device memory");
  mirror_bytes_ = bytes;
  Region r;
  r.base = mirror_;
  r.bytes = bytes;
  r.writable = true;
  return r;
}

size_t Bounce::prepare(std::vector<Write>& waiting, const std::vector<Region>& regions, bool* begun) {
  uint32_t started[kSlots], n = 0, next = 0;
  for (Write& w : waiting) {
    const Region& from = regions[w.region];
    if (!from.bounced || w.bytes == 0) continue;
    while (next < kSlots && slots_[next].id != 0) ++next;
    if (next == kSlots) break;
    device_.copy(stage_ + next * kSlot, from.base + w.source, w.bytes);
    used_ = true;
    slots_[next] = {w.id, 0, false};
    w.id = uint64_t{next} << 2 | kStaged;
    w.region = kStage;
    w.source = next * kSlot;
    started[n++] = next;
  }
  if (n > 0) {
    const uint64_t ticket = device_.mark();
    for (uint32_t i = 0; i < n; ++i) slots_[started[i]].ticket = ticket;
  }
  *begun = n > 0;
  size_t ready = 0;
  for (; ready < waiting.size(); ++ready) {
    const Write& w = waiting[ready];
    if (w.region == kStage ? !copied(slots_[w.id >> 2]) : regions[w.region].bounced && w.bytes > 0) break;
  }
  return ready;
}

uint64_t Bounce::release(uint64_t slot) {
  if (slot >= kSlots || slots_[slot].id == 0) fail(MKNET_ERROR_SYSTEM, "a NIC completed a write of slot %" PRIu64 ", which is not under way", slot);
  const uint64_t id = slots_[slot].id;
  slots_[slot] = {};
  return id;
}

void Bounce::land(char* heap, uint64_t at, uint32_t rows, uint64_t bytes, uint64_t stride) {
  used_ = true;
  for (uint32_t row = 0; bytes > 0 && row < rows; ++row) device_.copy(heap + at + row * stride, mirror_ + at + row * stride, bytes);
}

void Bounce::reset() { std::fill(slots_.begin(), slots_.end(), Slot()); }

}  // namespace mk::net
