// What the ranks share besides data: the control block of an operator instance, at the same heap offset on every rank.
// Every word (but `stamp`, which copies read) has its own 128-byte line. The plan's flags lie elsewhere.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mk {

constexpr int kMaxRanks = 16;
constexpr int kStampRun = 64;  // flags that one copy of the copy engine can raise

struct alignas(128) Word {
  uint64_t value;
};

struct Control {
  Word abort;               // sticky: non-zero makes every wait end, of this call and of later ones
  Word epoch;               // calls completed on this rank; the kernel's last CTA advances it
  uint64_t stamp[kStampRun];  // epoch of the call in flight, source of the copy engine's flag copies
  Word exits;               // CTAs of the call in flight that are done
  Word record;              // claimed by the first wait that timed out
  Word met[kMaxRanks];      // [r]: barriers that rank r has come to (rank r writes it here)
};
static_assert(sizeof(Control) == (4 + kMaxRanks) * 128 + kStampRun * 8);

// Roles named in a time-out record.
enum Role : uint32_t {
  kRoleNone = 0,
  kRoleProducer = 1,
  kRolePush = 2,
  kRoleCredit = 3,
  kRoleBarrier = 4,
  kRoleSum = 5,
  kRoleSend = 6,
  kRoleNotice = 7,
  kRoles = 8
};

// Host-mapped; written by the first wait that ran out of time, `valid` last.
struct WaitRecord {
  uint64_t valid;
  uint32_t rank;
  uint32_t cta;
  uint32_t role;
  uint32_t reserved;
  uint64_t flag;  // offset of the flag in the heap
  uint64_t seen;
  uint64_t wanted;
};

// What a wait needs to know to give up.
struct WaitContext {
  Control* control[kMaxRanks];  // of all ranks whose memory is mapped, else null; [rank] is the own one
  const uint64_t* barrier_abort;  // of the context's barrier on this rank, which calls may be queued behind; null in the barrier
  WaitRecord* record;
  char* heap;
  uint64_t timeout_ns;
  int32_t rank;
  int32_t world;
};

}  // namespace mk
