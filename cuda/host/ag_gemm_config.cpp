#include "host/ag_gemm_config.h"

#include <algorithm>
#include <utility>

#include "host/error.h"
#include "kernels/ag_gemm.h"
#include "kernels/gemm_tile.h"
#include "kernels/split_k.h"

namespace mk {
namespace {

constexpr int64_t kLargest = (int64_t{1} << 31) - 1;  // TMA coordinates are 32-bit
constexpr int64_t kMostCopyPitch = kLargest / 2;      // a copy's pitch in bytes fits into 31 bits
constexpr int64_t kMostSpan = int64_t{1} << 38;       // elements from an operand's first row to its last

// Measured on 2 x H200 (docs/results.md): from this shard size on the copy engine is the better mover; and a push by
// ctas * kPushBalance / n CTAs to each peer keeps just ahead of the product, more of them only disturb it.
constexpr int64_t kCopyEngineBytes = 8 << 20;
constexpr int64_t kPushBalance = 1000;

constexpr int kLeastSplitSteps = 8;  // shorter parts gain less than handing their sums over costs
constexpr int kMostSplits = 8;

// Measured on an H200 (docs/results.md): products whose tiles of 64 columns have a CTA each, and no more K steps than these, are faster
// with them than with 128; longer ones take the time of what L2 delivers. And one rank is faster if it does not split so few: CTAs that
// wait for nobody are a kernel of their own (AgGemmAlone).
constexpr int kMostShortSteps = 32;

int log2_of(int64_t v) {
  int n = 0;
  while ((int64_t{1} << n) < v) ++n;
  return n;
}

bool power_of_two(int64_t v) { return v > 0 && (v & (v - 1)) == 0; }

long long number(int64_t v) { return v; }  // as printf takes it

void check_size(int64_t size, const char* name) {
  if (size < 0) fail(MK_ERROR_ARGUMENT, "%s is %lld; it must not be negative", name, number(size));
  if (size > kLargest)
    fail(MK_ERROR_ARGUMENT, "%s is %lld; at most %lld are possible, because tensor maps have 32-bit coordinates", name, number(size), number(kLargest));
}

void check_pointer(const void* p, const char* name) {
  if (p == nullptr) fail(MK_ERROR_ARGUMENT, "%s is NULL, and there are elements in it: pass its address in GPU memory", name);
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
    fail(MK_ERROR_ARGUMENT, "%s is %p; it must be aligned to 16 bytes", name, p);
}

// Leading dimension `name` of the operand of so many rows of `columns` elements.
void check_pitch(int64_t pitch, const char* name, int64_t rows, int64_t columns, const char* operand) {
  if (pitch < columns)
    fail(MK_ERROR_ARGUMENT, "%s is %lld, less than a row of %s, which has %lld elements", name, number(pitch), operand, number(columns));
  if (pitch % 8 != 0) fail(MK_ERROR_ARGUMENT, "%s is %lld, not a multiple of 8 elements (16 bytes)", name, number(pitch));
  if (pitch > kLargest) fail(MK_ERROR_ARGUMENT, "%s is %lld; at most %lld elements are possible", name, number(pitch), number(kLargest));
  if (pitch > kMostSpan / std::max<int64_t>(rows, 1))
    fail(MK_ERROR_ARGUMENT, "%s spans %lld rows with %s %lld, more than 2^39 bytes, which is this library's bound: pass fewer rows or a smaller %s",
         operand, number(rows), name, number(pitch), name);
}

}  // namespace

void check_ag_gemm_capacity(const mk_ag_gemm_desc& d) {
  check_size(d.max_m, "max_m");
  check_size(d.max_k, "max_k");
  if (d.max_m != 0 && d.max_k > (int64_t{1} << 40) / (2 * d.max_m))
    fail(MK_ERROR_ARGUMENT, "max_m %lld times max_k %lld is too large: the landing buffer can have 2^40 bytes, of 2 for each element", number(d.max_m),
         number(d.max_k));
}

void check_ag_gemm(const mk_ag_gemm_args& a, const mk_ag_gemm_desc& capacity, int world) {
  check_size(a.m, "m");
  check_size(a.n, "n");
  check_size(a.k, "k");
  if (a.element != MK_BF16 && a.element != MK_F16)
    fail(MK_ERROR_ARGUMENT, "element is %d; known are bf16 (%d) and f16 (%d)", a.element, MK_BF16, MK_F16);
  const auto check_capacity = [](int64_t size, const char* name, int64_t most) {
    if (size > most)
      fail(MK_ERROR_ARGUMENT, "%s is %lld, larger than the operator was made for: its max_%s is %lld", name, number(size), name, number(most));
  };
  if (world > 1) check_capacity(a.m, "m", capacity.max_m), check_capacity(a.k, "k", capacity.max_k);
  if (a.m > 0 && a.n > 0) {
    check_pointer(a.c, "c");
    check_pitch(a.ldc, "ldc", a.m, a.n, "c");
    if (a.k > 0) {
      check_pointer(a.b, "b");
      check_pitch(a.ldb, "ldb", a.n, a.k, "b");
    }
  }
  // Peers need the shard also where there is nothing to compute.
  if (a.m > 0 && a.k > 0 && (a.n > 0 || world > 1)) {
    if (a.m >= world || a.a != nullptr) check_pointer(a.a, "a");
    check_pitch(a.lda, "lda", ceil_div(a.m, world), a.k, "a");
    if (a.k % 8 != 0) fail(MK_ERROR_ARGUMENT, "k is %lld, not a multiple of 8 elements (16 bytes): pad it with zeros", number(a.k));
  }
}

AgGemmTile ag_gemm_tile(const mk_ag_gemm_args& a, const mk_ag_gemm_config& c, const AgGemmMachine& machine) {
  return {tile_rows(c.tile_n, ceil_div(a.m, machine.world)), c.tile_n, c.cluster};
}

bool ag_gemm_merged(const mk_ag_gemm_args& a, const mk_ag_gemm_config& c, const AgGemmMachine& machine) {
  return machine.world > 1 && machine.chunks == 1 && a.m > 0 && a.m <= ag_gemm_tile(a, c, machine).rows && a.m % (machine.world * kAtomRows) == 0 &&
         c.tile_n <= kSplitTileN && c.cluster == 1 && c.mover == MK_MOVER_SM;
}

int32_t ag_gemm_part_steps(const mk_ag_gemm_args& a, const mk_ag_gemm_config& c, const AgGemmMachine& machine) {
  const int32_t stage = stage_steps(ag_gemm_tile(a, c, machine).rows);
  return static_cast<int32_t>(ceil_div(ceil_div(ceil_div(a.k, kStepK), c.split_k), stage)) * stage;
}

int64_t ag_gemm_units(const mk_ag_gemm_args& a, const mk_ag_gemm_config& c, const AgGemmMachine& machine) {
  const int64_t n_tiles = ceil_div(a.n, c.tile_n);
  if (ag_gemm_merged(a, c, machine)) return n_tiles;
  const int64_t segments = int64_t{machine.world} * machine.chunks;
  return segments * ceil_div(ceil_div(a.m, segments), int64_t{kTileM} * c.cluster) * n_tiles;
}

StampGrid ag_gemm_gate(const mk_ag_gemm_args& a, const mk_ag_gemm_config& c) {
  return stamp_grid(a.k, log2_of(c.row_block / kTileM), log2_of(c.k_block / kStepK));
}

std::vector<CopyChunk> ag_gemm_copies(const StampGrid& g, int64_t rows, bool last) {
  std::vector<CopyChunk> out;
  const int32_t row_blocks = static_cast<int32_t>(stamp_rows(g, rows)), whole = last && row_blocks > 0 ? row_blocks - 1 : row_blocks;
  for (int32_t row = 0; row < whole; ++row) out.push_back({row, 0, g.k_blocks});
  for (int32_t at = 0; at < g.k_blocks && whole < row_blocks;) {
    const int32_t count = std::max(1, (g.k_blocks - at) / 2);
    out.push_back({row_blocks - 1, at, count});
    at += count;
  }
  return out;
}

namespace {

// Units of work as the kernel walks them: the own rows wait for nothing, so they are one segment, whatever the chunks.
int64_t computed_units(const mk_ag_gemm_args& a, const mk_ag_gemm_config& c, const AgGemmMachine& machine) {
  if (machine.chunks == 1 || ag_gemm_merged(a, c, machine)) return ag_gemm_units(a, c, machine);
  const int64_t rows = int64_t{kTileM} * c.cluster, segments = int64_t{machine.world} * machine.chunks;
  const int64_t own = ceil_div(ceil_div(a.m, machine.world), rows);
  return (own + (segments - machine.chunks) * ceil_div(ceil_div(a.m, segments), rows)) * ceil_div(a.n, c.tile_n);
}

// As many parts of K as there are CTAs for, where that pays.
int32_t parts_of_k(int64_t tiles, int64_t steps, int32_t ctas, int32_t world) {
  if (world == 1 && steps <= kMostShortSteps) return 1;
  return static_cast<int32_t>(std::max<int64_t>(1, std::min<int64_t>({ctas / tiles, steps / kLeastSplitSteps, int64_t{kMostSplits}})));
}

// Parts of K for problems that leave SMs idle. Every part has its own CTA and at least one step.
void complete_split(mk_ag_gemm_config& c, const mk_ag_gemm_args& a, const AgGemmMachine& machine) {
  const int64_t tiles = ag_gemm_units(a, c, machine);
  const int64_t steps = ceil_div(a.k, kStepK);
  const bool possible = c.tile_n <= kSplitTileN && c.cluster == 1 && tiles > 0 && steps > 0;
  if (c.split_k == 0) {
    c.split_k = 1;
    if (possible) c.split_k = parts_of_k(tiles, steps, c.ctas, machine.world);
  }
  if (c.split_k == 1) return;
  if (c.split_k < 1) fail(MK_ERROR_ARGUMENT, "split_k is %d; it must not be negative", c.split_k);
  if (!possible)
    fail(MK_ERROR_ARGUMENT, "split_k is %d; a split needs tile_n %d or less and cluster 1, here are %d and %d, and something to multiply", c.split_k,
         kSplitTileN, c.tile_n, c.cluster);
  if (tiles * c.split_k > c.ctas)
    fail(MK_ERROR_ARGUMENT, "split_k %d of %lld tiles needs more than the %d CTAs: split_k can be %lld", c.split_k, number(tiles), c.ctas,
         number(std::max<int64_t>(1, c.ctas / tiles)));
  // Rounding the parts up may leave the last ones empty.
  c.split_k = static_cast<int32_t>(ceil_div(steps, ag_gemm_part_steps(a, c, machine)));
}

// Whether tiles of 128 rows and 64 columns have a CTA each and little of K.
bool short_tiles(mk_ag_gemm_config c, const mk_ag_gemm_args& a, const AgGemmMachine& machine) {
  if (c.cluster > 1 || ceil_div(a.m, machine.world) <= kGroupM) return false;
  c.tile_n = 64, c.cluster = 1;
  const int64_t tiles = ag_gemm_units(a, c, machine), steps = ceil_div(a.k, kStepK);
  if (tiles < 1 || tiles * std::max(1, c.split_k) > c.ctas) return false;
  return ceil_div(steps, c.split_k > 0 ? c.split_k : parts_of_k(tiles, steps, c.ctas, machine.world)) <= kMostShortSteps;
}

// Columns of a tile. Of 64 rows, where these suffice: 64 columns where they are enough for most of the CTAs, else 32.
int32_t choose_tile(const mk_ag_gemm_config& c, const mk_ag_gemm_args& a, const AgGemmMachine& machine) {
  if (a.m <= kGroupM && c.cluster <= 1) return ceil_div(a.n, 64) > c.ctas / 2 ? 64 : 32;
  if (short_tiles(c, a, machine)) return 64;
  // One wave of large tiles leaves no own rows to compute while the peers' rows are on their way.
  const int64_t large = ceil_div(ceil_div(a.m, machine.world), kTileM) * machine.world * ceil_div(a.n, 256);
  return large > (machine.world > 1 ? c.ctas : c.ctas / 2) ? 256 : 128;
}

void check_tile(const mk_ag_gemm_config& c, int64_t shard) {
  const auto built = [&](int rows, int cluster) { return tile_index({rows, c.tile_n, cluster}) >= 0; };
  if (!built(kGroupM, 1) && !built(kTileM, 1)) fail(MK_ERROR_ARGUMENT, "tile_n is %d, it must be 32, 64, 128 or 256", c.tile_n);
  if (c.cluster != 1 && c.cluster != 2) fail(MK_ERROR_ARGUMENT, "cluster is %d, it must be 1 or 2", c.cluster);
  if (c.cluster == 2 && !built(kTileM, 2)) fail(MK_ERROR_ARGUMENT, "cluster is %d; with tile_n %d it must be 1", c.cluster, c.tile_n);
  if (!built(tile_rows(c.tile_n, shard), c.cluster))
    fail(MK_ERROR_ARGUMENT, "tile_n is %d; such tiles are for at most %d rows of a rank, here are %lld", c.tile_n, kGroupM,
         number(shard));
}

}  // namespace

void complete_ag_gemm(mk_ag_gemm_config& c, const mk_ag_gemm_args& a, const AgGemmMachine& machine) {
  const int64_t shard = ceil_div(a.m, machine.world);
  // Ranks that share a GPU wait for one another inside their kernels, so all must fit at once; MPS limits the SMs of a
  // rank, but may give two ranks the same ones.
  const int share = std::max(1, machine.sms / machine.sharers);
  const bool all_ctas = c.ctas == 0;
  if (all_ctas) c.ctas = share;
  if (c.ctas < 0) fail(MK_ERROR_ARGUMENT, "ctas is %d; it must not be negative", c.ctas);
  if (machine.sharers > 1 && c.ctas > share)
    fail(MK_ERROR_ARGUMENT, "ctas is %d; the ranks that share a GPU wait for one another, so each of %d may take %d of its %d SMs",
         c.ctas, machine.sharers, share, machine.sms);
  if (c.mover == MK_MOVER_AUTO)
    c.mover = shard * a.k * 2 >= kCopyEngineBytes && machine.sharers == 1 && !machine.passes_on ? MK_MOVER_CE : MK_MOVER_SM;
  if (c.mover != MK_MOVER_SM && c.mover != MK_MOVER_CE)
    fail(MK_ERROR_ARGUMENT, "mover is %d; known are sm (%d) and ce (%d), and %d to let the library choose", c.mover, MK_MOVER_SM, MK_MOVER_CE,
         MK_MOVER_AUTO);
  // A copy inside one GPU needs SMs, which the waiting kernels hold.
  if (c.mover == MK_MOVER_CE && machine.sharers > 1)
    fail(MK_ERROR_UNSUPPORTED, "the copy engine cannot serve ranks that share a GPU: use the sm mover");
  // Rows that come from another node during the call are passed on once their flag has the call's epoch. Only device memory
  // knows the epoch, so a copy stream cannot be told what to wait for when it is submitted, or captured in a graph; and no abort
  // would end a stream's wait.
  if (c.mover == MK_MOVER_CE && machine.passes_on)
    fail(MK_ERROR_UNSUPPORTED, "the copy engine cannot pass on what arrives during the call: use the sm mover");
  // Refused by the driver only when the kernel already waits for the copy.
  for (const auto& [pitch, name] : {std::pair{a.lda, "lda"}, std::pair{a.k, "k"}})
    if (c.mover == MK_MOVER_CE && machine.world > 1 && pitch > kMostCopyPitch)
      fail(MK_ERROR_ARGUMENT, "%s is %lld; the copy engine takes rows that are at most %lld elements apart: use the sm mover", name, number(pitch),
           number(kMostCopyPitch));
  if (c.tile_n == 0) c.tile_n = choose_tile(c, a, machine);
  if (c.cluster == 0) c.cluster = machine.world > 1 && c.mover == MK_MOVER_CE && shard > kTileM && c.tile_n > kNarrowTileN ? 2 : 1;
  check_tile(c, shard);
  if (all_ctas) {
    // The fewest that need no further wave are as fast, and what idle SMs do not draw goes into the clock.
    const int64_t units = computed_units(a, c, machine), clusters = std::max(1, c.ctas / c.cluster);
    if (units > clusters) c.ctas = static_cast<int32_t>(ceil_div(units, ceil_div(units, clusters))) * c.cluster;
  }
  if (c.raster_group == 0) c.raster_group = 16;
  const int64_t n_tiles = std::max<int64_t>(1, ceil_div(a.n, c.tile_n));
  if (c.push_group == 0) {
    // Row blocks that one wave of the receiver's tiles covers.
    const int64_t wave = std::max<int64_t>(c.raster_group, ceil_div(c.ctas, n_tiles));
    c.push_group = static_cast<int32_t>(std::min<int64_t>(wave, std::max<int64_t>(1, ceil_div(shard, kTileM))));
  }
  if (c.mover == MK_MOVER_SM) {
    if (c.push_ctas == 0) {
      const int64_t blocks = ceil_div(shard, kTileM) * ceil_div(a.k, kStepK);
      const int64_t balanced = ceil_div((machine.world - 1) * c.ctas * kPushBalance, std::max<int64_t>(a.n, 1));
      c.push_ctas = blocks <= c.ctas ? c.ctas : static_cast<int32_t>(std::min<int64_t>(c.ctas, balanced));
    }
    if (c.push_ctas < 0 || (c.push_ctas == 0 && machine.world > 1))
      fail(MK_ERROR_ARGUMENT, "push_ctas is %d; it must not be negative", c.push_ctas);
    if (c.row_block == 0) c.row_block = kTileM;
    if (c.k_block == 0) c.k_block = kStepK;
    if (c.row_block != kTileM || c.k_block != kStepK)
      fail(MK_ERROR_ARGUMENT, "the sm mover announces blocks of %d rows and %d columns, not of %d and %d", kTileM, kStepK,
           c.row_block, c.k_block);
  } else {
    if (c.row_block == 0) c.row_block = 4096;
    if (c.k_block == 0) c.k_block = 512;
    if (c.row_block < 0 || c.k_block < 0 || c.k_block > (1 << 24) || c.row_block > (1 << 24))
      fail(MK_ERROR_ARGUMENT, "row_block is %d and k_block %d; each is from %d or %d to 2^24", c.row_block, c.k_block, kTileM, kStepK);
    if (c.row_block % kTileM != 0 || !power_of_two(c.row_block / kTileM) || c.k_block % kStepK != 0 ||
        !power_of_two(c.k_block / kStepK))
      fail(MK_ERROR_ARGUMENT, "row_block %d and k_block %d must be %d and %d times a power of two", c.row_block, c.k_block,
           kTileM, kStepK);
    c.push_ctas = 0;
  }
  if (c.push_group < 1) fail(MK_ERROR_ARGUMENT, "push_group is %d; it must not be negative", c.push_group);
  if (c.raster_group < 1) fail(MK_ERROR_ARGUMENT, "raster_group is %d; it must not be negative", c.raster_group);
  complete_split(c, a, machine);
  const StampGrid gate = ag_gemm_gate(a, c);
  if (ag_gemm_units(a, c, machine) >= kMaxCount || stamp_rows(gate, shard) * gate.k_blocks >= kMaxCount ||
      int64_t{c.raster_group} * n_tiles >= kMaxCount || int64_t{c.push_group} * gate.k_blocks >= kMaxCount)
    fail(MK_ERROR_ARGUMENT, "m %lld, n %lld, k %lld make 2^31 or more tiles, announced blocks, or units of a group, with tile_n %d, row_block %d, "
         "k_block %d, raster_group %d, push_group %d: larger blocks or smaller groups make fewer", number(a.m), number(a.n), number(a.k), c.tile_n,
         c.row_block, c.k_block, c.raster_group, c.push_group);
}

}  // namespace mk
