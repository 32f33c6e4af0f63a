// All-gather + GEMM in one persistent kernel: C[all rows] = gather(A shards) * B^T.
//
// Roles of a CTA:   warp 0            producer: asks the gate, loads A and B by TMA
//                   warp 1            push: sends the own shard to the peers (mover `sm`), else idle
//                   warp 2            send, in CTA 0: hands messages to other nodes to the proxy thread
//                   warp 3            reads the epoch for all roles but the producer
//                   warpgroups 1, 2   consumers: wgmma, store by TMA
// Every CTA walks the tiles cta, cta + grid, ...; own rows come first, so that peers' rows arrive under them.
#pragma once
#include "kernels/ag_gemm_instance.h"

#include "comm/gate.cuh"
#include "comm/push.cuh"
#include "comm/record.cuh"
#include "comm/send.cuh"
#include "kernels/gemm_core.cuh"
#include "kernels/split_k.cuh"

namespace mk {
namespace {

// Number of the call in flight; the epoch word stands still until the last CTA leaves.
__device__ __forceinline__ uint64_t current_epoch(const WaitContext& w) { return w.control[w.rank]->epoch.value + 1; }

// The units of work of this CTA's cluster (parts of tiles): first, first + stride, ... < end.
template <class Tile>
struct UnitRange {
  uint32_t first = blockIdx.x / Tile::kCluster;
  uint32_t stride = gridDim.x / Tile::kCluster;
  uint32_t end;
  __device__ __forceinline__ explicit UnitRange(const AgGemmParams& p)
      : end(p.units * static_cast<uint32_t>(p.split.parts)) {}
};

// The tile of a unit. Units are asked for in rising order, so the segment is found by going on from the last one.
template <class Tile>
struct TileCursor {
  int32_t segment = 0;
  uint32_t start = 0;  // first unit of the segment
  int32_t m_tile = 0;  // inside the segment
  int32_t n_tile = 0;

