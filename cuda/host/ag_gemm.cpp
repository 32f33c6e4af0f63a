#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "host/ag_gemm_op.h"
#include "host/error.h"
#include "kernels/gemm_tile.h"

namespace {

constexpr int kMostCtas = 1024;
constexpr uint64_t kContextHeap = 1 << 20;
constexpr uint64_t kMostSms = 256;  // of GPUs that this library runs on, and more

// A flag for each part of a tile and consumer group; parts never outnumber the CTAs.
constexpr uint64_t kSumFlagBytes = kMostSms * mk::kConsumerGroups * sizeof(uint64_t);

}  // namespace

namespace mk {

void launch(mk_ag_gemm& op, const mk_ag_gemm_args& a, const mk_ag_gemm_config& wanted, cudaStream_t stream, const Timeline* timeline) {
  const mk_context& context = *op.context;
  check_ag_gemm(a, op.capacity, context.world);
  if (a.m == 0 || (a.n == 0 && context.world == 1)) return;
  if (a.k == 0) {
    if (a.n > 0) check_cuda(cudaMemset2DAsync(a.c, a.ldc * 2, 0, a.n * 2, a.m, stream), "zeroing c");
    return;
  }
  mk_ag_gemm_config c = wanted;
  complete_ag_gemm(c, a, op.machine());
  if (context.world > 1) op.plan.check_blocks(c.row_block, c.k_block);
  const AgGemmShape shape = {ag_gemm_tile(a, c, op.machine()), static_cast<Element>(a.element)};
  const int ctas = std::min(c.ctas, op.resident[tile_index(shape.tile)]) / c.cluster * c.cluster;
  if (ctas < 1)
    fail(MK_ERROR_UNSUPPORTED, "not one CTA of the kernel for tile_n %d and cluster %d fits on GPU %d: another tile_n or cluster may", c.tile_n,
         c.cluster, context.device);
  c.push_ctas = std::min(c.push_ctas, ctas);
  if (c.split_k > 1 && ag_gemm_units(a, c, op.machine()) * c.split_k > ctas)
    fail(MK_ERROR_UNSUPPORTED, "only %d CTAs fit on GPU %d, too few for split_k %d: ask for less, or leave it to the library", ctas, context.device, c.split_k);
  const Schedule s = op.plan.evaluate(a.m, a.n, a.k, op.flag_words);
  const AgGemmParams p = make_params(op, a, c, s);
  const bool copies = c.mover == MK_MOVER_CE && !s.copies.empty();
  op.last_ctas = ctas, op.last_push_ctas = p.push.ctas, op.last_copies = copies, op.last_sends = p.send_count > 0;
  op.last_launches = copies ? 2 : 1;  // kernels; copy_shards counts the rest
  if (copies) {
    check_cuda(ag_gemm_prologue_launch(p.wait, copy_credits(op, p, s), stream), "launching the prologue");
    check_cuda(cudaEventRecord(op.fork, stream), "forking the copy stream");
  }
  check_cuda(timeline != nullptr ? ag_gemm_timeline_launch(shape, p, *timeline, ctas, stream) : ag_gemm_launch(shape, p, ctas, stream),
             "launching ag_gemm");
  if (copies) {
    check_cuda(cudaStreamWaitEvent(op.copy, op.fork, 0), "forking the copy stream");
    copy_shards(op, p, a, c, s);
    check_cuda(cudaEventRecord(op.join, op.copy), "joining the copy stream");
    check_cuda(cudaStreamWaitEvent(stream, op.join, 0), "joining the copy stream");
  }
}

namespace {

// Everything that is loaded lazily is loaded here: loading while a peer waits inside a kernel could hang both.
void prepare_kernels(mk_ag_gemm& op) {
  for (const AgGemmTile& tile : kAgGemmTiles)
    for (const Element element : {Element::kBf16, Element::kF16}) {
      const AgGemmShape shape = {tile, element};
      check_cuda(ag_gemm_prepare(shape), "loading the kernels");
      check_cuda(ag_gemm_resident(shape, &op.resident[tile_index(tile)]), "asking how many CTAs fit");
    }
}

// Where the parts of an operator lie in the heap, from `heap` on.
void lay_out(mk_ag_gemm& op, OffsetAllocator& heap, int world) {
  op.control_at = heap.allocate(sizeof(Control), "ag_gemm's control block");
  op.flags_at = heap.allocate(op.flag_bytes(), "ag_gemm's flags");
  op.sum_flags_at = heap.allocate(kSumFlagBytes, "ag_gemm's flags of split tiles");
  op.landing_at = heap.allocate(world > 1 ? op.capacity.max_m * op.capacity.max_k * 2 : 0, "ag_gemm's landing buffer");
}

void read_desc(mk_ag_gemm& op, const mk_ag_gemm_desc* desc) {
  check_struct(desc, "mk_ag_gemm_desc");
  check_ag_gemm_capacity(*desc);
  op.capacity = *desc;
  op.plan = AgGemmPlan(desc->plan, desc->plan_bytes);
  op.flag_words = op.plan.flag_words(desc->max_m, desc->max_k);
}

void check_plan_fits(const mk_context& c, const AgGemmPlan& plan) {
  if (plan.world() != c.world || plan.rank() != c.rank)
    fail(MK_ERROR_ARGUMENT, "the plan is for rank %d of %d, this context is rank %d of %d", plan.rank(), plan.world(), c.rank, c.world);
  if (plan.node_ranks() != c.node_ranks)
    fail(MK_ERROR_ARGUMENT, "the plan has other nodes than this context, or other numbers of ranks on them");
}

// Ranks that ask for different sizes, or follow different plans, would write outside one another's buffers.
void check_same_offsets(const mk_context& c, const mk_ag_gemm& op) {
  if (c.world == 1) return;
  struct Facts {
    uint64_t at[4];
    int64_t m, k;
    uint64_t plan;
  };
  const Facts mine = {{op.control_at, op.flags_at, op.sum_flags_at, op.landing_at}, op.capacity.max_m, op.capacity.max_k,
                      op.plan.fingerprint()};
  std::vector<Facts> all(c.world);
  if (c.allgather(c.user, &mine, all.data(), sizeof mine) != 0)
    fail(MK_ERROR_BOOTSTRAP, "the all-gather callback failed");
  for (int r = 0; r < c.world; ++r) {
    if (all[r].plan != mine.plan) fail(MK_ERROR_ARGUMENT, "rank %d has part of another plan than rank %d", r, c.rank);
    if (memcmp(&all[r], &mine, sizeof mine) != 0)
      fail(MK_ERROR_ARGUMENT, "rank %d made this operator with other sizes or in another order than rank %d", r, c.rank);
  }
}

// Which of the plan's flags lies at a heap offset, and which block of it.
void name_flag(const mk_ag_gemm& op, uint64_t offset, uint32_t* flag, uint32_t* block) {
  *flag = MK_NO_FLAG;
  *block = 0;
  if (offset < op.flags_at || offset >= op.flags_at + op.flag_bytes()) return;
  const uint64_t word = (offset - op.flags_at) / sizeof(uint64_t);
  const auto next = std::upper_bound(op.flag_words.begin(), op.flag_words.end(), word);
  *flag = static_cast<uint32_t>(next - op.flag_words.begin() - 1);
  *block = static_cast<uint32_t>(word - *(next - 1));
}

const char* role_name(uint32_t role) {
  static const char* const names[kRoles] = {"no role", "the producer", "the push", "the copies", "a barrier", "a sum", "the sends", "a notice"};
  return role < kRoles ? names[role] : "an unknown role";
}

}  // namespace
}  // namespace mk

