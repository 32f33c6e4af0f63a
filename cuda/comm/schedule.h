// A rank's plan for one launch, in numbers: what the host evaluates from the plan's formulas (host/ag_gemm_plan.h) and
// the kernel walks. Rows count in the whole matrix, flags in words from the start of the operator's flags, which are at
// the same heap offset on every rank.
#pragma once
#include <cstdint>

#include "kernels/tile_order.h"

namespace mk {

constexpr int kMostSegments = 64;
constexpr int kMostCopies = 32;   // carried by SMs; the copy engine takes any number
constexpr int kMostSends = 32;
constexpr int kMostNotices = 32;
constexpr int kMostRaises = 96;
constexpr uint32_t kNoFlag = UINT32_MAX;

// A flag that is waited for: passes when it is at least count * (epoch - lag).
struct FlagWait {
  uint32_t flag;  // kNoFlag: nothing to wait for
  uint16_t count;
  uint16_t lag;
};

// Rows of C from one source, in the order in which they are computed.
struct Segment {
  uint32_t end;       // units of work of all segments up to this one, K not split
  int32_t row, rows;  // of C and of the landing buffer
  int32_t own_row;    // of the own shard; negative: the rows come from a peer
  uint32_t flag;      // raised as they arrive
  uint32_t field;     // 1: a field of flags, 0: one
  Divisor last_group; // of the order of its tiles
};

// Rows for a peer of the node, in the order in which they are sent.
struct Copy {
  int32_t peer;
  int32_t row, rows;  // of the peer's landing buffer
  int32_t own_row;    // of the own shard; negative: passed on from the own landing buffer
  FlagWait free;      // the peers have read what the call before brought there
  uint32_t arrived;   // own flag of rows that are passed on
  uint32_t arrived_field;
  uint32_t raise;     // field at the peer
  uint32_t reserved;
};

// Rows of the own shard for a rank of another node, with a stamp that follows them.
struct Send {
  int32_t peer;
  int32_t row, rows;  // of the peer's landing buffer
  int32_t own_row;    // of the own shard
  FlagWait credit;    // the readers there are done with what the call before brought
  uint32_t raise;     // stamp at the peer
};

// Stamps at a rank of another node, at the end of a call and once own flags have come: flag i of `wait` and on for stamp i
// of `raise` and on.
struct Notice {
  int32_t peer;
  FlagWait wait;
  uint32_t raise;
  uint32_t words;
};

// A flag raised at the end of a call.
struct Raise {
  int32_t rank;
  uint32_t flag;
  uint32_t add;  // 1: a counter gets one more, 0: a stamp gets the epoch
};

}  // namespace mk