  __device__ __forceinline__ void move_to(const AgGemmParams& p, uint32_t tile, uint32_t cta) {
    while (tile >= p.segments[segment].end) start = p.segments[segment++].end;
    TileGrid grid = p.tiles;
    grid.m_units = (p.segments[segment].rows + kTileM * Tile::kCluster - 1) / (kTileM * Tile::kCluster);
    const TileUnit u = tile_unit(grid, tile - start);
    m_tile = u.m_unit * Tile::kCluster + static_cast<int32_t>(cta);
    n_tile = u.n_tile;
  }
};

template <class Tile>
__device__ __forceinline__ uint32_t cta_in_cluster() {
  return Tile::kCluster == 1 ? 0 : ptx::cluster_cta_rank();
}

// What mk_ag_gemm_waited reports.
__device__ __forceinline__ void note_waited(const AgGemmParams& p, Role role, bool mine, int64_t cycles) {
  if (mine) p.waited[static_cast<int64_t>(blockIdx.x) * kRoles + role] = cycles;
}

// Steps of B that a merged tile asks into L2 while it waits for the peers' rows.
constexpr int kPrefetchSteps = 24;

template <class Tile, class Lane>
__device__ __forceinline__ void producer_role(const AgGemmParams& p, const GemmShared<Tile>& s, Lane& record) {
  const int lane = threadIdx.x % 32;
  const uint32_t cta = cta_in_cluster<Tile>();
  const uint64_t epoch = current_epoch(p.wait);
  const UnitRange<Tile> units(p);
  TileCursor<Tile> tile;
  RingPosition<Tile> at;
  Gate gate;
  for (uint32_t unit = units.first; unit < units.end; unit += units.stride) {
    const uint32_t begun = record.now();
    const SplitPart part = split_part(p.split, p.k_steps, unit);
    tile.move_to(p, part.tile, cta);
    const Segment& segment = p.segments[tile.segment];
    const int32_t in_segment = tile.m_tile * kTileM;
    const int b_row = tile.n_tile * Tile::kTileN;
    // The second CTA of a cluster may have no rows where a segment ends.
    const bool gated = segment.flag != kNoFlag && in_segment < segment.rows;
    if (gated)
      gate.start(p.flags[p.wait.rank] + segment.flag, segment.field ? p.gate : one_stamp(), tile.m_tile);
    const CUtensorMap* a = segment.own_row >= 0 ? &p.a : &p.landing;
    const int32_t row = (segment.own_row >= 0 ? segment.own_row : segment.row) + in_segment;
    for (int32_t step = part.first_step; step < part.end_step; ++step) {
      if (gated && step >= gate.ready) {
        const uint32_t waiting = record.now();
        gate.wait(p.wait, epoch, step);
        record.add(MK_EVENT_WAIT, tile.segment, waiting);
      }
      if (lane == 0) {
        const int column = step * kStepK;
        const auto load_a = [&](char* to, uint64_t* full) { ptx::tma_load(to, a, full, column, row, 0); };
        gemm_load_step<Tile>(s, at, load_a, p.a_bytes, &p.b, b_row, column, cta);
      }
      __syncwarp();
      at.advance();
    }
    record.add(MK_EVENT_LOAD, unit, begun);
  }
  if (lane == 0) gemm_drain<Tile>(s, at);
  note_waited(p, kRoleProducer, lane == 0, gate.waited);
}

// The producer of merged tiles: each K step takes the rows of all segments.
template <class Tile, class Lane>
__device__ __forceinline__ void merged_producer_role(const AgGemmParams& p, const GemmShared<Tile>& s, Lane& record) {
  const int lane = threadIdx.x % 32;
  const uint64_t epoch = current_epoch(p.wait);
  const UnitRange<Tile> units(p);
  RingPosition<Tile> at;
  Gate gate;
  for (uint32_t unit = units.first; unit < units.end; unit += units.stride) {
    const uint32_t begun = record.now();
    const SplitPart part = split_part(p.split, p.k_steps, unit);
    const int b_row = static_cast<int>(part.tile) * Tile::kTileN;
    for (int32_t step = part.first_step + lane; step < min(part.end_step, part.first_step + kPrefetchSteps); step += 32)
      ptx::tma_prefetch(&p.b, step * kStepK, b_row, 0);
    for (int32_t i = 0; i < p.segment_count; ++i) {
      const Segment& segment = p.segments[i];
      if (segment.flag == kNoFlag) continue;
      gate.start(p.flags[p.wait.rank] + segment.flag, segment.field ? p.gate : one_stamp(), 0);
      const uint32_t waiting = record.now();
      gate.wait_all(p.wait, epoch, part.first_step, part.end_step);
      record.add(MK_EVENT_WAIT, i, waiting);
    }
    for (int32_t step = part.first_step; step < part.end_step; ++step) {
      if (lane == 0) {
        const int column = step * kStepK;
        const auto load_a = [&](char* to, uint64_t* full) {
          for (int32_t i = 0; i < p.segment_count; ++i) {
            const Segment& segment = p.segments[i];
            const bool own = segment.own_row >= 0;
            ptx::tma_load(to + segment.row * kRowBytes, own ? &p.a : &p.landing, full, column,
                          own ? segment.own_row : segment.row, 0);
          }
        };
        gemm_load_step<Tile>(s, at, load_a, p.a_bytes, &p.b, b_row, column, 0);
      }
      __syncwarp();
      at.advance();
    }
    record.add(MK_EVENT_LOAD, unit, begun);
  }
  if (lane == 0) gemm_drain<Tile>(s, at);
  note_waited(p, kRoleProducer, lane == 0, gate.waited);
}

template <class Tile, typename T, class Lane>
__device__ __forceinline__ void consumer_role(const AgGemmParams& p, const GemmShared<Tile>& s, int group, Lane& record) {
  const uint32_t cta = cta_in_cluster<Tile>();
  const UnitRange<Tile> units(p);
  // The push role of this CTA has the second pair of store buffers.
  const bool pushing = static_cast<int32_t>(blockIdx.x) < p.push.ctas;
  TileCursor<Tile> tile;
  RingPosition<Tile> at;
  float sum[Tile::kTileN / 2];
  TileOutput<Tile> out;
  uint32_t storing = 0;
  const auto store_box = [&](int pass) {
    if (!out.pending) return;
    if (pass == 0) storing = record.now();
    if (pushing) {
      gemm_store_boxes<Tile, 1, 0>(s, group, pass, 0, out, &p.c);
    } else {
      gemm_store_boxes<Tile, 1, 1>(s, group, pass, pass % Tile::kStoreBuffers, out, &p.c);
    }
    if (pass == Tile::kStorePasses - 1) record.add(MK_EVENT_STORE, out.unit, storing);
  };
  for (uint32_t unit = units.first; unit < units.end; unit += units.stride) {
    const SplitPart part = split_part(p.split, p.k_steps, unit);
    const uint32_t multiplying = record.now();
    gemm_multiply<Tile, T>(s, at, group, part.end_step - part.first_step, sum, store_box);
    record.add(MK_EVENT_MULTIPLY, unit, multiplying);
    out.pending = false;
    int32_t row = group * kGroupM, column, rows;  // first row of C, and how many from there on are this group's or later's
    if (p.merged) {
      column = static_cast<int32_t>(part.tile) * Tile::kTileN;
      rows = p.m - row;
    } else {
      tile.move_to(p, part.tile, cta);
      const Segment& segment = p.segments[tile.segment];
      row += tile.m_tile * kTileM;
      rows = segment.rows - row;
      row += segment.row;
      column = tile.n_tile * Tile::kTileN;
    }
    if (rows <= 0) continue;
    if constexpr (Tile::kTileN == kSplitTileN) {
      if (p.split.parts > 1) {
        const uint32_t barrier = kBarrierEpilogue + group;
        if (!split_adds(p.split, part, group)) {
          const uint32_t giving = record.now();
          split_give(p.split, part, group, rows, barrier, sum, *s.epoch());
          record.add(MK_EVENT_STORE, unit, giving);
          continue;
        }
        split_take(p.split, part, group, rows, barrier, sum, *s.epoch(), p.wait);
      }
    }
    // A TMA store ends at the last row and, where it is a multiple of 16 bytes, column of C, but not at a segment's last row.
    const bool whole = rows >= kGroupM || row + rows == p.m;
    if (whole && (p.n % 8 == 0 || p.n - column >= Tile::kTileN)) {
      gemm_pack<Tile, T>(out, sum);
      out.column = column, out.row = row, out.unit = unit, out.pending = true;
    } else {
      const uint32_t begun = record.now();
      T* c = static_cast<T*>(p.c_base) + row * p.c_pitch + column;
      gemm_store_direct<Tile, T>(sum, c, p.c_pitch, rows, p.n - column);
      record.add(MK_EVENT_STORE, unit, begun);
    }
  }
  if (out.pending) {
    const uint32_t begun = record.now();
#pragma unroll
    for (int pass = 0; pass < Tile::kStorePasses; pass += Tile::kStoreBuffers) {
      if (pushing) {
#pragma unroll
        for (int box = 0; box < Tile::kStoreBuffers; ++box) gemm_store_boxes<Tile, 1, 0>(s, group, pass + box, 0, out, &p.c);
      } else {
        gemm_store_boxes<Tile, Tile::kStoreBuffers, 0>(s, group, pass, 0, out, &p.c);
      }
    }
    record.add(MK_EVENT_STORE, out.unit, begun);
  }
  if (threadIdx.x % kWarpgroup == 0) ptx::tma_store_wait_all();
}

// One thread, once its CTA has read all that it reads of sources and flags; products and stores may still go on. The last
// CTA of the call says that all sources are read and advances the epoch.
__device__ __forceinline__ void leave(const AgGemmParams& p, uint64_t epoch) {
  Control* own = p.wait.control[p.wait.rank];
  uint32_t* exits = reinterpret_cast<uint32_t*>(&own->exits.value);
  if (ptx::add_acq_rel_gpu(exits, 1) + 1 != gridDim.x) return;
  *exits = 0;
  own->epoch.value = epoch;
#pragma unroll 1
  for (int32_t i = 0; i < p.raise_count; ++i) {
    const Raise& r = p.raises[i];
    uint64_t* flag = p.flags[r.rank] + r.flag;
    if (r.add != 0) {
      ptx::add_release_system(flag, 1);
    } else {
      ptx::store_release_system(flag, epoch);
    }
  }
  notice_role(p.wait, p.send, p.notices, p.notice_count, epoch);
}

template <class Tile, typename T, class Recording>
__device__ __forceinline__ void ag_gemm_body(const AgGemmParams& p, const Recording& recording) {
  extern __shared__ char raw_shared[];
  const GemmShared<Tile> s(raw_shared);
  const int64_t start = clock64();
  const int warp = threadIdx.x / 32;
  uint64_t epoch = 0;
  if (threadIdx.x == kLoadWarp * 32) {
    recording.begin();
    ptx::tma_prefetch_map(&p.a);
    ptx::tma_prefetch_map(&p.b);
    ptx::tma_prefetch_map(&p.c);
    gemm_init_barriers<Tile>(s);
  } else if (threadIdx.x == kEpochWarp * 32) {
    epoch = current_epoch(p.wait);
  }
  __syncwarp();
  if constexpr (Tile::kCluster > 1) ptx::cluster_sync();  // loads arrive at the other CTA's mbarriers, too
  // The loading warp, which made the mbarriers, goes ahead while the epoch is still on its way.
  if (warp == kLoadWarp) {
    ptx::named_barrier_arrive(kBarrierReady, kThreads);
  } else {
    if (threadIdx.x == kEpochWarp * 32) *s.epoch() = epoch;
    __syncwarp();
    ptx::named_barrier(kBarrierReady, kThreads);
  }

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    ptx::registers_release<kProducerRegisters>();
    if (warp == kLoadWarp) {
      auto lane = recording.lane(MK_LANE_LOAD, threadIdx.x == 0);
      if constexpr (Tile::kTileN == kSplitTileN && Tile::kCluster == 1) {
        if (p.merged) {
          merged_producer_role<Tile>(p, s, lane);
        } else {
          producer_role<Tile>(p, s, lane);
        }
      } else {
        producer_role<Tile>(p, s, lane);
      }
      lane.finish();
    } else if (warp == kPushWarp && threadIdx.x % 32 == 0 && static_cast<int32_t>(blockIdx.x) < p.push.ctas) {
      auto lane = recording.lane(MK_LANE_PUSH, true);
      const int64_t waited = push_role(p.wait, p.push, p.gate, p.copies, p.copy_count,
                                       {p.flags, &p.own, &p.passed, p.destination}, {s.push(), s.pushed()},
                                       *s.epoch(), lane);
      note_waited(p, kRolePush, true, waited);
      lane.finish();
    } else if (warp == kSendWarp && threadIdx.x % 32 == 0 && blockIdx.x == 0 && p.send_count > 0) {
      note_waited(p, kRoleSend, true, send_role(p.wait, p.send, p.sends, p.send_count, *s.epoch()));
    }
    __syncwarp();
    if (warp == kLoadWarp) {
      ptx::named_barrier(kBarrierSources, kSourceThreads);
      if (threadIdx.x == 0) leave(p, *s.epoch());
    } else if (warp <= kSendWarp) {
      ptx::named_barrier_arrive(kBarrierSources, kSourceThreads);
    }
  } else {
    ptx::registers_claim<kConsumerRegisters>();
    auto lane = recording.lane(MK_LANE_MULTIPLY_0 + warpgroup - 1, threadIdx.x % kWarpgroup == 0);
    // By a shuffle, so that the compiler knows it to be the same in all lanes and keeps addresses in uniform registers.
    consumer_role<Tile, T>(p, s, __shfl_sync(0xFFFFFFFFu, warpgroup - 1, 0), lane);
    lane.finish();
  }

