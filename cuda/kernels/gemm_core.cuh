// The GEMM core: the stage ring between one producer warp and two consumer warpgroups, and the epilogue.
//
// C (128 x TileN per CTA) = A (rows, K contiguous) * B (columns, K contiguous)^T, 16-bit operands, fp32 sums.
// The two consumers take 64 rows each and never wait for one another; the producer runs ahead into the next tile, so
// loads continue under the epilogue. With a cluster of two, each CTA fetches half of the B rows for both. In narrow tiles, of 64
// rows, each consumer takes every second K step, and the first adds the second's sums to its own.
#pragma once
#include "kernels/gemm_tile.h"
#include "ptx/fence.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace mk {

template <class Tile>
struct GemmShared {
  char* base;
  __device__ __forceinline__ explicit GemmShared(char* raw)
      : base(raw + ((Tile::kAlignment - ptx::smem_address(raw) % Tile::kAlignment) % Tile::kAlignment)) {}
  __device__ __forceinline__ char* a(int stage) const { return base + Tile::kStagesAt + stage * Tile::kStageBytes; }
  __device__ __forceinline__ char* b(int stage) const { return a(stage) + Tile::kStageSteps * Tile::kABytes; }
  __device__ __forceinline__ char* store(int group, int buffer) const {
    return base + Tile::kStoreAt + (buffer * kConsumerGroups + group) * Tile::kStoreBytes;
  }
  __device__ __forceinline__ char* push() const { return store(0, 1); }
  __device__ __forceinline__ float4* sums() const { return reinterpret_cast<float4*>(store(0, 0)); }
  __device__ __forceinline__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(base + Tile::kFullAt) + stage;
  }
  __device__ __forceinline__ uint64_t* empty(int stage) const {
    return reinterpret_cast<uint64_t*>(base + Tile::kEmptyAt) + stage;
  }
  __device__ __forceinline__ uint64_t* pushed() const { return reinterpret_cast<uint64_t*>(base + Tile::kPushedAt); }
  __device__ __forceinline__ int64_t* start() const { return reinterpret_cast<int64_t*>(base + Tile::kStartAt); }
};

// Position in the ring; both sides advance it once per stage of every tile.
template <class Tile>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == Tile::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One thread, before the barriers that precede the roles (and before a barrier of the cluster, where it has more than one CTA).
// Every consumer warp of every CTA of the cluster frees a stage, because a B half lands in all of them.
template <class Tile>
__device__ __forceinline__ void gemm_init_barriers(const GemmShared<Tile>& s) {
  for (int i = 0; i < Tile::kStages; ++i) {
    ptx::mbarrier_init(s.full(i), 1);
    ptx::mbarrier_init(s.empty(i), kConsumerGroups * (kWarpgroup / 32) * Tile::kCluster);
  }
  ptx::mbarrier_init(s.pushed(), 1);
  ptx::fence_mbarrier_init();
}

// One thread: fetches the stage that begins at K step `step` into the ring. `load_a(smem, barrier, column)` issues the loads of
// one K step of A, of `a_bytes` in all. Steps past the end of K are zeros.
template <class Tile, class LoadA>
__device__ __forceinline__ void gemm_load_stage(const GemmShared<Tile>& s, const RingPosition<Tile>& at, LoadA load_a,
                                                uint32_t a_bytes, const CUtensorMap* b, int b_row, int32_t step,
                                                uint32_t cta) {
  ptx::mbarrier_wait(s.empty(at.stage), at.parity ^ 1);
  uint64_t* full = s.full(at.stage);
  ptx::mbarrier_arrive_expect(full, Tile::kStageSteps * (a_bytes + Tile::kBBytes));
#pragma unroll
  for (int i = 0; i < Tile::kStageSteps; ++i) {
    const int column = (step + i) * kStepK;
    load_a(s.a(at.stage) + i * Tile::kABytes, full, column);
    if constexpr (Tile::kCluster == 1) {
      ptx::tma_load(s.b(at.stage) + i * Tile::kBBytes, b, full, column, b_row, 0);
    } else {
      const int half = static_cast<int>(cta) * Tile::kBRowsLoaded;
      ptx::tma_load_multicast(s.b(at.stage) + half * kRowBytes, b, full, (1 << Tile::kCluster) - 1, column, b_row + half, 0);
    }
  }
}

