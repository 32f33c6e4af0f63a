// All-gather + GEMM in one persistent kernel: C[all rows] = gather(A shards) * B^T.
//
// Roles of a CTA:   warp 0            producer: asks the gate, loads A and B by TMA
//                   warp 1            push: sends the own shard to the peers (mover `sm`), else idle
//                   warp 2            makes the mbarriers; send, in CTA 0: hands messages to other nodes to the proxy thread
//                   warpgroups 1, 2   consumers: wgmma, store by TMA (without TMA: narrow tiles, by the first, and tails)
// Every CTA walks the tiles cta, cta + grid, ...; own rows come first, so that peers' rows arrive under them.
#pragma once
#include "kernels/ag_gemm_instance.h"

#include "comm/push.cuh"
#include "comm/record.cuh"
#include "comm/send.cuh"
#include "kernels/load_role.cuh"
#include "kernels/multiply_role.cuh"

namespace mk {
namespace {

// One thread, once its CTA has read all that it reads of sources and flags; products and stores may still go on. The last
// CTA of the call says that all sources are read and advances the epoch.
template <class Params>
__device__ __forceinline__ void leave(const Params& p) {
  const uint64_t epoch = current_epoch(p);
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
  if constexpr (Params::kNodes) notice_role(p.wait, p.send, p.notices, p.notice_count, p.send_count > 0, epoch);
}

// All threads of the CTA, or of the cluster that it is in.
template <class Tile>
__device__ __forceinline__ void cta_or_cluster_sync() {
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    ptx::cluster_sync();
  }
}

// The loading warp; `loaded` stages are on their way.
template <class Tile, class Params, class Recording>
__device__ __forceinline__ void load_warp(const Params& p, const GemmShared<Tile>& s, int32_t loaded, const Recording& recording) {
  auto lane = recording.lane(MK_LANE_LOAD, threadIdx.x == 0);
  bool merged = false;
  if constexpr (Params::kWaits && Tile::kTileN <= kSplitTileN && Tile::kCluster == 1) {
    merged = p.merged;
    if (merged) merged_producer_role<Tile>(p, s, lane);
  }
  if (!merged) producer_role<Tile>(p, s, loaded, lane);
  lane.finish();
  if constexpr (Params::kWaits) {
    if (p.units == 0) await_rows(p);
    ptx::named_barrier(kBarrierSources, kSourceThreads);
    if (threadIdx.x == 0) leave(p);
  }
}

// The warps that bring the own rows to other ranks.
template <class Tile, class Params, class Recording>
__device__ __forceinline__ void transfer_warp(const Params& p, const GemmShared<Tile>& s, int warp, const Recording& recording) {
  if (warp == kPushWarp) {
    if (threadIdx.x % 32 == 0 && static_cast<int32_t>(blockIdx.x) < p.push.ctas) {
      auto lane = recording.lane(MK_LANE_PUSH, true);
      const int64_t waited = push_role(p.wait, p.push, p.gate, p.copies, p.copy_count,
                                       {p.flags, &p.own, &p.passed, p.destination}, {s.push(), s.pushed()}, current_epoch(p), lane);
      note_waited(p, kRolePush, true, waited);
      lane.finish();
    }
  } else if constexpr (Params::kNodes) {
    if (threadIdx.x % 32 == 0 && blockIdx.x == 0 && p.send_count > 0)
      note_waited(p, kRoleSend, true, send_role(p.wait, p.send, p.sends, p.send_count, current_epoch(p)));
  }
  __syncwarp();
  ptx::named_barrier_arrive(kBarrierSources, kSourceThreads);
}

template <class Tile, typename T, class Params, class Recording>
__device__ __forceinline__ void ag_gemm_body(const Params& p, const Recording& recording) {
  extern __shared__ char raw_shared[];
  const GemmShared<Tile> s(raw_shared);
  if (threadIdx.x == 0) *s.start() = clock64();  // not in registers, of which the consumers have none left
  const int warp = threadIdx.x / 32;
  FirstTile first;
  if (warp == kLoadWarp) {
    if (ptx::elect_one()) {
      ptx::tma_prefetch_map(&p.a);
      ptx::tma_prefetch_map(&p.b);
    }
    if (threadIdx.x == 0) recording.begin();
    if constexpr (Tile::kCluster == 1) first = first_tile<Tile>(p);
  } else if (warp == kSendWarp) {
    if (ptx::elect_one()) gemm_init_barriers<Tile>(s);
  } else if (threadIdx.x == kWarpgroup) {
    ptx::tma_prefetch_map(&p.c);
  }
  __syncwarp();
  cta_or_cluster_sync<Tile>();  // in a cluster, loads arrive at the other CTA's mbarriers, too

  int32_t loaded = 0;
  if constexpr (Tile::kCluster == 1) {
    if (warp == kLoadWarp) loaded = first_loads<Tile>(p, s, first);
  }

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    if constexpr (Tile::kMovesRegisters) ptx::registers_release<kProducerRegisters>();
    if (warp == kLoadWarp) {
      load_warp<Tile>(p, s, loaded, recording);
    } else if constexpr (Params::kWaits) {
      if (warp == kPushWarp || warp == kSendWarp) transfer_warp<Tile>(p, s, warp, recording);
    }
  } else {
    if constexpr (Tile::kMovesRegisters) ptx::registers_claim<kConsumerRegisters>();
    auto lane = recording.lane(MK_LANE_MULTIPLY_0 + warpgroup - 1, threadIdx.x % kWarpgroup == 0);
    // By a shuffle, so that the compiler knows it to be the same in all lanes and keeps addresses in uniform registers.
    consumer_role<Tile, T>(p, s, __shfl_sync(0xFFFFFFFFu, warpgroup - 1, 0), lane);
    lane.finish();
  }

