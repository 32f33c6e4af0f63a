// All-gather + GEMM in one persistent kernel: C[all rows] = gather(A shards) * B^T.
//
// Roles of a CTA:   warp 0            producer: asks the gate, loads A and B by TMA
//                   warp 1            push: sends the own shard to the peers (mover `sm`), else idle
//                   warpgroups 1, 2   consumers: wgmma, store by TMA
// Every CTA walks the tiles cta, cta + grid, ...; own rows come first, so that peers' rows arrive under them.
#include "kernels/ag_gemm.h"

#include "comm/gate.cuh"
#include "comm/push.cuh"
#include "kernels/gemm_core.cuh"
#include "kernels/split_k.cuh"

namespace mk {
namespace {

struct TilePlace {
  int32_t row;      // first row of this CTA inside the shard
  int32_t m_tile;
  int32_t n_tile;
  int32_t owner;    // rank whose rows these are
  int32_t landing;  // its place in the landing buffer
  bool own;
};

template <class Tile>
__device__ __forceinline__ TilePlace place_of(const AgGemmParams& p, uint32_t tile, uint32_t cta) {
  const TileUnit u = tile_unit(p.tiles, tile);
  TilePlace t;
  t.m_tile = u.m_unit * Tile::kCluster + static_cast<int32_t>(cta);
  t.row = t.m_tile * kTileM;
  t.n_tile = u.n_tile;
  t.owner = rank_before(p.wait.rank, u.step, p.wait.world);
  t.own = u.step == 0;
  t.landing = landing_index(p.wait.rank, t.owner);
  return t;
}

// Number of the call in flight; the epoch word stands still until the last CTA leaves.
__device__ __forceinline__ uint64_t current_epoch(const WaitContext& w) {
  return w.control[w.rank]->epoch.value + 1;
}

// The units of work of this CTA's cluster (parts of tiles): first, first + stride, ... < end.
template <class Tile>
struct UnitRange {
  uint32_t first = blockIdx.x / Tile::kCluster;
  uint32_t stride = gridDim.x / Tile::kCluster;
  uint32_t end;
  __device__ __forceinline__ explicit UnitRange(const AgGemmParams& p)
      : end(static_cast<uint32_t>(tile_units(p.tiles)) * static_cast<uint32_t>(p.split.parts)) {}
};

template <class Tile>
__device__ __forceinline__ uint32_t cta_in_cluster() {
  return Tile::kCluster == 1 ? 0 : ptx::cluster_cta_rank();
}

// Steps of B that a merged tile asks into L2 while it waits for the peers' rows.
constexpr int kPrefetchSteps = 24;

template <class Tile>
__device__ __forceinline__ void producer_role(const AgGemmParams& p, const GemmShared<Tile>& s) {
  const int lane = threadIdx.x % 32;
  const uint32_t cta = cta_in_cluster<Tile>();
  const uint64_t epoch = current_epoch(p.wait);
  const UnitRange<Tile> units(p);
  RingPosition<Tile> at;
  Gate gate;
  for (uint32_t unit = units.first; unit < units.end; unit += units.stride) {
    const SplitPart part = split_part(p.split, p.k_steps, unit);
    const TilePlace t = place_of<Tile>(p, part.tile, cta);
    const int32_t row_block = t.m_tile >> p.gate.row_shift;
    const int b_row = t.n_tile * Tile::kTileN;
    const bool gated = !t.own && row_block < p.gate.row_blocks;
    if (gated) gate.start(p.stamps + stamp_index(p.gate, t.landing, row_block, 0), t.owner);
    const CUtensorMap* a = t.own ? &p.a : &p.landing;
    const int shard = t.own ? 0 : t.landing;
    for (int32_t step = part.first_step; step < part.end_step; ++step) {
      if (gated && step >= gate.ready) gate.wait(p.wait, p.gate, epoch, step);
      if (lane == 0) {
        const int column = step * kStepK;
        const auto load_a = [&](char* to, uint64_t* full) { ptx::tma_load(to, a, full, column, t.row, shard); };
        gemm_load_step<Tile>(s, at, load_a, Tile::kABytes, &p.b, b_row, column, cta);
      }
      __syncwarp();
      at.advance();
    }
  }
  if (p.waited != nullptr && lane == 0) p.waited[blockIdx.x] = gate.waited;
}

// The producer of merged tiles: each K step takes the rows of all shards, in rank order.
template <class Tile>
__device__ __forceinline__ void merged_producer_role(const AgGemmParams& p, const GemmShared<Tile>& s) {
  const int lane = threadIdx.x % 32;
  const uint64_t epoch = current_epoch(p.wait);
  const UnitRange<Tile> units(p);
  RingPosition<Tile> at;
  Gate gate;
  for (uint32_t unit = units.first; unit < units.end; unit += units.stride) {
    const SplitPart part = split_part(p.split, p.k_steps, unit);
    const int b_row = place_of<Tile>(p, part.tile, 0).n_tile * Tile::kTileN;
    for (int32_t step = part.first_step + lane; step < min(part.end_step, part.first_step + kPrefetchSteps); step += 32)
      ptx::tma_prefetch(&p.b, step * kStepK, b_row, 0);
    for (int32_t source = 0; source < p.wait.world; ++source) {
      if (source == p.wait.rank) continue;
      gate.start(p.stamps + stamp_index(p.gate, landing_index(p.wait.rank, source), 0, 0), source);
      gate.wait_all(p.wait, p.gate, epoch, part.first_step, part.end_step);
    }
    for (int32_t step = part.first_step; step < part.end_step; ++step) {
      if (lane == 0) {
        const int column = step * kStepK;
        const auto load_a = [&](char* to, uint64_t* full) {
          for (int32_t source = 0; source < p.wait.world; ++source) {
            const bool own = source == p.wait.rank;
            ptx::tma_load(to + source * p.shard_rows * kRowBytes, own ? &p.a : &p.landing, full, column, 0,
                          own ? 0 : landing_index(p.wait.rank, source));
          }
        };
        gemm_load_step<Tile>(s, at, load_a, p.wait.world * p.shard_rows * kRowBytes, &p.b, b_row, column, 0);
      }
      __syncwarp();
      at.advance();
    }
  }
  if (p.waited != nullptr && lane == 0) p.waited[blockIdx.x] = gate.waited;
}

template <class Tile, typename T>
__device__ __forceinline__ void consumer_role(const AgGemmParams& p, const GemmShared<Tile>& s, int group) {
  const uint32_t cta = cta_in_cluster<Tile>();
  const UnitRange<Tile> units(p);
  // The push role of this CTA has the second pair of store buffers.
  const bool pushing = static_cast<int32_t>(blockIdx.x) < p.push.ctas;
  RingPosition<Tile> at;
  float sum[Tile::kTileN / 2];
  for (uint32_t unit = units.first; unit < units.end; unit += units.stride) {
    const SplitPart part = split_part(p.split, p.k_steps, unit);
    gemm_multiply<Tile, T>(s, at, group, part.end_step - part.first_step, sum);
    TilePlace t = place_of<Tile>(p, part.tile, cta);
    if (p.merged) t.owner = 0;  // the tile is all of C's rows
    const int32_t row = t.row + group * kGroupM, column = t.n_tile * Tile::kTileN;
    const int32_t rows = p.merged ? p.shard_rows * p.wait.world : p.shard_rows;
    if (row >= rows) continue;
    if constexpr (Tile::kTileN == kSplitTileN) {
      if (p.split.parts > 1) {
        const uint32_t barrier = kBarrierEpilogue + group;
        if (part.part > 0) {
          split_give(p.split, part, group, barrier, sum, current_epoch(p.wait));
          continue;
        }
        split_take(p.split, part, group, barrier, sum, current_epoch(p.wait), p.wait);
      }
    }
    if (p.n % 8 == 0 || p.n - column >= Tile::kTileN) {
      if (pushing) {
        gemm_store<Tile, T, 1>(s, group, sum, &p.c, column, row, t.owner);
      } else {
        gemm_store<Tile, T, 2>(s, group, sum, &p.c, column, row, t.owner);
      }
    } else {
      T* c = static_cast<T*>(p.c_base) + (int64_t{t.owner} * p.shard_rows + row) * p.c_pitch + column;
      gemm_store_direct<Tile, T>(sum, c, p.c_pitch, rows - row, p.n - column);
    }
  }
  if (threadIdx.x % kWarpgroup == 0) ptx::tma_store_wait_all();
}

// The last CTA of the call gives the peers their credit and advances the epoch.
__device__ __forceinline__ void leave(const WaitContext& w, uint64_t epoch) {
  Control* own = w.control[w.rank];
  uint32_t* exits = reinterpret_cast<uint32_t*>(&own->exits.value);
  if (ptx::add_acq_rel_gpu(exits, 1) + 1 != gridDim.x) return;
  *exits = 0;
  own->epoch.value = epoch;
  for (int32_t step = 1; step < w.world; ++step) {
    const int32_t peer = rank_after(w.rank, step, w.world);
    ptx::store_release_system(&w.control[peer]->credit[w.rank].value, epoch);
  }
}

template <class Tile, typename T>
__global__ void __launch_bounds__(kThreads, 1) ag_gemm_kernel(const __grid_constant__ AgGemmParams p) {
  extern __shared__ char raw_shared[];
  const GemmShared<Tile> s(raw_shared);
  if (threadIdx.x == 0) {
    gemm_init_barriers<Tile>(s);
    *s.abort_seen() = aborted(p.wait);
    ptx::tma_prefetch_map(&p.a);
    ptx::tma_prefetch_map(&p.b);
    ptx::tma_prefetch_map(&p.c);
  }
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    ptx::cluster_sync();
  }
  // Sticky abort: the CTAs of a cluster leave together, by what the first of them saw.
  if constexpr (Tile::kCluster == 1) {
    if (*s.abort_seen() != 0) return;
  } else if (ptx::load_cluster(s.abort_seen(), 0) != 0) {
    ptx::cluster_sync();
    return;
  }

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    ptx::registers_release<kProducerRegisters>();
    const int warp = threadIdx.x / 32;
    if (warp == kLoadWarp) {
      if constexpr (Tile::kTileN == kSplitTileN && Tile::kCluster == 1) {
        if (p.merged) {
          merged_producer_role<Tile>(p, s);
        } else {
          producer_role<Tile>(p, s);
        }
      } else {
        producer_role<Tile>(p, s);
      }
    } else if (warp == kPushWarp && threadIdx.x % 32 == 0 && static_cast<int32_t>(blockIdx.x) < p.push.ctas) {
      push_role(p.wait, p.push, p.gate, &p.own, p.peer, p.heap, {s.push(), s.pushed()}, current_epoch(p.wait));
    }
  } else {
    ptx::registers_claim<kConsumerRegisters>();
    consumer_role<Tile, T>(p, s, warpgroup - 1);
  }

