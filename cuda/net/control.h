// The library's own registered memory. All sizes in bytes; the table is the same on every rank.
//
//   inbox (peers write it), one part per peer:        outbox (only sent from):
//     probes   one word per lane                        one slot per command under way: its flag or its notice
//     credit   what the peer has taken from us          one credit per peer
//     notices  what commands under way are about
#pragma once
#include <cstddef>
#include <cstdint>

namespace mk::net {

constexpr uint32_t kMaxNics = 8;
constexpr uint32_t kMaxLanes = 64;      // per peer, over all NICs
constexpr uint32_t kWindow = 128;       // commands per peer that may be under way on an unordered network
constexpr uint32_t kTable = 4096;       // commands of a rank that may be under way
static_assert((kWindow & (kWindow - 1)) == 0 && (kTable & (kTable - 1)) == 0);

// What a command on an unordered network is about; its pieces carry only its number.
struct Notice {
  uint64_t sequence;  // of the command, + 1
  uint64_t target, bytes, flag, value;
  uint32_t rows, target_stride;
  uint64_t pieces;    // writes with an immediate besides this notice
  uint32_t probe;     // 1: the flag is a probe word in the inbox
  uint32_t reserved;
};
static_assert(sizeof(Notice) == 64);

// How much of what a peer sent was taken, as the receiver tells it. Every word only grows.
struct Credit {
  uint64_t base;                // commands below are complete
  uint64_t arrived[kMaxNics];   // immediates taken, by NIC
};

constexpr uint64_t kProbesAt = 0;
constexpr uint64_t kCreditAt = kProbesAt + kMaxLanes * 8;
constexpr uint64_t kNoticesAt = 1024;
constexpr uint64_t kInboxStride = kNoticesAt + kWindow * sizeof(Notice);
static_assert(kCreditAt + sizeof(Credit) <= kNoticesAt);

constexpr uint64_t kSlotBytes = 64;
constexpr uint64_t kCreditStride = 128;
static_assert(sizeof(Credit) <= kCreditStride && sizeof(Notice) <= kSlotBytes);

inline uint64_t inbox_bytes(uint32_t world) { return world * kInboxStride; }
inline uint64_t outbox_bytes(uint32_t world) { return kTable * kSlotBytes + world * kCreditStride; }
inline uint64_t slot_at(uint64_t number) { return (number & (kTable - 1)) * kSlotBytes; }
inline uint64_t credit_at(uint32_t peer) { return kTable * kSlotBytes + peer * kCreditStride; }

// The immediate: who sent, whether it is the notice, and the low bits of the command's number.
constexpr uint32_t kRankBits = 11, kSequenceBits = 20;
static_assert(kRankBits + 1 + kSequenceBits == 32);
constexpr uint32_t kMaxWorld = 1u << kRankBits;
static_assert(kWindow * 4 < (1u << kSequenceBits), "a number's low bits tell it from all that may be under way");

struct Immediate {
  uint32_t rank;
  bool notice;
  uint32_t low;
};
inline uint32_t pack(uint32_t rank, bool notice, uint64_t sequence) {
  return rank << (kSequenceBits + 1) | static_cast<uint32_t>(notice) << kSequenceBits |
         static_cast<uint32_t>(sequence & ((1u << kSequenceBits) - 1));
}
inline Immediate unpack(uint32_t imm) {
  return {imm >> (kSequenceBits + 1), ((imm >> kSequenceBits) & 1) != 0, imm & ((1u << kSequenceBits) - 1)};
}

}  // namespace mk::net