extern "C" {

int mk_ag_gemm_heap_bytes(const mk_ag_gemm_desc* desc, uint64_t* bytes, mk_error* error) {
  return mk::guarded(error, [&] {
    if (bytes == nullptr) mk::fail(MK_ERROR_ARGUMENT, "bytes is NULL");
    mk_ag_gemm op;
    mk::read_desc(op, desc);
    mk::OffsetAllocator heap(UINT64_MAX / 2);
    mk::lay_out(op, heap, op.plan.world());
    *bytes = heap.used() + kContextHeap;
  });
}

int mk_ag_gemm_create(mk_context* context, const mk_ag_gemm_desc* desc, mk_ag_gemm** out, mk_error* error) {
  return mk::guarded(error, [&] {
    if (out == nullptr) mk::fail(MK_ERROR_ARGUMENT, "out is NULL");
    *out = nullptr;
    if (context == nullptr) mk::fail(MK_ERROR_ARGUMENT, "context is NULL");
    const mk::DeviceGuard guard(context->device);
    auto op = std::make_unique<mk_ag_gemm>();
    op->context = context;
    mk::read_desc(*op, desc);
    mk::check_plan_fits(*context, op->plan);
    mk::lay_out(*op, context->heap->offsets(), context->world);
    op->record = mk::make_wait_record();
    void* words = nullptr;
    mk::check_cuda(cudaHostAlloc(&words, sizeof *op->pinned, cudaHostAllocPortable), "pinned memory");
    op->pinned = new (words) mk_ag_gemm::Pinned{};
    mk::check_cuda(cudaMalloc(&op->sums, size_t(context->sms) * mk::kTileM * mk::kSplitTileN * sizeof(float)), "device memory");
    mk::check_cuda(cudaMalloc(&op->waited, kMostCtas * mk::kRoles * sizeof(int64_t)), "device memory");
    mk::check_cuda(cudaMemset(op->waited, 0, kMostCtas * mk::kRoles * sizeof(int64_t)), "device memory");
    mk::check_cuda(cudaStreamCreateWithFlags(&op->copy, cudaStreamNonBlocking), "copy stream");
    op->aborting = mk::make_urgent_stream("stream for abort words");
    mk::check_cuda(cudaEventCreateWithFlags(&op->fork, cudaEventDisableTiming), "copy event");
    mk::check_cuda(cudaEventCreateWithFlags(&op->join, cudaEventDisableTiming), "copy event");
    mk::prepare_kernels(*op);
    mk::check_cuda(cudaDeviceSynchronize(), "waiting for the device");
    mk::check_same_offsets(*context, *op);
    if (context->network) context->network->watch(op->abort_words());
    *out = op.release();
  });
}

int mk_ag_gemm_destroy(mk_ag_gemm* op, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) return;
    const std::unique_ptr<mk_ag_gemm> owned(op);
    const mk::DeviceGuard guard(op->context->device);
    mk::check_cuda(cudaDeviceSynchronize(), "waiting for the device");
    if (op->context->network) op->context->network->forget(op->abort_words());
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
    mk::launch(*op, *args, c, stream, nullptr);
  });
}

