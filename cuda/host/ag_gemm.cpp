#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "host/ag_gemm_config.h"
#include "host/context.h"
#include "host/error.h"
#include "kernels/ag_gemm.h"
#include "kernels/gemm_tile.h"

namespace {

constexpr int kMostCtas = 1024;

// A flag for each part of a tile and consumer group; parts never outnumber the CTAs.
uint64_t sum_flag_bytes(const mk_context& c) { return uint64_t(c.sms) * mk::kConsumerGroups * sizeof(uint64_t); }

}  // namespace

struct mk_ag_gemm {
  mk_context* context = nullptr;
  mk::AgGemmCapacity capacity = {};
  uint64_t control_at = 0, stamps_at = 0, sum_flags_at = 0, landing_at = 0;  // heap offsets
  mk::WaitRecord* record = nullptr;
  int64_t* waited = nullptr;
  float4* sums = nullptr;  // of the parts of split tiles
  int resident[2][2] = {};  // CTAs that fit on the GPU, by tile_n / 256 and cluster - 1
  cudaStream_t copy = nullptr;
  cudaEvent_t fork = nullptr;
  cudaEvent_t join = nullptr;

  ~mk_ag_gemm() {
    if (copy != nullptr) cudaStreamDestroy(copy);
    if (fork != nullptr) cudaEventDestroy(fork);
    if (join != nullptr) cudaEventDestroy(join);
    if (waited != nullptr) cudaFree(waited);
    if (sums != nullptr) cudaFree(sums);
    mk::free_wait_record(record);
  }
};