  __syncwarp();
  // A CTA may not leave while its cluster neighbour still frees stages or multicasts into it.
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    ptx::cluster_sync();
  }
  if (threadIdx.x == 0) leave(p.wait, current_epoch(p.wait));
}

__global__ void ag_gemm_prologue_kernel(const __grid_constant__ WaitContext w) {
  Control* own = w.control[w.rank];
  if (aborted(w)) return;
  const uint64_t epoch = current_epoch(w);
  const int peer = threadIdx.x;
  if (peer < w.world && peer != w.rank) wait_flag(w, kRoleCredit, peer, &own->credit[peer].value, epoch - 1);
  for (int i = threadIdx.x; i < kStampRun; i += blockDim.x) own->stamp[i] = epoch;
}

__global__ void barrier_kernel(const __grid_constant__ WaitContext w) {
  Control* own = w.control[w.rank];
  if (aborted(w)) return;
  const uint64_t epoch = own->epoch.value + 1;
  const int peer = threadIdx.x;
  if (peer < w.world && peer != w.rank) {
    ptx::store_release_system(&w.control[peer]->credit[w.rank].value, epoch);
    wait_flag(w, kRoleBarrier, peer, &own->credit[peer].value, epoch);
  }
  __syncthreads();
  if (threadIdx.x == 0) own->epoch.value = epoch;
}

