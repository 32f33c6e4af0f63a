// Launch interface of the fused all-gather + GEMM kernel (host side); the plain GEMM is the same kernel with one rank.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "comm/control.h"
#include "comm/push.h"
#include "kernels/split_k.h"
#include "kernels/tile_order.h"

namespace mk {

enum class Element : int32_t { kBf16 = 0, kF16 = 1 };

struct AgGemmShape {
  int32_t tile_n;   // 128 or 256
  int32_t cluster;  // 1 or 2
  Element element;
};

// Everything the kernel reads; passed by value as a grid constant (the tensor maps need that).
struct AgGemmParams {
  CUtensorMap a;        // own shard:      (K, rows, 1)
  CUtensorMap landing;  // peers' shards:  (K, rows, world - 1)
  CUtensorMap own;      // own shard in blocks of 128 rows, for the push role
  CUtensorMap b;        // (K, N, 1)
  CUtensorMap c;        // (N, rows, world): a shard's last tile cannot reach into the next shard
  CUtensorMap peer[kMaxRanks];  // the own shard's place in each peer's landing buffer: (K, rows, 1)
  char* heap[kMaxRanks];
  TileGrid tiles;
  StampGrid gate;       // granularity at which arrival is announced
  PushPlan push;
  WaitContext wait;
  SplitK split;
  void* c_base;         // C for the tiles that TMA cannot cut off where N ends
  int64_t c_pitch;      // elements
  int32_t n;
  int32_t shard_rows;
  uint64_t* stamps;     // own flags
  int64_t* waited;      // per CTA: cycles the producer spent at gates; null: not wanted
  int32_t k_steps;
  int32_t merged;       // all shards make one tile of at most 128 rows: B is read once
};
static_assert(sizeof(AgGemmParams) <= 4096, "kernel parameters");

// Loads the kernels of this shape and allows their shared memory; must have run before ranks depend on one another.
cudaError_t ag_gemm_prepare(const AgGemmShape& shape);

// CTAs that can be resident at once on the current device.
cudaError_t ag_gemm_resident(const AgGemmShape& shape, int* ctas);

cudaError_t ag_gemm_launch(const AgGemmShape& shape, const AgGemmParams& params, int ctas, cudaStream_t stream);

// One CTA before a copy-engine call: sets the stamp, then waits until every peer has read its landing buffer.
cudaError_t ag_gemm_prologue_launch(const WaitContext& wait, cudaStream_t stream);

// Device-side barrier of all ranks.
cudaError_t barrier_launch(const WaitContext& wait, cudaStream_t stream);

}  // namespace mk