int mk_ag_gemm_choose(mk_ag_gemm* op, const mk_ag_gemm_args* args, mk_ag_gemm_config* config, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    mk::check_struct(args, "mk_ag_gemm_args");
    mk::check_struct(config, "mk_ag_gemm_config");
    mk::check_ag_gemm(*args, op->capacity, op->context->world);
    mk::complete_ag_gemm(*config, *args, op->machine());
  });
}

int mk_ag_gemm_status(mk_ag_gemm* op, mk_wait_record* record, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    const mk_context& c = *op->context;
    const mk::DeviceGuard guard(c.device);
    // Calls behind a barrier that was given up did not wait themselves: the barrier's record says why.
    const bool barrier = !static_cast<const volatile mk::WaitRecord*>(op->record)->valid && c.barrier_record->valid;
    const volatile mk::WaitRecord* seen = barrier ? c.barrier_record : op->record;
    uint32_t flag, block;
    mk::name_flag(*op, seen->flag, &flag, &block);
    if (record != nullptr) {
      mk::check_struct(record, "mk_wait_record");
      record->valid = static_cast<uint32_t>(seen->valid);
      record->rank = seen->rank;
      record->cta = seen->cta;
      record->role = seen->role;
      record->flag = flag;
      record->block = barrier ? mk::missing_in_barrier(c.barrier_at, seen->flag) : block;
      record->flag_offset = seen->flag;
      record->seen = seen->seen;
      record->wanted = seen->wanted;
    }
    // By the stream for aborts, which waits neither for the caller's kernels nor for the default stream.
    uint64_t* aborts = op->pinned->seen;
    for (int i = 0; i < 2; ++i)
      mk::check_cuda(cudaMemcpyAsync(&aborts[i], c.heap->base(c.rank) + (i == 0 ? op->control_at : c.barrier_at) + offsetof(mk::Control, abort),
                                     sizeof aborts[i], cudaMemcpyDeviceToHost, op->aborting),
                     "reading the abort words");
    mk::check_cuda(cudaStreamSynchronize(op->aborting), "reading the abort words");
    if (c.network) c.network->check();
    if (barrier) mk::check_barrier(c);
    if (seen->valid && flag == MK_NO_FLAG)
      mk::fail(MK_ERROR_ABORTED, "rank %u, CTA %u: %s waited more than %.3g s for this rank's own GPU or proxy", seen->rank,
               seen->cta, mk::role_name(seen->role), 1e-9 * double(c.timeout_ns));
    if (seen->valid)
      mk::fail(MK_ERROR_ABORTED, "rank %u, CTA %u: %s waited more than %.3g s for flag %d, block %u, of the plan (heap offset %llu): "
               "it is %llu, %llu was wanted", seen->rank, seen->cta, mk::role_name(seen->role), 1e-9 * double(c.timeout_ns),
               static_cast<int>(flag), block, static_cast<unsigned long long>(seen->flag),
               static_cast<unsigned long long>(seen->seen), static_cast<unsigned long long>(seen->wanted));
    if (aborts[0] != 0 || aborts[1] != 0) mk::fail(MK_ERROR_ABORTED, "aborted by the caller or by another rank, which gave up waiting");
  });
}

