// A rank's part of an ag_gemm plan: checked once, evaluated for each call. Needs no GPU.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/schedule.h"
#include "include/mkernel.h"
#include "include/mkernel_plan.h"

namespace mk {

// What the plan says for one call; `end` of the segments is left to who knows the tiles.
struct Schedule {
  int64_t own_row, own_rows;  // of the shard
  std::vector<Segment> segments;
  std::vector<Copy> copies;
  std::vector<Send> sends;
  std::vector<Notice> notices;
  std::vector<Raise> raises;
};

class AgGemmPlan {
 public:
  AgGemmPlan() = default;
  AgGemmPlan(const void* image, uint64_t bytes);  // throws Error

  int rank() const { return static_cast<int>(plan_.rank); }
  int world() const { return static_cast<int>(plan_.world); }
  int chunks() const { return static_cast<int>(plan_.chunks); }
  std::vector<int32_t> node_ranks() const;
  bool passes_on() const { return passes_on_; }  // somewhere copies are of rows that came from another node; equal on all ranks

  // First word of each flag, and at the end how many words there are, for calls up to these sizes.
  std::vector<uint64_t> flag_words(int64_t max_m, int64_t max_k) const;

  // Whether a launch may announce rows in blocks of this size; throws Error with the reason.
  void check_blocks(int64_t rows, int64_t columns) const;

  Schedule evaluate(int64_t m, int64_t n, int64_t k, const std::vector<uint64_t>& flag_words) const;

  // A number that is equal on all ranks whose plans belong together.
  uint64_t fingerprint() const;

 private:
  void check_buffers();
  void check_task(const mk_plan_task& t, uint32_t role, uint32_t index);

  std::vector<uint32_t> image_;
  mk_plan plan_ = {};
  uint32_t a_ = 0, b_ = 0, c_ = 0, gathered_ = MK_PLAN_NONE;  // buffers
  bool passes_on_ = false;
};

}  // namespace mk