// One thread, after its last load: returns when the consumers have read all that was fetched.
template <class Tile>
__device__ __forceinline__ void gemm_drain(const GemmShared<Tile>& s, RingPosition<Tile> at) {
#pragma unroll 1
  for (int i = 0; i < Tile::kStages; ++i) {
    ptx::mbarrier_wait(s.empty(at.stage), at.parity ^ 1);
    at.advance();
  }
}

// Each consumer warp: its reads of the stage are done, in all CTAs that the stage's B halves come from.
template <class Tile>
__device__ __forceinline__ void gemm_free_stage(const GemmShared<Tile>& s, int stage) {
  const uint32_t lane = threadIdx.x % 32;
  if constexpr (Tile::kCluster == 1) {
    if (lane == 0) ptx::mbarrier_arrive(s.empty(stage));
  } else {
    if (lane < Tile::kCluster) ptx::mbarrier_arrive_cluster(s.empty(stage), lane);
  }
}

// One consumer warpgroup: sums `stages` >= 1 stages of a tile. A stage is freed one stage late, when the wgmma that
// read it is known to be done while the next one already runs. `beside(i)` is called for each i < kStorePasses, under the
// wgmma of stage i where there is one: what it does costs no time there.
template <class Tile, typename T, class Beside>
__device__ __forceinline__ void gemm_multiply(const GemmShared<Tile>& s, RingPosition<Tile>& at, int group,
                                              int stages, float (&sum)[Tile::kTileN / 2], Beside beside) {
  const int a_at = group * (Tile::kNarrow ? Tile::kABytes : kGroupM * kRowBytes), b_at = Tile::kNarrow ? group * Tile::kBBytes : 0;
  const uint32_t a_base = ptx::wgmma_descriptor_low(ptx::smem_address(s.a(0)) + a_at);
  const uint32_t b_base = ptx::wgmma_descriptor_low(ptx::smem_address(s.b(0)) + b_at);
  int previous = 0;
  const auto multiply_stage = [&](bool first) {
    ptx::mbarrier_wait(s.full(at.stage), at.parity);
    const uint32_t a = a_base + at.stage * (Tile::kStageBytes >> 4), b = b_base + at.stage * (Tile::kStageBytes >> 4);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStepK / 16; ++k) ptx::wgmma_step<Tile::kTileN, T>(sum, a + 2 * k, b + 2 * k, !first || k > 0);
    ptx::wgmma_commit();
    if (!first) {
      ptx::wgmma_wait<1>();
      gemm_free_stage<Tile>(s, previous);
    }
    previous = at.stage;
    at.advance();
  };
  constexpr int kPeeled = Tile::kStorePasses > 0 ? Tile::kStorePasses : 1;
#pragma unroll
  for (int i = 0; i < kPeeled; ++i) {
    if (i < stages) multiply_stage(i == 0);
    if (i < Tile::kStorePasses) beside(i);
  }
#pragma unroll 1
  for (int i = kPeeled; i < stages; ++i) multiply_stage(false);
  ptx::wgmma_wait<0>();
  gemm_free_stage<Tile>(s, previous);
}

// Whether the calling warp of a consumer group has any of the `rows` of its group's 64 that exist: sums of others are not handed over.
__device__ __forceinline__ bool has_rows(int32_t rows) { return static_cast<int32_t>(threadIdx.x % kWarpgroup / 32 * 16) < rows; }

// The second consumer group of a narrow tile hands its sums to the first; `again`: not the CTA's first tile. Warps whose rows do not
// exist only meet the others.
template <class Tile>
__device__ __forceinline__ void gemm_give_sums(const GemmShared<Tile>& s, const float (&sum)[Tile::kTileN / 2], bool has_rows, bool again) {
  if (again) ptx::named_barrier(kBarrierSumsTaken, kConsumerGroups * kWarpgroup);
  float4* to = s.sums() + threadIdx.x % kWarpgroup;
  if (has_rows) {
#pragma unroll
    for (int i = 0; i < Tile::kTileN / 8; ++i)
      to[i * kWarpgroup] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  }
  ptx::named_barrier_arrive(kBarrierSumsGiven, kConsumerGroups * kWarpgroup);
}

