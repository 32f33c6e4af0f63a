// Launch interface of the fused all-gather + GEMM kernel (host side); the plain GEMM is the same kernel with one rank.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "comm/control.h"
#include "comm/push.h"
#include "comm/schedule.h"
#include "comm/send.h"
#include "kernels/split_k.h"
#include "kernels/tile_order.h"
#include "kernels/timeline.h"

namespace mk {

enum class Element : int32_t { kBf16 = 0, kF16 = 1 };

struct AgGemmShape {
  int32_t tile_n;   // 128 or 256
  int32_t cluster;  // 1 or 2
  Element element;
};

// Everything the kernel reads; passed by value as a grid constant (the tensor maps need that).
struct AgGemmParams {
  CUtensorMap a;        // own shard: (K, rows)
  CUtensorMap landing;  // peers' shards, at their rows of the gathered A: (K, M)
  CUtensorMap b;        // (K, N)
  CUtensorMap c;        // (N, M)
  CUtensorMap own;      // as a and landing, in blocks of 128 rows, for the push role
  CUtensorMap passed;
  CUtensorMap destination[kMostCopies];  // of each copy: its rows in the peer's landing buffer, (K, rows)
  Segment segments[kMostSegments];
  Copy copies[kMostCopies];
  Send sends[kMostSends];
  Notice notices[kMostNotices];
  Raise raises[kMostRaises];
  uint64_t* flags[kMaxRanks];  // of the plan, of every rank whose memory is mapped; [rank]: the own ones
  int32_t segment_count, copy_count, send_count, notice_count, raise_count;
  TileGrid tiles;       // of a segment; its m_units follow from the rows
  StampGrid gate;       // granularity of fields of flags in this launch
  PushPlan push;
  SendSpace send;
  WaitContext wait;
  SplitK split;
  void* c_base;         // C for the tiles that TMA cannot cut off where N or a segment's rows end
  int64_t c_pitch;      // elements
  int32_t m, n;
  uint32_t units;       // units of work, K not split
  int64_t* waited;      // per CTA and role: clock cycles spent waiting; role 0: that the CTA ran
  int32_t k_steps;
  uint32_t a_bytes;     // of A in a stage; less than a tile where all segments are shorter
  int32_t merged;       // all segments make one tile of at most 128 rows, so that B is read once
};
static_assert(sizeof(AgGemmParams) <= 16384, "kernel parameters: 32764 bytes at most, and each costs time to hand over");

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
