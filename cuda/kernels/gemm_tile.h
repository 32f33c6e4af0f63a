// The one table of tile sizes, shared-memory offsets, barrier ids and thread roles of the GEMM core.
#pragma once
#include <cstdint>

namespace mk {

constexpr int kWarpgroup = 128;

// Roles of a CTA, by warpgroup: 0 loads (warp 0), pushes (warp 1), makes the mbarriers and in CTA 0 sends (warp 2); 1 and 2
// multiply and store.
constexpr int kConsumerGroups = 2;
constexpr int kThreads = (1 + kConsumerGroups) * kWarpgroup;
enum ProducerWarp : int { kLoadWarp = 0, kPushWarp = 1, kSendWarp = 2 };

// Registers per thread after setmaxnreg, for wide tiles; the sum must fit what the launch bound gives (168 a thread).
constexpr int kProducerRegisters = 72;
constexpr int kConsumerRegisters = 216;
static_assert(kProducerRegisters + kConsumerGroups * kConsumerRegisters <= 3 * 168);
static_assert(kProducerRegisters % 8 == 0 && kConsumerRegisters % 8 == 0);

// Ids of named barriers; 0 is __syncthreads.
enum NamedBarrier : uint32_t {
  kBarrierEpilogue = 1,                                 // + consumer group
  kBarrierSources = kBarrierEpilogue + kConsumerGroups, // the roles of warpgroup 0 are done with what they read
  kBarrierSumsGiven,                                    // of a narrow tile, by the second consumer group to the first
  kBarrierSumsTaken
};
constexpr int kSourceThreads = 32 * (kSendWarp + 1);

constexpr int kTileM = 128;
constexpr int kStepK = 64;                    // columns of a K step: one 128-byte swizzled row of 16-bit values
constexpr int kRowBytes = kStepK * 2;
constexpr int kAtomRows = 8;                  // rows of a swizzle atom
constexpr int kGroupM = kTileM / kConsumerGroups;  // rows per consumer warpgroup: one wgmma in M
static_assert(kGroupM == 64);

constexpr int kPushBytes = kTileM * kRowBytes;  // one block on its way to a peer

// Tiles of at most so many columns have 64 rows where no shard has more. Such products take the time of reading B: 64 rows leave
// shared memory for more of B on its way, and CTAs of few columns share B out without a split of K over CTAs. A stage has a K step
// for each consumer group, and the groups' sums are added in the end: one group would not keep up with the memory.
constexpr int kNarrowTileN = 64;
constexpr int tile_rows(int tile_n, int64_t shard_rows) { return tile_n <= kNarrowTileN && shard_rows <= kGroupM ? kGroupM : kTileM; }
constexpr int stage_steps(int tile_rows) { return tile_rows == kGroupM ? kConsumerGroups : 1; }

template <int Rows, int TileN_, int Cluster_>
struct GemmTile {
  static constexpr int kTileN = TileN_;
  static constexpr int kCluster = Cluster_;  // CTAs along M that share the loads of B
  static constexpr bool kNarrow = Rows == kGroupM;
  static constexpr bool kMovesRegisters = TileN_ > kNarrowTileN;  // the sums of others fit into what the launch bound gives
  static constexpr int kStages = TileN_ == 256 ? 4 : TileN_ == 32 || (TileN_ == 64 && !kNarrow) ? 8 : 6;

  // A stage: A of its K steps, then B of its K steps.
  static constexpr int kStageSteps = stage_steps(Rows);
  static constexpr int kABytes = Rows * kRowBytes;
  static constexpr int kBBytes = kTileN * kRowBytes;
  static constexpr int kStageBytes = kStageSteps * (kABytes + kBBytes);
  static constexpr int kBRowsLoaded = kTileN / kCluster;  // rows of B that one CTA fetches for the cluster

  // The output goes through buffers of 64 x 64 elements: two per consumer group, or one while the second pair is the
  // push role's buffer. That of a narrow tile is little: it goes straight to memory, and the first pair is for the sums that one
  // group hands to the other.
  static constexpr int kStoreColumns = 64;
  static constexpr int kStoreBytes = kGroupM * kStoreColumns * 2;
  static constexpr int kStoreBuffers = 2;
  static constexpr int kStorePasses = kNarrow ? 0 : kTileN / kStoreColumns;

  // Offsets into dynamic shared memory, after its start is rounded up to kAlignment.
  static constexpr int kAlignment = 1024;
  static constexpr int kStagesAt = 0;
  static constexpr int kStoreAt = kStagesAt + kStages * kStageBytes;
  static constexpr int kFullAt = kStoreAt + kConsumerGroups * kStoreBuffers * kStoreBytes;
  static constexpr int kEmptyAt = kFullAt + kStages * 8;
  static constexpr int kPushedAt = kEmptyAt + kStages * 8;
  static constexpr int kStartAt = kPushedAt + 8;
  static constexpr int kEnd = kStartAt + 8;
  static constexpr int kSharedBytes = kEnd + kAlignment;

  static_assert(Rows == kTileM || Rows == kGroupM);
  static_assert(kConsumerGroups * kStoreBytes == kPushBytes && kStoreBuffers == 2);
  static_assert(kCluster == 1 || (kCluster == 2 && !kNarrow));
  static_assert(kNarrow ? kGroupM * kTileN * 4 <= kConsumerGroups * kStoreBytes : kTileN % kStoreColumns == 0);
  static_assert(kTileN <= 256 && kBRowsLoaded % 8 == 0 && kBRowsLoaded <= 256);
  static_assert(kABytes % kAlignment == 0 && kBBytes % kAlignment == 0 && (kBRowsLoaded * kRowBytes) % kAlignment == 0);
  static_assert(kStoreAt % kAlignment == 0 && kStoreBytes % kAlignment == 0 && kFullAt % 8 == 0);
  static_assert(kSharedBytes <= 227 * 1024, "the shared memory of an sm_90 CTA");
};

}  // namespace mk