// The first group adds them to its own; `more`: the CTA has another tile.
template <class Tile>
__device__ __forceinline__ void gemm_take_sums(const GemmShared<Tile>& s, float (&sum)[Tile::kTileN / 2], bool has_rows, bool more) {
  ptx::named_barrier(kBarrierSumsGiven, kConsumerGroups * kWarpgroup);
  const float4* from = s.sums() + threadIdx.x % kWarpgroup;
  if (has_rows) {
#pragma unroll
    for (int i = 0; i < Tile::kTileN / 8; ++i) {
      const float4 v = from[i * kWarpgroup];
      sum[4 * i] += v.x, sum[4 * i + 1] += v.y, sum[4 * i + 2] += v.z, sum[4 * i + 3] += v.w;
    }
  }
  if (more) ptx::named_barrier_arrive(kBarrierSumsTaken, kConsumerGroups * kWarpgroup);
}

template <typename T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}
template <>
__device__ __forceinline__ uint32_t pack_pair<__half>(float low, float high) {
  const __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// The 64 x TileN sums of one consumer warpgroup as pairs of 16-bit elements, on their way to (row, column) of C. A tile is
// stored while the next one is multiplied, or at once if none follows.
template <class Tile>
struct TileOutput {
  static constexpr int32_t kNothing = -1, kByTma = 0;

  uint32_t pairs[Tile::kTileN / 4];
  int32_t column, row;
  int32_t rows = kNothing;  // kByTma, or rows to store without it
};

// C for stores without TMA.
struct PlainOutput {
  void* base;     // of C, aligned to 4 bytes
  int64_t pitch;  // elements, even
  int32_t n;
};

template <class Tile, typename T>
__device__ __forceinline__ void gemm_pack(TileOutput<Tile>& out, const float (&sum)[Tile::kTileN / 2]) {
#pragma unroll
  for (int i = 0; i < Tile::kTileN / 4; ++i) out.pairs[i] = pack_pair<T>(sum[2 * i], sum[2 * i + 1]);
}

// One consumer warpgroup: writes 64 of its columns to a swizzled box.
template <class Tile>
__device__ __forceinline__ void gemm_fill_box(char* box, int pass, const uint32_t (&pairs)[Tile::kTileN / 4]) {
  const uint32_t lane = threadIdx.x % 32;
  // stmatrix.x4 takes the addresses of the rows of matrix lane/8: (rows 0-7, 8-15) x (columns 0-7, 8-15).
  const uint32_t row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  const uint32_t row_at = ptx::smem_address(box) + row * kRowBytes;
#pragma unroll
  for (int i = 0; i < Tile::kStoreColumns / 16; ++i) {
    const uint32_t* v = &pairs[pass * (Tile::kStoreColumns / 4) + i * 4];
    const uint32_t chunk = (i * 2 + lane / 16) ^ (row % 8);
    ptx::stmatrix_x4(row_at + chunk * 16, v[0], v[1], v[2], v[3]);
  }
}

// One consumer warpgroup: stores a box that it has filled, its column 0 at (row, column) of C, without TMA: a TMA store cuts a tile
// off only at multiples of 16 bytes, and not where a segment's rows end. A warp writes a row at a time.
template <class Tile>
__device__ __forceinline__ void gemm_copy_box(const char* box, const PlainOutput& c, int32_t row, int32_t column, int32_t rows) {
  constexpr int kPairs = Tile::kStoreColumns / 2;
  const int32_t pair = threadIdx.x % kPairs, columns = c.n - column - 2 * pair;  // from this thread's on
  uint16_t* to = static_cast<uint16_t*>(c.base) + row * c.pitch + column + 2 * pair;
#pragma unroll 1
  for (int32_t r = threadIdx.x % kWarpgroup / kPairs; r < rows; r += kWarpgroup / kPairs) {
    const uint32_t v = *reinterpret_cast<const uint32_t*>(box + r * kRowBytes + ((pair / 4) ^ (r % 8)) * 16 + pair % 4 * 4);
    if (columns > 1) *reinterpret_cast<uint32_t*>(to + r * c.pitch) = v;
    if (columns == 1) to[r * c.pitch] = static_cast<uint16_t>(v);
  }
}

// One consumer warpgroup, its thread 0 the one that owns the bulk groups: stores the 64 columns `pass` of a tile through a store
// buffer; with `one_buffer` always the first, else by turns.
template <class Tile>
__device__ __forceinline__ void gemm_store_box(const GemmShared<Tile>& s, int group, int pass, bool one_buffer,
                                               const TileOutput<Tile>& out, const CUtensorMap* c, const PlainOutput& plain) {
  static_assert(Tile::kStoreBuffers == 2);
  if (threadIdx.x % kWarpgroup == 0) {
    // A box that is copied commits no group, so groups do not count passes for it.
    if (one_buffer || out.rows != out.kByTma) {
      ptx::tma_store_wait_read<0>();
    } else {
      ptx::tma_store_wait_read<1>();
    }
  }
  ptx::named_barrier(kBarrierEpilogue + group, kWarpgroup);
  char* box = s.store(group, one_buffer ? 0 : pass % 2);
  gemm_fill_box<Tile>(box, pass, out.pairs);
  ptx::fence_async_shared();
  ptx::named_barrier(kBarrierEpilogue + group, kWarpgroup);
  if (out.rows != out.kByTma) {
    gemm_copy_box<Tile>(box, plain, out.row, out.column + pass * Tile::kStoreColumns, out.rows);
  } else if (threadIdx.x % kWarpgroup == 0) {
    ptx::tma_store(c, box, out.column + pass * Tile::kStoreColumns, out.row, 0);
    ptx::tma_store_commit();
  }
}

// The same for all of the CTA's last tile: nothing is loaded any more, so each box has room of its own where the group had its rows
// of A. A warp writes the 16 rows of a box that only its own part of wgmma has read, so it waits for no other; B, which neighbours in
// a cluster may still write and read, stays as it is.
template <class Tile>
__device__ __forceinline__ void gemm_store_last(const GemmShared<Tile>& s, int group, const TileOutput<Tile>& out, const CUtensorMap* c,
                                                const PlainOutput& plain) {
  static_assert(Tile::kNarrow || (Tile::kStorePasses <= Tile::kStages && Tile::kStoreBytes == kGroupM * kRowBytes));
#pragma unroll
  for (int pass = 0; pass < Tile::kStorePasses; ++pass) gemm_fill_box<Tile>(s.a(pass) + group * Tile::kStoreBytes, pass, out.pairs);
  ptx::fence_async_shared();
  ptx::named_barrier(kBarrierEpilogue + group, kWarpgroup);
  if (out.rows != out.kByTma) {
#pragma unroll 1
    for (int pass = 0; pass < Tile::kStorePasses; ++pass)
      gemm_copy_box<Tile>(s.a(pass) + group * Tile::kStoreBytes, plain, out.row, out.column + pass * Tile::kStoreColumns, out.rows);
  } else if (threadIdx.x % kWarpgroup == 0) {
#pragma unroll 1
    for (int pass = 0; pass < Tile::kStorePasses; ++pass)
      ptx::tma_store(c, s.a(pass) + group * Tile::kStoreBytes, out.column + pass * Tile::kStoreColumns, out.row, 0);
    ptx::tma_store_commit();
  }
}

template <typename T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float v) {
  return __float2half_rn(v);
}

// The sums of a narrow tile go straight to memory. `c` is the group's first element, aligned to 4 bytes as `pitch` is even; rows and
// columns past the counts are left alone.
template <class Tile, typename T>
__device__ __forceinline__ void gemm_store_direct(const float (&sum)[Tile::kTileN / 2], T* c, int64_t pitch,
                                                  int32_t rows, int32_t columns) {
  static_assert(Tile::kNarrow);
  const int32_t thread = threadIdx.x % kWarpgroup;
  const int32_t row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < Tile::kTileN / 4; ++i) {
    const int32_t r = row + i % 2 * 8, at = column + i / 2 * 8;
    T* to = c + r * pitch + at;
    if (r >= rows || at >= columns) continue;
    if (at + 1 < columns) {
      *reinterpret_cast<uint32_t*>(to) = pack_pair<T>(sum[2 * i], sum[2 * i + 1]);
    } else {
      *to = from_float<T>(sum[2 * i]);
    }
  }
}

}  // namespace mk
