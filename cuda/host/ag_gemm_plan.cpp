#include "host/ag_gemm_plan.h"

#include <algorithm>

#include "host/error.h"

namespace mk {
namespace {

constexpr int64_t kMostFlagWords = int64_t{1} << 31;
const char* const kRoleNames[MK_ROLES] = {"compute", "intra", "send", "reduce"};

}  // namespace

AgGemmPlan::AgGemmPlan(const void* image, uint64_t bytes) {
  if (image == nullptr) fail(MK_ERROR_ARGUMENT, "plan is NULL");
  if (bytes % 4 != 0 || bytes > (uint64_t{1} << 30)) fail(MK_ERROR_ARGUMENT, "%llu bytes are no plan", static_cast<unsigned long long>(bytes));
  image_.resize(bytes / 4);
  memcpy(image_.data(), image, bytes);
  if (const char* why = mk_plan_open(image_.data(), bytes, &plan_)) fail(MK_ERROR_ARGUMENT, "the plan cannot be read: %s", why);
  if (strcmp(plan_.operator_name, "ag_gemm") != 0)
    fail(MK_ERROR_ARGUMENT, "the plan is of %.40s, not of ag_gemm", plan_.operator_name);
  check_buffers();
  for (uint32_t role = 0; role < MK_ROLES; ++role)
    for (uint32_t i = 0; i < plan_.queues[role].count; ++i) check_task(plan_.tasks[plan_.queues[role].first + i], role, i);
  // Not by this rank's own tasks: a rank alone on its node passes nothing on, and must take the same mover as all others.
  passes_on_ = plan_.nodes > 1 && std::any_of(plan_.node_ranks, plan_.node_ranks + plan_.nodes, [](uint32_t n) { return n > 1; });
}

void AgGemmPlan::check_buffers() {
  const struct {
    const char* name;
    uint32_t* index;
    uint8_t kind, rows, cols;
    uint32_t bits;
  } wanted[] = {
      {"a", &a_, MK_BUFFER_INPUT, MK_DIM_M, MK_DIM_K, MK_BUFFER_SHARDED},
      {"b", &b_, MK_BUFFER_INPUT, MK_DIM_N, MK_DIM_K, 0},
      {"c", &c_, MK_BUFFER_OUTPUT, MK_DIM_M, MK_DIM_N, 0},
      {"gathered", &gathered_, MK_BUFFER_LANDING, MK_DIM_M, MK_DIM_K, 0},
  };
  for (const auto& w : wanted) {
    uint32_t i = 0;
    while (i < plan_.buffer_count && strcmp(mk_plan_text(&plan_, plan_.buffers[i].name), w.name) != 0) ++i;
    if (i == plan_.buffer_count) fail(MK_ERROR_ARGUMENT, "the plan has no buffer \"%s\"", w.name);
    const mk_plan_buffer& b = plan_.buffers[i];
    if (b.kind != w.kind || b.elem != MK_ELEM_OPERAND || b.rows != w.rows || b.cols != w.cols || b.bits != w.bits ||
        (b.bits & MK_BUFFER_SHARDED && b.part != static_cast<int32_t>(plan_.rank)))
      fail(MK_ERROR_ARGUMENT, "buffer \"%s\" of the plan is not what ag_gemm has under this name", w.name);
    *w.index = i;
  }
}

// What the kernel can walk: whole rows from the own shard or the landing buffer, each segment behind one arrival.
void AgGemmPlan::check_task(const mk_plan_task& t, uint32_t role, uint32_t index) {
  const auto refuse = [&](const char* why) {
    fail(MK_ERROR_UNSUPPORTED, "%s task %u of the plan: %s", kRoleNames[role], index, why);
  };
  const auto whole = [&](uint32_t span) {
    const mk_plan_span& s = plan_.spans[span];
    return s.from_num == 0 && s.to_num == s.to_den;
  };
  uint32_t now = 0, before = 0;
  for (uint32_t i = 0; i < t.waits; ++i) {
    const mk_plan_wait& w = plan_.waits[t.wait + i];
    if (w.step != 0 || w.count > UINT16_MAX) refuse("this kernel has no gates by steps, nor counts above 65535");
    ++(w.lag == 0 ? now : before);
  }
  if (now > 1 || before > 1) refuse("this kernel waits for one flag of this call and one of the call before");
  if (t.kind == MK_TASK_NOTIFY) {
    if (now != 1 || before != 0 || t.signals != 1) refuse("this kernel turns one flag into one notice");
    return;
  }
  if (t.kind == MK_TASK_REDUCE) refuse("ag_gemm adds nothing");
  const mk_plan_region &src = *mk_plan_source(&plan_, &t, 0), &dst = plan_.regions[t.dst];
  if ((src.buffer != a_ && src.buffer != gathered_) || !whole(src.cols) || !whole(dst.cols) || src.rows != dst.rows)
    refuse("this kernel takes whole rows from \"a\" or \"gathered\"");
  if (dst.buffer != (t.kind == MK_TASK_COMPUTE ? c_ : gathered_)) refuse("it writes to another buffer than ag_gemm does");
  if (t.kind == MK_TASK_COMPUTE) {
    const mk_plan_region& b = plan_.regions[t.b];
    if (t.peer != plan_.rank || b.buffer != b_ || !whole(b.rows) || !whole(b.cols) || t.steps != 0 || before != 0)
      refuse("this kernel multiplies with the whole of \"b\", into its own rank's \"c\"");
    for (uint32_t i = 0; i < t.signals; ++i)
      if (plan_.flags[plan_.signals[t.signal + i].flag].region != MK_PLAN_NONE) refuse("a product raises no field");
    return;
  }
  uint32_t there = 0;
  for (uint32_t i = 0; i < t.signals; ++i) {
    const mk_plan_signal& s = plan_.signals[t.signal + i];
    const bool field = plan_.flags[s.flag].region != MK_PLAN_NONE;
    if (s.rank == t.peer && t.peer != plan_.rank) {
      ++there;
      if (field != (t.kind == MK_TASK_COPY)) refuse("copies raise fields at their peers, sends plain stamps");
    } else if (field || s.rank != plan_.rank || t.kind == MK_TASK_SEND) {
      refuse("it raises a flag at a rank that it does not write to");
    }
  }
  if (there != 1) refuse("it raises no flag at its peer, or several");
  if (t.kind == MK_TASK_SEND && (src.buffer != a_ || now != 0)) refuse("this kernel sends its own shard only");
  if (src.buffer == gathered_ && plan_.nodes == 1) refuse("on one node nothing is passed on");
}

std::vector<int32_t> AgGemmPlan::node_ranks() const { return {plan_.node_ranks, plan_.node_ranks + plan_.nodes}; }

std::vector<uint64_t> AgGemmPlan::flag_words(int64_t max_m, int64_t max_k) const {
  const int64_t sizes[MK_DIMS] = {max_m, 0, max_k};
  std::vector<uint64_t> at = {0};
  for (uint32_t i = 0; i < plan_.flag_count; ++i) {
    const int64_t words = mk_plan_flag_words(&plan_, &plan_.flags[i], sizes);
    if (words > kMostFlagWords || static_cast<int64_t>(at.back()) > kMostFlagWords - words)
      fail(MK_ERROR_ARGUMENT, "max_m %lld and max_k %lld need more than 2^31 flags", static_cast<long long>(max_m),
           static_cast<long long>(max_k));
    at.push_back(at.back() + static_cast<uint64_t>(words));
  }
  return at;
}

void AgGemmPlan::check_blocks(int64_t rows, int64_t columns) const {
  for (uint32_t i = 0; i < plan_.flag_count; ++i) {
    const mk_plan_flag& f = plan_.flags[i];
    if (f.region != MK_PLAN_NONE && (rows % f.block_rows != 0 || columns % f.block_cols != 0))
      fail(MK_ERROR_UNSUPPORTED, "the plan announces blocks of %u rows and %u columns; blocks of %lld and %lld are no multiple",
           f.block_rows, f.block_cols, static_cast<long long>(rows), static_cast<long long>(columns));
  }
}

Schedule AgGemmPlan::evaluate(int64_t m, int64_t n, int64_t k, const std::vector<uint64_t>& flag_words) const {
  const int64_t sizes[MK_DIMS] = {m, n, k};
  Schedule s;
  mk_plan_part_at(&plan_, &plan_.buffers[a_], plan_.buffers[a_].part, sizes, &s.own_row, &s.own_rows);
  const auto word = [&](uint32_t flag) { return static_cast<uint32_t>(flag_words[flag]); };
  const auto wait = [&](const mk_plan_task& t, uint32_t lag) {
    for (uint32_t i = 0; i < t.waits; ++i) {
      const mk_plan_wait& w = plan_.waits[t.wait + i];
      if (w.lag == lag) return FlagWait{word(w.flag), static_cast<uint16_t>(w.count), static_cast<uint16_t>(lag)};
    }
    return FlagWait{kNoFlag, 0, 0};
  };
  const auto is_field = [&](const mk_plan_task& t) {
    for (uint32_t i = 0; i < t.waits; ++i) {
      const mk_plan_wait& w = plan_.waits[t.wait + i];
      if (w.lag == 0) return plan_.flags[w.flag].region != MK_PLAN_NONE;
    }
    return false;
  };
  for (uint32_t i = 0; i < plan_.task_count; ++i) {
    const mk_plan_task& t = plan_.tasks[i];
    uint32_t at_peer = kNoFlag;
    for (uint32_t j = 0; j < t.signals; ++j) {
      const mk_plan_signal& signal = plan_.signals[t.signal + j];
      const bool transfer = t.kind == MK_TASK_COPY || t.kind == MK_TASK_SEND;
      if (t.kind == MK_TASK_NOTIFY || (transfer && signal.rank == t.peer)) {
        at_peer = word(signal.flag);
        if (t.kind == MK_TASK_NOTIFY) s.notices.push_back({static_cast<int32_t>(signal.rank), wait(t, 0), at_peer, 1});
      } else {
        s.raises.push_back({static_cast<int32_t>(signal.rank), word(signal.flag), plan_.flags[signal.flag].kind == MK_FLAG_COUNTER});
      }
    }
    if (t.kind == MK_TASK_NOTIFY) continue;
    int64_t from, to;
    const mk_plan_region& src = *mk_plan_source(&plan_, &t, 0);
    mk_plan_span_at(&plan_.spans[src.rows], sizes, &from, &to);
    const int32_t row = static_cast<int32_t>(from), rows = static_cast<int32_t>(to - from);
    const int32_t own_row = src.buffer == a_ ? static_cast<int32_t>(from - s.own_row) : -1;
    const int32_t peer = static_cast<int32_t>(t.peer);
    // No rows: nothing is moved or computed, so nobody waits for them either.
    if (rows == 0) continue;
    if (t.kind == MK_TASK_COMPUTE)
      s.segments.push_back({0, row, rows, own_row, wait(t, 0).flag, is_field(t)});
    else if (t.kind == MK_TASK_COPY)
      s.copies.push_back({peer, row, rows, own_row, wait(t, 1), wait(t, 0).flag, is_field(t), at_peer, 0});
    else
      s.sends.push_back({peer, row, rows, own_row, wait(t, 1), at_peer});
  }
  return s;
}

uint64_t AgGemmPlan::fingerprint() const {
  uint64_t h = 14695981039346656037ull;
  const auto add = [&](uint64_t v) { h = (h ^ v) * 1099511628211ull; };
  add(plan_.world);
  add(plan_.chunks);
  for (const char* c = plan_.algorithm; *c != 0; ++c) add(static_cast<uint8_t>(*c));
  for (uint32_t i = 0; i < plan_.nodes; ++i) add(plan_.node_ranks[i]);
  add(plan_.buffer_count);
  for (uint32_t i = 0; i < plan_.flag_count; ++i) {
    add(plan_.flags[i].kind);
    add(uint64_t{plan_.flags[i].block_rows} << 32 | plan_.flags[i].block_cols);
    if (plan_.flags[i].region == MK_PLAN_NONE) continue;
    const mk_plan_region& r = plan_.regions[plan_.flags[i].region];
    for (const uint32_t span : {r.rows, r.cols}) {
      const mk_plan_span& s = plan_.spans[span];
      add(uint64_t{s.from_num} << 32 | s.from_den);
      add(uint64_t{s.to_num} << 32 | s.to_den);
    }
  }
  return h;
}

}  // namespace mk