template <class Tile, typename T>
struct Kernel {
  static constexpr auto kEntry = &ag_gemm_kernel<Tile, T>;
  static cudaLaunchConfig_t config(cudaLaunchAttribute (&attributes)[2], int ctas, cudaStream_t stream) {
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = Tile::kCluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(ctas);
    c.blockDim = dim3(kThreads);
    c.dynamicSmemBytes = Tile::kSharedBytes;
    c.stream = stream;
    c.attrs = attributes;
    c.numAttrs = Tile::kCluster == 1 ? 1 : 2;
    return c;
  }
};

// Calls `f` with the kernel of a shape.
template <class F>
cudaError_t with_kernel(const AgGemmShape& s, F f) {
  const auto by_element = [&](auto tile) {
    using Tile = decltype(tile);
    return s.element == Element::kBf16 ? f(Kernel<Tile, __nv_bfloat16>{}, tile) : f(Kernel<Tile, __half>{}, tile);
  };
  if (s.tile_n == 256) return s.cluster == 2 ? by_element(GemmTile<256, 2>{}) : by_element(GemmTile<256, 1>{});
  return s.cluster == 2 ? by_element(GemmTile<128, 2>{}) : by_element(GemmTile<128, 1>{});
}

}  // namespace

cudaError_t ag_gemm_prepare(const AgGemmShape& shape) {
  cudaFuncAttributes unused;
  if (cudaError_t e = cudaFuncGetAttributes(&unused, ag_gemm_prologue_kernel)) return e;
  if (cudaError_t e = cudaFuncGetAttributes(&unused, barrier_kernel)) return e;
  return with_kernel(shape, [](auto kernel, auto tile) {
    return cudaFuncSetAttribute(kernel.kEntry, cudaFuncAttributeMaxDynamicSharedMemorySize, decltype(tile)::kSharedBytes);
  });
}