  __syncwarp();
  // A CTA may not leave while its cluster neighbour still frees stages or multicasts into it.
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    ptx::cluster_sync();
  }
  note_waited(p, kRoleNone, threadIdx.x == 0, clock64() - start);
  if (threadIdx.x == 0) recording.end();
}

template <class Tile, typename T>
__global__ void __launch_bounds__(kThreads, 1) ag_gemm_kernel(const __grid_constant__ AgGemmParams p) {
  ag_gemm_body<Tile, T>(p, NoRecord());
}

template <class Tile>
struct KernelConfig {
  // `together`: CTAs wait for other ranks or for one another, so all must be resident, or none.
  static cudaLaunchConfig_t config(cudaLaunchAttribute (&attributes)[2], int ctas, cudaStream_t stream, bool together) {
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = together;
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

template <class Tile, typename T>
struct Kernel : KernelConfig<Tile> {
  static constexpr auto kEntry = &ag_gemm_kernel<Tile, T>;
};

// Calls `f` with the kernel of an element type.
template <class Tile, class F>
cudaError_t with_element(Element element, F f) {
  return element == Element::kBf16 ? f(Kernel<Tile, __nv_bfloat16>{}) : f(Kernel<Tile, __half>{});
}

}  // namespace

template <class Tile>
cudaError_t AgGemmInstance<Tile>::prepare(Element element) {
  return with_element<Tile>(element, [](auto kernel) {
    return cudaFuncSetAttribute(kernel.kEntry, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  });
}

template <class Tile>
cudaError_t AgGemmInstance<Tile>::resident(Element element, int* ctas) {
  return with_element<Tile>(element, [&](auto kernel) {
    int device = 0, sms = 0, per_sm = 0;
    if (cudaError_t e = cudaGetDevice(&device)) return e;
    if (cudaError_t e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)) return e;
    if (cudaError_t e =
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel.kEntry, kThreads, Tile::kSharedBytes))
      return e;
    *ctas = per_sm * sms;
    if (Tile::kCluster > 1 && *ctas > 0) {
      cudaLaunchAttribute attributes[2];
      cudaLaunchConfig_t c = kernel.config(attributes, *ctas / Tile::kCluster * Tile::kCluster, nullptr, true);
      int clusters = 0;
      if (cudaError_t e = cudaOccupancyMaxActiveClusters(&clusters, kernel.kEntry, &c)) return e;
      if (clusters * Tile::kCluster < *ctas) *ctas = clusters * Tile::kCluster;
    }
    return cudaSuccess;
  });
}

template <class Tile>
cudaError_t AgGemmInstance<Tile>::launch(Element element, const AgGemmParams& params, int ctas, cudaStream_t stream) {
  return with_element<Tile>(element, [&](auto kernel) {
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t c = kernel.config(attributes, ctas, stream, params.wait.world > 1 || params.split.parts > 1);
    return cudaLaunchKernelEx(&c, kernel.kEntry, params);
  });
}

}  // namespace mk