namespace mk {
namespace {

// Columns x rows x shards of 16-bit elements, cut into boxes of 64 columns, 128-byte swizzled.
CUtensorMap tensor_map(const Driver& driver, const void* base, Element element, int64_t columns, int64_t rows,
                       int64_t shards, int64_t pitch, int64_t shard_pitch, int box_rows, const char* what) {
  CUtensorMap map;
  const cuuint64_t extent[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                                static_cast<cuuint64_t>(shards)};
  const cuuint64_t stride[2] = {static_cast<cuuint64_t>(pitch) * 2, static_cast<cuuint64_t>(shard_pitch) * 2};
  const cuuint32_t box[3] = {kStepK, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t step[3] = {1, 1, 1};
  driver.check(driver.encode_tiled(
                   &map, element == Element::kBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                   const_cast<void*>(base), extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               what);
  return map;
}

AgGemmParams make_params(const mk_ag_gemm& op, const mk_ag_gemm_args& a, const mk_ag_gemm_config& c) {
  const mk_context& context = *op.context;
  const Element element = static_cast<Element>(a.element);
  const int64_t rows = a.m / context.world;
  const Driver& d = context.driver;
  AgGemmParams p = {};
  p.merged = ag_gemm_merged(a, c, context.world);
  const int a_box = p.merged ? static_cast<int>(rows) : kTileM;
  p.a = tensor_map(d, a.a, element, a.k, rows, 1, a.lda, rows * a.lda, a_box, "tensor map of a");
  p.b = tensor_map(d, a.b, element, a.k, a.n, 1, a.ldb, a.n * a.ldb, c.tile_n / c.cluster, "tensor map of b");
  p.c = p.merged ? tensor_map(d, a.c, element, a.n, a.m, 1, a.ldc, a.m * a.ldc, kGroupM, "tensor map of c")
                 : tensor_map(d, a.c, element, a.n, rows, context.world, a.ldc, rows * a.ldc, kGroupM, "tensor map of c");
  p.own = tensor_map(d, a.a, element, a.k, rows, 1, a.lda, rows * a.lda, kTileM, "tensor map of a");
  p.landing = context.world == 1
                  ? p.a
                  : tensor_map(d, context.heap->base(context.rank) + op.landing_at, element, a.k, rows, context.world - 1,
                               a.k, rows * a.k, a_box, "tensor map of the landing buffer");
  p.tiles = ag_gemm_tiles(a, c, context.world);
  p.gate = ag_gemm_gate(a, c, context.world);
  for (int r = 0; r < context.world; ++r) {
    p.heap[r] = context.heap->base(r);
    p.peer[r] = p.a;
    if (r == context.rank) continue;
    const char* place = p.heap[r] + op.landing_at + landing_index(r, context.rank) * rows * a.k * 2;
    p.peer[r] = tensor_map(d, place, element, a.k, rows, 1, a.k, rows * a.k, kTileM, "tensor map of a peer's landing buffer");
  }
  p.push.stamps_at = static_cast<int64_t>(op.stamps_at);
  p.push.group = c.push_group;
  p.push.ctas = context.world > 1 ? c.push_ctas : 0;
  p.wait = wait_context(context, op.control_at, op.record);
  p.stamps = reinterpret_cast<uint64_t*>(context.heap->base(context.rank) + op.stamps_at);
  p.waited = op.waited;
  p.c_base = a.c;
  p.c_pitch = a.ldc;
  p.n = static_cast<int32_t>(a.n);
  p.shard_rows = static_cast<int32_t>(rows);
  p.k_steps = static_cast<int32_t>(ceil_div(a.k, kStepK));
  p.split.parts = c.split_k;
  p.split.steps = static_cast<int32_t>(ceil_div(p.k_steps, c.split_k));
  p.split.sums = op.sums;
  p.split.flags = reinterpret_cast<uint64_t*>(context.heap->base(context.rank) + op.sum_flags_at);
  return p;
}

// Mover `ce`: every chunk of the own shard into every peer's landing buffer, each followed by a copy of the stamp on the
// same stream (ordering the flag from a second stream costs more than it hides).
void copy_shards(mk_ag_gemm& op, const AgGemmParams& p, const mk_ag_gemm_args& a, const mk_ag_gemm_config& c) {
  const mk_context& context = *op.context;
  const StampGrid& g = p.gate;
  const uint64_t* stamp = p.wait.control[context.rank]->stamp;
  const std::vector<CopyChunk> chunks = ag_gemm_copies(g);
  for (int step = 1; step < context.world; ++step) {
    const int peer = rank_after(context.rank, step, context.world);
    const int place = landing_index(peer, context.rank);
    char* landing = p.heap[peer] + op.landing_at + place * int64_t{p.shard_rows} * a.k * 2;
    uint64_t* stamps = reinterpret_cast<uint64_t*>(p.heap[peer] + op.stamps_at);
    for (const CopyChunk& chunk : chunks) {
      const int64_t row = int64_t{chunk.row_block} * c.row_block, column = int64_t{chunk.k_block} * c.k_block;
      const int64_t rows = std::min<int64_t>(c.row_block, p.shard_rows - row);
      const int64_t columns = std::min(int64_t{chunk.k_blocks} * c.k_block, a.k - column);
      const char* from = static_cast<const char*>(a.a) + (row * a.lda + column) * 2;
      char* to = landing + (row * a.k + column) * 2;
      if (columns == a.k && columns == a.lda) {
        check_cuda(cudaMemcpyAsync(to, from, rows * a.k * 2, cudaMemcpyDefault, op.copy), "copying to a peer");
      } else {
        check_cuda(cudaMemcpy2DAsync(to, a.k * 2, from, a.lda * 2, columns * 2, rows, cudaMemcpyDefault, op.copy),
                   "copying to a peer");
      }
      for (int32_t at = 0; at < chunk.k_blocks; at += kStampRun) {
        const int32_t count = std::min(kStampRun, chunk.k_blocks - at);
        check_cuda(cudaMemcpyAsync(stamps + stamp_index(g, place, chunk.row_block, chunk.k_block + at), stamp,
                                   count * sizeof(uint64_t), cudaMemcpyDefault, op.copy),
                   "raising a peer's flags");
      }
    }
  }
}

void launch(mk_ag_gemm& op, const mk_ag_gemm_args& a, const mk_ag_gemm_config& wanted, cudaStream_t stream) {
  const mk_context& context = *op.context;
  check_ag_gemm(a, op.capacity, context.world);
  if (a.m == 0 || a.n == 0) return;
  if (a.k == 0) {
    check_cuda(cudaMemset2DAsync(a.c, a.ldc * 2, 0, a.n * 2, a.m, stream), "zeroing c");
    return;
  }
  mk_ag_gemm_config c = wanted;
  complete_ag_gemm(c, a, {context.world, context.sms, context.sharers});
  const AgGemmShape shape = {c.tile_n, c.cluster, static_cast<Element>(a.element)};
  const int ctas = std::min(c.ctas, op.resident[c.tile_n / 256][c.cluster - 1]) / c.cluster * c.cluster;
  if (ctas < 1) fail(MK_ERROR_UNSUPPORTED, "not one CTA of this kernel fits on the GPU");
  c.push_ctas = std::min(c.push_ctas, ctas);
  if (c.split_k > 1 && tile_units(ag_gemm_tiles(a, c, context.world)) * c.split_k > ctas)
    fail(MK_ERROR_UNSUPPORTED, "only %d CTAs fit, too few for a split of K by %d", ctas, c.split_k);
  const AgGemmParams p = make_params(op, a, c);
  const bool copies = c.mover == MK_MOVER_CE && context.world > 1;
  if (copies) {
    check_cuda(ag_gemm_prologue_launch(p.wait, stream), "launching the prologue");
    check_cuda(cudaEventRecord(op.fork, stream), "forking the copy stream");
  }
  check_cuda(ag_gemm_launch(shape, p, ctas, stream), "launching ag_gemm");
  if (copies) {
    check_cuda(cudaStreamWaitEvent(op.copy, op.fork, 0), "forking the copy stream");
    copy_shards(op, p, a, c);
    check_cuda(cudaEventRecord(op.join, op.copy), "joining the copy stream");
    check_cuda(cudaStreamWaitEvent(stream, op.join, 0), "joining the copy stream");
  }
}

// Everything that is loaded lazily is loaded here: loading while a peer waits inside a kernel could hang both.
void prepare_kernels(mk_ag_gemm& op) {
  for (const int tile_n : {128, 256})
    for (const int cluster : {1, 2})
      for (const Element element : {Element::kBf16, Element::kF16}) {
        const AgGemmShape shape = {tile_n, cluster, element};
        check_cuda(ag_gemm_prepare(shape), "loading the kernels");
        check_cuda(ag_gemm_resident(shape, &op.resident[tile_n / 256][cluster - 1]), "asking how many CTAs fit");
      }
}

// Ranks that ask for different sizes would write outside one another's buffers.
void check_same_offsets(const mk_context& c, const mk_ag_gemm& op) {
  if (c.world == 1) return;
  struct Offsets {
    uint64_t at[4];
    int64_t m, k;
  };
  const Offsets mine = {{op.control_at, op.stamps_at, op.sum_flags_at, op.landing_at}, op.capacity.max_m, op.capacity.max_k};
  std::vector<Offsets> all(c.world);
  if (c.allgather(c.user, &mine, all.data(), sizeof mine) != 0)
    fail(MK_ERROR_BOOTSTRAP, "the all-gather callback failed");
  for (int r = 0; r < c.world; ++r)
    if (memcmp(&all[r], &mine, sizeof mine) != 0)
      fail(MK_ERROR_ARGUMENT, "rank %d made this operator with other sizes or in another order than rank %d", r, c.rank);
}

}  // namespace
}  // namespace mk

extern "C" {

int mk_ag_gemm_create(mk_context* context, const mk_ag_gemm_desc* desc, mk_ag_gemm** out, mk_error* error) {
  return mk::guarded(error, [&] {
    if (out == nullptr) mk::fail(MK_ERROR_ARGUMENT, "out is NULL");
    *out = nullptr;
    if (context == nullptr) mk::fail(MK_ERROR_ARGUMENT, "context is NULL");
    mk::check_struct(desc, "mk_ag_gemm_desc");
    const mk::DeviceGuard guard(context->device);
    auto op = std::make_unique<mk_ag_gemm>();
    op->context = context;
    op->capacity = mk::ag_gemm_capacity(*desc, context->world);
    mk::OffsetAllocator& heap = context->heap->offsets();
    op->control_at = heap.allocate(sizeof(mk::Control), "ag_gemm's control block");
    op->stamps_at = heap.allocate(op->capacity.stamps * 8, "ag_gemm's flags");
    op->sum_flags_at = heap.allocate(sum_flag_bytes(*context), "ag_gemm's flags of split tiles");
    op->landing_at = heap.allocate(op->capacity.landing_bytes, "ag_gemm's landing buffer");
    op->record = mk::make_wait_record();
    mk::check_cuda(cudaMalloc(&op->sums, size_t(context->sms) * mk::kTileM * mk::kSplitTileN * sizeof(float)), "device memory");
    mk::check_cuda(cudaMalloc(&op->waited, kMostCtas * sizeof(int64_t)), "device memory");
    mk::check_cuda(cudaMemset(op->waited, 0, kMostCtas * sizeof(int64_t)), "device memory");
    mk::check_cuda(cudaStreamCreateWithFlags(&op->copy, cudaStreamNonBlocking), "copy stream");
    mk::check_cuda(cudaEventCreateWithFlags(&op->fork, cudaEventDisableTiming), "copy event");
    mk::check_cuda(cudaEventCreateWithFlags(&op->join, cudaEventDisableTiming), "copy event");
    mk::prepare_kernels(*op);
    mk::check_cuda(cudaDeviceSynchronize(), "waiting for the device");
    mk::check_same_offsets(*context, *op);
    *out = op.release();
  });
}

int mk_ag_gemm_destroy(mk_ag_gemm* op, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) return;
    const std::unique_ptr<mk_ag_gemm> owned(op);
    const mk::DeviceGuard guard(op->context->device);
    mk::check_cuda(cudaDeviceSynchronize(), "waiting for the device");
    mk::host_barrier(*op->context);
  });
}