cudaError_t ag_gemm_resident(const AgGemmShape& shape, int* ctas) {
  return with_kernel(shape, [&](auto kernel, auto tile) {
    using Tile = decltype(tile);
    int device = 0, sms = 0, per_sm = 0;
    if (cudaError_t e = cudaGetDevice(&device)) return e;
    if (cudaError_t e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)) return e;
    if (cudaError_t e =
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel.kEntry, kThreads, Tile::kSharedBytes))
      return e;
    *ctas = per_sm * sms;
    if (Tile::kCluster > 1 && *ctas > 0) {
      cudaLaunchAttribute attributes[2];
      cudaLaunchConfig_t c = kernel.config(attributes, *ctas / Tile::kCluster * Tile::kCluster, nullptr);
      int clusters = 0;
      if (cudaError_t e = cudaOccupancyMaxActiveClusters(&clusters, kernel.kEntry, &c)) return e;
      if (clusters * Tile::kCluster < *ctas) *ctas = clusters * Tile::kCluster;
    }
    return cudaSuccess;
  });
}

cudaError_t ag_gemm_launch(const AgGemmShape& shape, const AgGemmParams& params, int ctas, cudaStream_t stream) {
  return with_kernel(shape, [&](auto kernel, auto) {
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t c = kernel.config(attributes, ctas, stream);
    return cudaLaunchKernelEx(&c, kernel.kEntry, params);
  });
}

cudaError_t ag_gemm_prologue_launch(const WaitContext& wait, cudaStream_t stream) {
  ag_gemm_prologue_kernel<<<1, kMaxRanks, 0, stream>>>(wait);
  return cudaGetLastError();
}

cudaError_t barrier_launch(const WaitContext& wait, cudaStream_t stream) {
  barrier_kernel<<<1, kMaxRanks, 0, stream>>>(wait);
  return cudaGetLastError();
}

}  // namespace mk
