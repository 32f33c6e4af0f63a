// Launch interface of the fused all-gather + GEMM kernel (host side); the plain GEMM is the same kernel with one rank.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "comm/control.h"
#include "comm/push.h"
#include "comm/schedule.h"
#include "comm/send.h"
#include "kernels/split_k.h"
#include "kernels/tile_order.h"
#include "kernels/timeline.h"

namespace mk {

enum class Element : int32_t { kBf16 = 0, kF16 = 1 };

struct AgGemmTile {
  int32_t rows, columns;
  int32_t cluster;  // CTAs that share the loads of B
};

// The kernels that there are, for either element.
constexpr AgGemmTile kAgGemmTiles[] = {{64, 32, 1},   {64, 64, 1},   {128, 64, 1}, {128, 128, 1},
                                       {128, 128, 2}, {128, 256, 1}, {128, 256, 2}};
constexpr int kAgGemmTileCount = sizeof kAgGemmTiles / sizeof kAgGemmTiles[0];

// Index in kAgGemmTiles; -1: there is none.
constexpr int tile_index(const AgGemmTile& t) {
  for (int i = 0; i < kAgGemmTileCount; ++i)
    if (kAgGemmTiles[i].rows == t.rows && kAgGemmTiles[i].columns == t.columns && kAgGemmTiles[i].cluster == t.cluster) return i;
  return -1;
}

struct AgGemmShape {
  AgGemmTile tile;
  Element element;
};

// What every launch reads of its product. What stands between a CTA's start and its first load comes first and side by side: none of
// it is in a cache yet.
struct AgGemmProduct {
  uint32_t units;         // units of work, parts of K counted
  int32_t k_steps;
  TileGrid tiles;
  uint32_t a_bytes;       // of A in a K step; less than a tile where all segments are shorter
  int32_t m, n;
  void* c_base;           // C for tiles that are stored without TMA
  int64_t c_pitch;        // elements
  int64_t* waited;        // per CTA and role: clock cycles spent waiting; role 0: that the CTA ran
};

// What it reads beside that and the tables of the plan.
struct AgGemmHead : AgGemmProduct {
  SplitK split;
  int32_t merged;         // all segments make one tile, so that B is read once
  StampGrid gate;         // granularity of fields of flags in this launch
  PushPlan push;
  int32_t segment_count, copy_count, send_count, notice_count, raise_count;
  WaitContext wait;
  uint64_t* flags[kMaxRanks];  // of the plan, of every rank whose memory is mapped; [rank]: the own ones
  CUtensorMap a;          // own shard: (K, rows)
  CUtensorMap landing;    // peers' shards, at their rows of the gathered A: (K, M)
  CUtensorMap b;          // (K, N)
  CUtensorMap c;          // (N, M)
  CUtensorMap own;        // as a and landing, in blocks of 128 rows, for the push role
  CUtensorMap passed;
  SendSpace send;
};

// Everything the kernel reads; passed by value as a grid constant (the tensor maps need that).
template <int Segments, int Copies, int Sends, int Notices, int Raises>
struct AgGemmParamsOf : AgGemmHead {
  static constexpr bool kWaits = true;                       // CTAs may wait for other ranks or for one another
  static constexpr bool kNodes = Sends > 0 || Notices > 0;   // and reach other nodes
  Segment segments[Segments];
  Raise raises[Raises];
  Copy copies[Copies];
  CUtensorMap destination[Copies];  // of each copy: its rows in the peer's landing buffer, (K, rows)
  Send sends[std::max(Sends, 1)];
  Notice notices[std::max(Notices, 1)];

  // Takes the tables of `from` over if there is room for them.
  template <class From>
  bool take(const From& from) {
    if (from.segment_count > Segments || from.copy_count > Copies || from.send_count > Sends || from.notice_count > Notices ||
        from.raise_count > Raises)
      return false;
    static_cast<AgGemmHead&>(*this) = from;
    std::copy_n(from.segments, from.segment_count, segments);
    std::copy_n(from.raises, from.raise_count, raises);
    std::copy_n(from.copies, from.copy_count, copies);
    std::copy_n(from.destination, from.copy_count, destination);
    std::copy_n(from.sends, from.send_count, sends);
    std::copy_n(from.notices, from.notice_count, notices);
    return true;
  }
};

// As the host makes them, and those that most launches of one node are given. Each kernel is built for both and for AgGemmAlone: code
// that a launch never runs was measured to lengthen it, and 11 KB of parameters take half a microsecond longer to hand over than 3
// (docs/results.md).
using AgGemmParams = AgGemmParamsOf<kMostSegments, kMostCopies, kMostSends, kMostNotices, kMostRaises>;
using AgGemmFewParams = AgGemmParamsOf<8, 7, 0, 0, 16>;

// One rank that splits no K: its CTAs wait for nobody, and nobody for them.
struct AgGemmAlone : AgGemmProduct {
  static constexpr bool kWaits = false, kNodes = false;
  Segment segments[1];
  CUtensorMap a, b, c;

  // Takes `from` over if it is such a launch.
  bool take(const AgGemmParams& from) {
    if (from.wait.world != 1 || from.split.parts.by != 1 || from.segment_count != 1) return false;
    if (from.segments[0].flag != kNoFlag || from.segments[0].own_row < 0) return false;
    static_cast<AgGemmProduct&>(*this) = from;
    segments[0] = from.segments[0];
    a = from.a, b = from.b, c = from.c;
    return true;
  }
};
static_assert(sizeof(AgGemmParams) <= 16384 && sizeof(AgGemmFewParams) <= 4096 && sizeof(AgGemmAlone) <= 512,
              "kernel parameters; a launch takes 32764 bytes");

// What the prologue of a copy-engine call waits for.
struct CopyCredits {
  FlagWait free[kMostCopies];
  int32_t count;
  const uint64_t* flags;
  int64_t* waited;
};

// Loads the kernels of this shape and allows their shared memory; must have run before ranks depend on one another.
cudaError_t ag_gemm_prepare(const AgGemmShape& shape);

// CTAs that can be resident at once on the current device.
cudaError_t ag_gemm_resident(const AgGemmShape& shape, int* ctas);

cudaError_t ag_gemm_launch(const AgGemmShape& shape, const AgGemmParams& params, int ctas, cudaStream_t stream);

// The same by the kernels that record what they do; bf16 only.
cudaError_t ag_gemm_timeline_prepare(const AgGemmShape& shape);
cudaError_t ag_gemm_timeline_launch(const AgGemmShape& shape, const AgGemmParams& params, const Timeline& timeline, int ctas,
                                    cudaStream_t stream);

// One CTA before a copy-engine call: sets the stamp, then waits until the peers have read their landing buffers.
cudaError_t ag_gemm_prologue_launch(const WaitContext& wait, const CopyCredits& credits, cudaStream_t stream);

// Device-side barrier of all ranks.
cudaError_t barrier_launch(const WaitContext& wait, cudaStream_t stream);

}  // namespace mk