int mk_ag_gemm_abort(mk_ag_gemm* op, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    const mk_context& c = *op->context;
    const mk::DeviceGuard guard(c.device);
    // Copies from pinned memory progress beside kernels that fill the GPU.
    std::vector<char*> words = op->abort_words();
    for (int r = 0; r < c.world; ++r)
      if (c.heap->base(r) != nullptr) words.push_back(c.heap->base(r) + c.barrier_at + offsetof(mk::Control, abort));
    for (char* word : words)
      mk::check_cuda(cudaMemcpyAsync(word, &op->pinned->one, sizeof op->pinned->one, cudaMemcpyDefault, op->aborting),
                     "setting the abort word");
    mk::check_cuda(cudaStreamSynchronize(op->aborting), "setting the abort word");
  });
}

int mk_ag_gemm_reset(mk_ag_gemm* op, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    const mk_context& c = *op->context;
    const mk::DeviceGuard guard(c.device);
    mk::check_cuda(cudaDeviceSynchronize(), "waiting for the device");
    mk::host_barrier(c);  // no kernel writes flags any more
    if (c.network) {
      c.network->reset();
      mk::check_cuda(cudaDeviceSynchronize(), "waiting for copies that the proxy began");
      mk::host_barrier(c);  // and no proxy
    }
    char* base = c.heap->base(c.rank);
    for (const uint64_t control : {op->control_at, c.barrier_at})
      mk::check_cuda(cudaMemset(base + control, 0, sizeof(mk::Control)), "clearing the control block");
    mk::check_cuda(cudaMemset(base + op->flags_at, 0, op->flag_bytes()), "clearing the flags");
    mk::check_cuda(cudaMemset(base + op->sum_flags_at, 0, kSumFlagBytes), "clearing the flags");
    *op->record = *c.barrier_record = mk::WaitRecord{};
    mk::check_cuda(cudaDeviceSynchronize(), "clearing the flags");
    mk::host_barrier(c);
  });
}

int mk_ag_gemm_waited(mk_ag_gemm* op, mk_ag_gemm_waits* waits, mk_error* error) {
  return mk::guarded(error, [&] {
    if (op == nullptr) mk::fail(MK_ERROR_ARGUMENT, "op is NULL");
    mk::check_struct(waits, "mk_ag_gemm_waits");
    const mk::DeviceGuard guard(op->context->device);
    const int ctas = std::min(op->last_ctas, kMostCtas);
    waits->ctas = ctas;
    waits->launches = op->last_launches;
    waits->life = 0;
    if (ctas == 0) return;
    std::vector<int64_t> cycles(size_t(ctas) * mk::kRoles);
    mk::check_cuda(cudaMemcpy(cycles.data(), op->waited, cycles.size() * sizeof(int64_t), cudaMemcpyDeviceToHost),
                   "reading the waiting times");
    const int with_role[mk::kRoles] = {ctas, ctas, op->last_push_ctas, op->last_copies, 0, 0, op->last_sends};
    for (int role = mk::kRoleNone; role < int(mk::kRoles); ++role) {
      int64_t sum = 0, most = 0;
      for (int cta = 0; cta < with_role[role]; ++cta) {
        const int64_t v = cycles[size_t(cta) * mk::kRoles + role];
        sum += v;
        most = std::max(most, v);
      }
      if (with_role[role] > 0) sum /= with_role[role];
      if (role == int(mk::kRoleNone)) {
        waits->life = sum;
        sum = most = 0;
      }
      waits->mean[role] = sum;
      waits->most[role] = most;
    }
  });
}

}  // extern "C"