  __syncwarp();
  // All roles are over. A CTA may not leave while its cluster neighbour still frees stages or multicasts into it.
  cta_or_cluster_sync<Tile>();
  if (threadIdx.x == 0) {
    note_waited(p, kRoleNone, true, clock64() - *s.start());
    recording.end();
  }
}

template <class Tile, typename T, class Params>
__global__ void __launch_bounds__(kThreads, 1) ag_gemm_kernel(const __grid_constant__ Params p) {
  ag_gemm_body<Tile, T>(p, NoRecord());
}

template <class Tile>
struct KernelConfig {
  // `together`: CTAs may wait for other ranks or for one another, so all must be resident, or none.
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

template <class Tile, typename T, class Params>
struct Kernel : KernelConfig<Tile> {
  static constexpr auto kEntry = &ag_gemm_kernel<Tile, T, Params>;
};

// Clusters are for calls whose rows come by copy engine: one rank gains nothing by them.
template <class Tile>
constexpr bool kAlone = Tile::kCluster == 1;

// Calls `f` with the kernel of an element type and of parameters.
template <class Tile, class Params, class F>
cudaError_t with_element(Element element, F f) {
  return element == Element::kBf16 ? f(Kernel<Tile, __nv_bfloat16, Params>{}) : f(Kernel<Tile, __half, Params>{});
}

}  // namespace

template <class Tile>
cudaError_t AgGemmInstance<Tile>::prepare(Element element) {
  const auto allow = [](auto kernel) {
    return cudaFuncSetAttribute(kernel.kEntry, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  };
  if constexpr (kAlone<Tile>) {
    if (cudaError_t e = with_element<Tile, AgGemmAlone>(element, allow)) return e;
  }
  if (cudaError_t e = with_element<Tile, AgGemmFewParams>(element, allow)) return e;
  return with_element<Tile, AgGemmParams>(element, allow);
}

template <class Tile>
cudaError_t AgGemmInstance<Tile>::resident(Element element, int* ctas) {
  return with_element<Tile, AgGemmParams>(element, [&](auto kernel) {
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
  const auto launch_with = [&](const auto& p) {
    using Params = std::decay_t<decltype(p)>;
    return with_element<Tile, Params>(element, [&](auto kernel) {
      cudaLaunchAttribute attributes[2];
      const cudaLaunchConfig_t c = kernel.config(attributes, ctas, stream, Params::kWaits);
      return cudaLaunchKernelEx(&c, kernel.kEntry, p);
    });
  };
  if constexpr (kAlone<Tile>) {
    AgGemmAlone alone;
    if (alone.take(params)) return launch_with(alone);
  }
  AgGemmFewParams few;
  if (few.take(params)) return launch_with(few);
  return launch_with(params);
}

}  // namespace mk
