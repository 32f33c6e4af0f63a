// What the library makes of plans: schedules in numbers, and refusals.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "host/ag_gemm_plan.h"
#include "host/error.h"
#include "tests/check.h"
#include "tests/plans.h"

using namespace mk;

namespace {

std::vector<char> image(int nodes, int per_node, int chunks, int rank) {
  std::vector<char> bytes = test::read_plan(test::plan_folder("build", nodes, per_node, chunks), rank);
  CHECK(!bytes.empty());
  return bytes;
}

AgGemmPlan read(int nodes, int per_node, int chunks, int rank) {
  const std::vector<char> bytes = image(nodes, per_node, chunks, rank);
  return AgGemmPlan(bytes.data(), bytes.size());
}

std::string refusal(const std::vector<char>& bytes) {
  try {
    AgGemmPlan(bytes.data(), bytes.size());
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Writes a 32-bit word and the checksum that then is right.
void patch(std::vector<char>& bytes, size_t at, uint32_t value) {
  memcpy(bytes.data() + at, &value, sizeof value);
  const uint32_t crc = mk_plan_crc32(reinterpret_cast<const uint8_t*>(bytes.data()) + 16, bytes.size() - 16);
  memcpy(bytes.data() + 12, &crc, sizeof crc);
}

}  // namespace

TEST(every_row_is_computed_once_and_comes_from_where_it_is) {
  const struct { int nodes, per_node, chunks; } worlds[] = {{1, 1, 1}, {1, 2, 1}, {1, 2, 3}, {1, 8, 1}, {1, 8, 3}, {2, 1, 16}, {2, 2, 2}, {2, 4, 4}, {4, 2, 2}, {2, 8, 1}};
  for (const auto& w : worlds)
    for (const int64_t m : {1, 7, 128, 1000, 8192})
      for (int rank = 0; rank < w.nodes * w.per_node; ++rank) {
        const AgGemmPlan plan = read(w.nodes, w.per_node, w.chunks, rank);
        const Schedule s = plan.evaluate(m, 64, 256, plan.flag_words(8192, 256));
        std::vector<int> rows(m, 0);
        for (const Segment& segment : s.segments) {
          for (int r = segment.row; r < segment.row + segment.rows; ++r) ++rows[r];
          if (segment.own_row >= 0) {
            CHECK(segment.own_row + s.own_row == segment.row && segment.own_row + segment.rows <= s.own_rows);
            CHECK(segment.flag == kNoFlag);
          } else {
            CHECK(segment.flag != kNoFlag && (segment.row + segment.rows <= s.own_row || segment.row >= s.own_row + s.own_rows));
          }
        }
        CHECK(std::all_of(rows.begin(), rows.end(), [](int n) { return n == 1; }));
      }
}

// What every rank sends is what the others wait for: the same rows, the same words.
TEST(what_is_raised_is_what_is_awaited) {
  const struct { int nodes, per_node, chunks; } worlds[] = {{1, 2, 3}, {1, 8, 1}, {1, 8, 3}, {2, 1, 16}, {2, 2, 2}, {2, 4, 4}, {4, 2, 2}, {2, 8, 1}};
  for (const auto& w : worlds)
    for (const int64_t m : {5, 999, 4096}) {
      const int world = w.nodes * w.per_node;
      using Arrival = std::tuple<int, uint32_t, int, int>;  // rank, flag, row, rows
      std::vector<Arrival> raised, awaited;
      std::map<std::pair<int, uint32_t>, int> credits;
      for (int rank = 0; rank < world; ++rank) {
        const AgGemmPlan plan = read(w.nodes, w.per_node, w.chunks, rank);
        const Schedule s = plan.evaluate(m, 64, 256, plan.flag_words(4096, 256));
        for (const Copy& c : s.copies) raised.push_back({c.peer, c.raise, c.row, c.rows});
        for (const Send& c : s.sends) raised.push_back({c.peer, c.raise, c.row, c.rows});
        for (const Segment& c : s.segments)
          if (c.own_row < 0) awaited.push_back({rank, c.flag, c.row, c.rows});
        for (const Raise& r : s.raises) ++credits[{r.rank, r.flag}];
      }
      std::sort(raised.begin(), raised.end());
      std::sort(awaited.begin(), awaited.end());
      CHECK(raised == awaited);
      for (int rank = 0; rank < world; ++rank) {
        const AgGemmPlan plan = read(w.nodes, w.per_node, w.chunks, rank);
        const Schedule s = plan.evaluate(m, 64, 256, plan.flag_words(4096, 256));
        for (const Copy& c : s.copies) CHECK(credits[std::make_pair(rank, c.free.flag)] == c.free.count && c.free.lag == 1);
        for (const Notice& n : s.notices) CHECK(credits[std::make_pair(rank, n.wait.flag)] == n.wait.count && n.wait.lag == 0);
      }
    }
}

TEST(fields_have_words_for_every_block) {
  const AgGemmPlan plan = read(1, 2, 1, 0);
  const std::vector<uint64_t> words = plan.flag_words(8191, 8200);
  const Schedule s = plan.evaluate(8191, 64, 8200, words);
  const StampGrid g = stamp_grid(8200, 0, 0);
  for (const Segment& segment : s.segments) {
    if (segment.flag == kNoFlag) continue;
    const auto next = std::upper_bound(words.begin(), words.end(), uint64_t{segment.flag});
    CHECK(segment.flag + stamp_index(g, stamp_rows(g, segment.rows) - 1, g.k_blocks - 1) < static_cast<int64_t>(*next));
  }
  plan.check_blocks(256, 512);
  try {
    plan.check_blocks(64, 64);
    CHECK(false);
  } catch (const Error& e) {
    CHECK(std::string(e.what()).find("no multiple") != std::string::npos);
  }
}

// What decides who moves rows is the same on all ranks, also where one of them is alone on its node.
TEST(all_ranks_know_whether_rows_are_passed_on) {
  const struct { const char* name; int ranks; bool passed; } worlds[] = {{"1x2-c1", 2, false}, {"2x1-c1", 2, false}, {"2x2-c1", 4, true}, {"2x2,1-c1", 3, true}};
  for (const auto& w : worlds)
    for (int rank = 0; rank < w.ranks; ++rank) {
      const std::vector<char> bytes = test::read_plan(std::string("build/plans/ag_gemm-") + w.name, rank);
      CHECK(!bytes.empty() && AgGemmPlan(bytes.data(), bytes.size()).passes_on() == w.passed);
    }
}

TEST(fingerprints_tell_plans_apart_and_not_ranks) {
  CHECK(read(1, 2, 1, 0).fingerprint() == read(1, 2, 1, 1).fingerprint());
  CHECK(read(1, 2, 1, 0).fingerprint() != read(1, 2, 3, 0).fingerprint());
  CHECK(read(2, 2, 2, 0).fingerprint() != read(1, 4, 1, 0).fingerprint());
}

TEST(what_is_no_plan_of_ag_gemm_is_refused) {
  std::vector<char> bytes = image(1, 2, 1, 0);
  CHECK(refusal(bytes).empty());
  bytes[40] ^= 1;
  CHECK(refusal(bytes).find("checksum") != std::string::npos);
  CHECK(refusal({}).find("NULL") != std::string::npos || refusal({}).find("few") != std::string::npos);
  mk_plan none;
  CHECK(mk_plan_open(nullptr, 4096, &none) != nullptr);
  bytes = image(1, 2, 1, 0);
  bytes.resize(bytes.size() - 4);
  CHECK(!refusal(bytes).empty());
  // Another operator's name, of the same length.
  bytes = image(1, 2, 1, 0);
  const auto name = std::search(bytes.begin(), bytes.end(), "ag_gemm", "ag_gemm" + 7);
  CHECK(name != bytes.end());
  *name = 'b';
  patch(bytes, 0, MK_PLAN_MAGIC);
  CHECK(refusal(bytes).find("bg_gemm") != std::string::npos);
}