int mk_ag_gemm_launch(mk_ag_gemm* op, const mk_ag_gemm_args* args, const mk_ag_gemm_config* config, mk_stream stream,
                      mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    mk::check_struct(args, "mk_ag_gemm_args");
    mk_ag_gemm_config c;
    MK_INIT(&c);
    if (config != nullptr) {
      mk::check_struct(config, "mk_ag_gemm_config");
      c = *config;
    }
    const mk::DeviceGuard guard(op->context->device);
    mk::launch(*op, *args, c, stream);
  });
}

int mk_ag_gemm_choose(mk_ag_gemm* op, const mk_ag_gemm_args* args, mk_ag_gemm_config* config, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    mk::check_struct(args, "mk_ag_gemm_args");
    mk::check_struct(config, "mk_ag_gemm_config");
    mk::check_ag_gemm(*args, op->capacity, op->context->world);
    mk::complete_ag_gemm(*config, *args, {op->context->world, op->context->sms, op->context->sharers});
  });
}

int mk_ag_gemm_status(mk_ag_gemm* op, mk_wait_record* record, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    const mk_context& c = *op->context;
    const mk::DeviceGuard guard(c.device);
    const volatile mk::WaitRecord* seen = op->record;
    if (record != nullptr) {
      mk::check_struct(record, "mk_wait_record");
      record->valid = static_cast<uint32_t>(seen->valid);
      record->rank = seen->rank;
      record->cta = seen->cta;
      record->role = seen->role;
      record->peer = seen->peer;
      record->flag_offset = seen->flag;
      record->seen = seen->seen;
      record->wanted = seen->wanted;
    }
    uint64_t abort = 0;
    mk::check_cuda(cudaMemcpy(&abort, c.heap->base(c.rank) + op->control_at + offsetof(mk::Control, abort), sizeof abort,
                              cudaMemcpyDeviceToHost),
                   "reading the abort word");
    if (seen->valid)
      mk::fail(MK_ERROR_ABORTED, "rank %u, CTA %u, role %u gave up waiting for rank %u: flag at heap offset %llu is %llu, "
               "%llu was wanted", seen->rank, seen->cta, seen->role, seen->peer, static_cast<unsigned long long>(seen->flag),
               static_cast<unsigned long long>(seen->seen), static_cast<unsigned long long>(seen->wanted));
    if (abort != 0) mk::fail(MK_ERROR_ABORTED, "another rank gave up waiting");
  });
}

