#include <algorithm>

#include "host/ag_gemm_op.h"
#include "host/error.h"
#include "kernels/gemm_tile.h"

namespace mk {
namespace {

// Columns x rows of 16-bit elements, cut into boxes of 64 columns, 128-byte swizzled.
CUtensorMap tensor_map(const Driver& driver, const void* base, Element element, int64_t columns, int64_t rows, int64_t pitch,
                       int box_rows, const char* what) {
  CUtensorMap map;
  const cuuint64_t extent[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows), 1};
  const cuuint64_t stride[2] = {static_cast<cuuint64_t>(pitch) * 2, static_cast<cuuint64_t>(rows * pitch) * 2};
  const cuuint32_t box[3] = {kStepK, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t step[3] = {1, 1, 1};
  driver.check(driver.encode_tiled(
                   &map, element == Element::kBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                   const_cast<void*>(base), extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               what);
  return map;
}

// The parts of the parameters that follow from the plan.
void fill_schedule(AgGemmParams& p, const Schedule& s, const mk_ag_gemm& op, const mk_ag_gemm_config& c) {
  if (s.segments.size() > kMostSegments || s.raises.size() > kMostRaises)
    fail(MK_ERROR_UNSUPPORTED, "the plan has %zu segments and %zu flags to raise on rank %d, this kernel takes %d and %d: plan "
         "fewer chunks", s.segments.size(), s.raises.size(), op.context->rank, kMostSegments, kMostRaises);
  uint32_t units = 0;
  // Segments that wait for nothing and whose rows follow one another are one: chunks mean something only to transfers.
  for (const Segment& segment : s.segments) {
    Segment* last = p.segment_count > 0 ? &p.segments[p.segment_count - 1] : nullptr;
    if (last != nullptr && last->flag == kNoFlag && segment.flag == kNoFlag && last->row + last->rows == segment.row)
      last->rows += segment.rows;
    else
      p.segments[p.segment_count++] = segment;
  }
  for (int i = 0; i < p.segment_count; ++i) {
    const int64_t m_units = ceil_div(p.segments[i].rows, int64_t{kTileM} * c.cluster);
    units += static_cast<uint32_t>(m_units * p.tiles.n_tiles);
    p.segments[i].end = units;
    p.segments[i].last_group = last_group(p.tiles, m_units);
  }
  p.units = (p.merged ? static_cast<uint32_t>(p.tiles.n_tiles) : units) * static_cast<uint32_t>(c.split_k);
  for (const Raise& raise : s.raises) p.raises[p.raise_count++] = raise;
  if (s.sends.size() > kMostSends || s.notices.size() > kMostNotices)
    fail(MK_ERROR_UNSUPPORTED, "the plan has %zu messages and %zu notices to other nodes on rank %d, this kernel takes %d and %d: "
         "plan fewer chunks", s.sends.size(), s.notices.size(), op.context->rank, kMostSends, kMostNotices);
  for (const Send& send : s.sends) p.sends[p.send_count++] = send;
  // Notices side by side are one message: each costs the proxy as much as a large one.
  for (const Notice& notice : s.notices) {
    Notice* last = p.notice_count > 0 ? &p.notices[p.notice_count - 1] : nullptr;
    if (last != nullptr && last->peer == notice.peer && last->raise + last->words == notice.raise &&
        last->wait.flag + last->words == notice.wait.flag && last->wait.count == notice.wait.count && last->words < kStampRun)
      last->words += notice.words;
    else
      p.notices[p.notice_count++] = notice;
  }
}

// Rows of A that a tile loads: no more whole swizzle atoms than the longest segment has.
int loaded_rows(const AgGemmParams& p) {
  int64_t most = 1;
  for (int i = 0; i < p.segment_count; ++i) most = std::max<int64_t>(most, p.segments[i].rows);
  return static_cast<int>(std::min<int64_t>(kTileM, ceil_div(most, kAtomRows) * kAtomRows));
}

SendSpace send_space(const mk_ag_gemm& op, const mk_ag_gemm_args& a) {
  SendSpace s = {};
  NodeNetwork* net = op.context->network.get();
  if (net == nullptr) return s;
  if (a.lda * 2 > UINT32_MAX)
    fail(MK_ERROR_ARGUMENT, "lda is %lld; messages between nodes take rows of a that are at most %u elements apart", static_cast<long long>(a.lda),
         UINT32_MAX / 2);
  net->open_sends(s);
  const SourceRegions::Place own = net->locate(a.a);
  s.region = own.region;
  s.source = own.offset;
  s.source_pitch = a.lda * 2;
  s.landing = op.landing_at;
  s.flags = op.flags_at;
  s.stamps = op.control_at + offsetof(Control, stamp);
  s.row_bytes = a.k * 2;
  return s;
}

}  // namespace

AgGemmParams make_params(const mk_ag_gemm& op, const mk_ag_gemm_args& a, const mk_ag_gemm_config& c, const Schedule& s) {
  const mk_context& context = *op.context;
  const Element element = static_cast<Element>(a.element);
  const Driver& d = context.driver;
  AgGemmParams p = {};
  p.merged = ag_gemm_merged(a, c, op.machine()) && a.n > 0;
  p.tiles = tile_grid(static_cast<int32_t>(ceil_div(a.n, c.tile_n)), std::max(1, c.raster_group / c.cluster));
  p.gate = ag_gemm_gate(a, c);
  fill_schedule(p, s, op, c);
  for (int r = 0; r < context.world; ++r)
    if (context.heap->base(r) != nullptr) p.flags[r] = reinterpret_cast<uint64_t*>(context.heap->base(r) + op.flags_at);

  const int a_box = p.merged ? static_cast<int>(a.m / context.world) : loaded_rows(p);
  p.a_bytes = static_cast<uint32_t>(p.merged ? a.m : a_box) * kRowBytes;
  char* landing = context.heap->base(context.rank) + op.landing_at;
  // A map needs some memory; one that no load uses stands for what has no rows.
  if (context.world > 1) {
    p.landing = tensor_map(d, landing, element, a.k, a.m, a.k, a_box, "tensor map of the landing buffer");
    p.passed = tensor_map(d, landing, element, a.k, a.m, a.k, kTileM, "tensor map of the landing buffer");
  }
  p.a = p.landing;
  if (s.own_rows > 0) {
    p.a = tensor_map(d, a.a, element, a.k, s.own_rows, a.lda, a_box, "tensor map of a");
    p.own = tensor_map(d, a.a, element, a.k, s.own_rows, a.lda, kTileM, "tensor map of a");
  }
  if (context.world == 1) p.landing = p.a;
  p.b = p.c = p.a;
  if (a.n > 0) {
    p.b = tensor_map(d, a.b, element, a.k, a.n, a.ldb, c.tile_n / c.cluster, "tensor map of b");
    p.c = tensor_map(d, a.c, element, a.n, a.m, a.ldc, kGroupM, "tensor map of c");
  }
  if (c.mover == MK_MOVER_SM && !s.copies.empty()) {
    if (s.copies.size() > kMostCopies)
      fail(MK_ERROR_UNSUPPORTED, "the plan has %zu copies on rank %d, this kernel takes %d: plan fewer chunks%s", s.copies.size(),
           context.rank, kMostCopies, op.plan.passes_on() ? "" : ", or use the ce mover");
    p.push = {c.push_group, c.push_ctas};
    for (const Copy& copy : s.copies) {
      p.destination[p.copy_count] = tensor_map(d, context.heap->base(copy.peer) + op.landing_at + int64_t{copy.row} * a.k * 2, element,
                                               a.k, copy.rows, a.k, kTileM, "tensor map of a peer's landing buffer");
      p.copies[p.copy_count++] = copy;
    }
  }
  p.send = send_space(op, a);
  p.wait = wait_context(context, op.control_at, op.record);
  p.waited = op.waited;
  p.c_base = a.c;
  p.c_pitch = a.ldc;
  p.m = static_cast<int32_t>(a.m);
  p.n = static_cast<int32_t>(a.n);
  p.k_steps = static_cast<int32_t>(ceil_div(a.k, kStepK));
  p.split.parts = divisor(static_cast<uint32_t>(c.split_k));
  p.split.steps = ag_gemm_part_steps(a, c, op.machine());
  p.split.sums = op.sums;
  p.split.flags = reinterpret_cast<uint64_t*>(context.heap->base(context.rank) + op.sum_flags_at);
  return p;
}

// Mover `ce`: the copies of the plan in their order, in chunks, each followed by a copy of the stamp on the same stream
// (ordering the flag from a second stream costs more than it hides).
void copy_shards(mk_ag_gemm& op, const AgGemmParams& p, const mk_ag_gemm_args& a, const mk_ag_gemm_config& c, const Schedule& s) {
  const mk_context& context = *op.context;
  const StampGrid& g = p.gate;
  const uint64_t* stamp = p.wait.control[context.rank]->stamp;
  for (const Copy& copy : s.copies) {
    char* landing = context.heap->base(copy.peer) + op.landing_at + int64_t{copy.row} * a.k * 2;
    const char* own = static_cast<const char*>(a.a) + copy.own_row * a.lda * 2;
    uint64_t* stamps = p.flags[copy.peer] + copy.raise;
    for (const CopyChunk& chunk : ag_gemm_copies(g, copy.rows, &copy == &s.copies.back())) {
      const int64_t row = int64_t{chunk.row_block} * c.row_block, column = int64_t{chunk.k_block} * c.k_block;
      const int64_t rows = std::min<int64_t>(c.row_block, copy.rows - row);
      const int64_t columns = std::min(int64_t{chunk.k_blocks} * c.k_block, a.k - column);
      const char* from = own + (row * a.lda + column) * 2;
      char* to = landing + (row * a.k + column) * 2;
      if (columns == a.k && columns == a.lda) {
        check_cuda(cudaMemcpyAsync(to, from, rows * a.k * 2, cudaMemcpyDefault, op.copy), "copying to a peer");
      } else {
        check_cuda(cudaMemcpy2DAsync(to, a.k * 2, from, a.lda * 2, columns * 2, rows, cudaMemcpyDefault, op.copy),
                   "copying to a peer");
      }
      ++op.last_launches;
      for (int32_t at = 0; at < chunk.k_blocks; at += kStampRun) {
        const int32_t count = std::min(kStampRun, chunk.k_blocks - at);
        check_cuda(cudaMemcpyAsync(stamps + stamp_index(g, chunk.row_block, chunk.k_block + at), stamp,
                                   count * sizeof(uint64_t), cudaMemcpyDefault, op.copy),
                   "raising a peer's flags");
        ++op.last_launches;
      }
    }
  }
}

// Each credit once: the chunks of a shard have one for all peers.
CopyCredits copy_credits(const mk_ag_gemm& op, const AgGemmParams& p, const Schedule& s) {
  CopyCredits credits = {};
  credits.flags = p.flags[op.context->rank];
  credits.waited = op.waited;
  for (const Copy& copy : s.copies) {
    const auto same = [&](const FlagWait& f) { return f.flag == copy.free.flag; };
    if (copy.free.flag == kNoFlag || std::any_of(credits.free, credits.free + credits.count, same)) continue;
    if (credits.count == kMostCopies)
      fail(MK_ERROR_UNSUPPORTED, "the plan has more than %d credits for the copies of rank %d: plan fewer chunks", kMostCopies, op.context->rank);
    credits.free[credits.count++] = copy.free;
  }
  return credits;
}

}  // namespace mk
