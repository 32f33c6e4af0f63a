// Roles that reach other nodes: commands into the FIFO of the proxy thread (net/fifo.h has the protocol). One thread at a
// time produces: the send role of CTA 0 while the call runs, the last CTA at its end.
#pragma once
#include "comm/send.h"
#include "comm/wait.cuh"

namespace mk {

// Waits for a word of the FIFO, which is then in `seen`. False if the job was aborted or the time is over.
__device__ __forceinline__ bool wait_fifo(const WaitContext& w, Role role, const SendSpace& s, const uint64_t* word,
                                          uint64_t wanted, uint64_t& seen) {
  WaitClock clock;
#pragma unroll 1
  while (static_cast<int64_t>((seen = ptx::load_acquire_system(word)) - wanted) < 0) {
    if (ptx::load_relaxed_system_32(&s.fifo->abort) != 0) {
      // The proxy's reason is better than any record made here: only the abort words are set.
#pragma unroll 1
      for (int r = 0; r < w.world; ++r)
        if (w.control[r] != nullptr) ptx::store_release_system(&w.control[r]->abort.value, 1);
      return false;
    }
    if (clock.expired(w, role, word, seen, wanted)) {
      ptx::store_relaxed_system_32(&s.fifo->abort, 1);  // a slot that was claimed and never filled would hold up the proxy
      return false;
    }
  }
  return true;
}

// Claims the next place in the FIFO; null if the job was aborted. Host memory is read only once as many commands were sent as
// there are slots.
__device__ __forceinline__ mknet_command* next_command(const WaitContext& w, Role role, const SendSpace& s) {
  const uint64_t position = s.place->next;
  if (may_be_full(*s.place, s.capacity)) {
    uint64_t consumed;
    if (!wait_fifo(w, role, s, &s.fifo->consumed, position + 1 - s.capacity, consumed)) return nullptr;
    s.place->freed = consumed;
  }
  return s.slots + (position & (s.capacity - 1));
}

// Hands the command over to the proxy.
__device__ __forceinline__ void push_command(const SendSpace& s, mknet_command* slot) {
  const uint64_t position = s.place->next;
  ptx::store_release_system(&slot->sequence, position + 1);
  s.place->next = position + 1;
}

// Waits until the sources of all that was sent may be written again. False as above.
__device__ __forceinline__ bool wait_sent(const WaitContext& w, const SendSpace& s) {
  uint64_t completed;
  return wait_fifo(w, kRoleSend, s, &s.fifo->completed, s.place->next, completed);
}

// One thread: all sends of the plan in their order; returns when their sources may be reused. Returns the cycles waited.
__device__ __forceinline__ int64_t send_role(const WaitContext& w, const SendSpace& s, const Send* sends, int32_t count,
                                             uint64_t epoch) {
  const uint64_t* own_flags = reinterpret_cast<const uint64_t*>(w.heap + s.flags);
  int64_t waited = 0;
#pragma unroll 1
  for (int32_t i = 0; i < count; ++i) {
    const int64_t start = clock64();
    wait_for(w, kRoleSend, own_flags, sends[i].credit, epoch);
    waited += clock64() - start;
    mknet_command* slot = aborted(w) ? nullptr : next_command(w, kRoleSend, s);
    if (slot == nullptr) return waited;
    const Send& c = sends[i];
    slot->op = MKNET_WRITE;
    slot->region = static_cast<uint8_t>(s.region);
    slot->peer = static_cast<uint16_t>(c.peer);
    slot->rows = static_cast<uint32_t>(c.rows);
    slot->source = s.source + c.own_row * s.source_pitch;
    slot->target = s.landing + c.row * s.row_bytes;
    slot->bytes = s.row_bytes;
    slot->flag = s.flags + c.raise * sizeof(uint64_t);
    slot->value = epoch;
    slot->source_stride = static_cast<uint32_t>(s.source_pitch);
    slot->target_stride = static_cast<uint32_t>(s.row_bytes);
    push_command(s, slot);
  }
  const int64_t start = clock64();
  wait_sent(w, s);
  return waited + clock64() - start;
}

// One thread, at the end of a call: writes a run of stamps. They tell of reads here, not of data that was sent, so the
// command needs no flag behind it. The words of the source stay as they are until the next call has seen it complete, and no older
// notice comes after a newer one: the send role waits for both, and where it has nothing to send, this does.
__device__ __forceinline__ void notice_role(const WaitContext& w, const SendSpace& s, const Notice* notices, int32_t count,
                                            bool sends, uint64_t epoch) {
  const uint64_t* own_flags = reinterpret_cast<const uint64_t*>(w.heap + s.flags);
  uint64_t* stamps = reinterpret_cast<uint64_t*>(w.heap + s.stamps);
  if (count > 0 && !sends && !wait_sent(w, s)) return;
#pragma unroll 1
  for (int32_t i = 0; i < count; ++i) {
    const Notice& n = notices[i];
    FlagWait wait = n.wait;
#pragma unroll 1
    for (uint32_t word = 0; word < n.words; ++word, ++wait.flag) {
      wait_for(w, kRoleNotice, own_flags, wait, epoch);
      stamps[word] = epoch;
    }
    mknet_command* slot = aborted(w) ? nullptr : next_command(w, kRoleNotice, s);
    if (slot == nullptr) return;
    slot->op = MKNET_WRITE;
    slot->region = 0;  // the heap
    slot->peer = static_cast<uint16_t>(n.peer);
    slot->rows = 1;
    slot->source = s.stamps;
    slot->target = s.flags + n.raise * sizeof(uint64_t);
    slot->bytes = n.words * sizeof(uint64_t);
    slot->flag = MKNET_NO_FLAG;
    push_command(s, slot);
  }
}

}  // namespace mk