int mk_ag_gemm_reset(mk_ag_gemm* op, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    const mk_context& c = *op->context;
    const mk::DeviceGuard guard(c.device);
    mk::check_cuda(cudaDeviceSynchronize(), "waiting for the device");
    mk::host_barrier(c);  // nobody writes flags any more
    char* base = c.heap->base(c.rank);
    mk::check_cuda(cudaMemset(base + op->control_at, 0, sizeof(mk::Control)), "clearing the control block");
    mk::check_cuda(cudaMemset(base + op->stamps_at, 0, op->capacity.stamps * 8), "clearing the flags");
    mk::check_cuda(cudaMemset(base + op->sum_flags_at, 0, sum_flag_bytes(c)), "clearing the flags");
    *op->record = mk::WaitRecord{};
    mk::check_cuda(cudaDeviceSynchronize(), "clearing the flags");
    mk::host_barrier(c);
  });
}

int mk_ag_gemm_waited(mk_ag_gemm* op, int64_t* cycles, int32_t count, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr || cycles == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op or cycles is NULL");
    const mk::DeviceGuard guard(op->context->device);
    mk::check_cuda(cudaMemcpy(cycles, op->waited, std::min(count, kMostCtas) * sizeof(int64_t), cudaMemcpyDeviceToHost),
                   "reading the waiting times");
  });
}

}  // extern "C"
