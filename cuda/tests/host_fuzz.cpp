// The random calls of gpu_ag_gemm and its command line, where there is no GPU: every call is one that the library takes,
// and together they reach what they are for.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "host/ag_gemm_config.h"
#include "host/error.h"
#include "kernels/gemm_tile.h"
#include "tests/check.h"
#include "tests/fuzz.h"
#include "tests/options.h"
#include "tests/plans.h"
#include "tests/rate.h"

using namespace mk;

namespace {

alignas(16) char operand[64];

// What the library makes of a drawn call on this rank count, or why it refuses.
std::string refusal(const test::Draw& d, int world, int sharers, bool passes_on, mk_ag_gemm_config* made) {
  mk_ag_gemm_args a;
  MK_INIT(&a);
  a.m = d.m, a.n = d.n, a.k = d.k, a.a = a.b = a.c = operand;
  a.lda = a.ldb = d.k + d.extra, a.ldc = (d.n + 7) / 8 * 8 + d.extra;
  mk_ag_gemm_desc capacity;
  MK_INIT(&capacity);
  capacity.max_m = std::max(8192, 1024 * world), capacity.max_k = 8192;  // as gpu_ag_gemm makes its operator
  AgGemmMachine machine;
  machine.sms = 132, machine.world = world, machine.sharers = sharers, machine.passes_on = passes_on;
  *made = d.config;
  try {
    check_ag_gemm(a, capacity, world);
    complete_ag_gemm(*made, a, machine);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool same(const test::Draw& x, const test::Draw& y) {
  return x.m == y.m && x.n == y.n && x.k == y.k && x.extra == y.extra && x.half == y.half && memcmp(&x.config, &y.config, sizeof x.config) == 0;
}

// Lines of a script's --dry-run for so many GPUs that begin with a program of build/.
std::vector<std::vector<std::string>> scripted(const std::string& script, int gpus, const std::string& program) {
  std::vector<std::vector<std::string>> lines;
  FILE* f = popen(("scripts/" + script + " --dry-run=" + std::to_string(gpus)).c_str(), "r");
  char line[4096];
  while (f != nullptr && fgets(line, sizeof line, f) != nullptr) {
    std::vector<std::string> words;
    for (char* word = strtok(line, " \n"); word != nullptr; word = strtok(nullptr, " \n")) words.push_back(word);
    if (!words.empty() && words[0] == program) lines.push_back({words.begin() + 1, words.end()});
  }
  CHECK(f != nullptr && pclose(f) == 0);
  return lines;
}

}  // namespace

TEST(random_calls_are_ones_that_the_library_takes) {
  for (const int world : {1, 2, 4, 8})
    for (const bool copies : {false, true}) {
      test::Fuzz fuzz(7, world, copies && world > 1);
      for (int i = 0; i < 5000; ++i) {
        mk_ag_gemm_config made;
        const std::string why = refusal(fuzz.next(), world, 1, world > 1 && !copies, &made);
        if (!why.empty()) printf("draw %d of world %d: %s\n", i, world, why.c_str());
        CHECK(why.empty());
      }
    }
}

TEST(random_calls_of_ranks_that_share_a_gpu_fit_on_it) {
  for (const int world : {2, 4, 16}) {
    test::Fuzz fuzz(7, world, false, 132 / world);
    for (int i = 0; i < 1000; ++i) {
      mk_ag_gemm_config made;
      CHECK(refusal(fuzz.next(), world, world, false, &made).empty() && made.ctas * world <= 132);
    }
  }
}

TEST(random_calls_reach_tails_and_all_settings) {
  constexpr int kWorld = 8, kCalls = 200;  // as one run makes
  for (const uint64_t seed : {1, 2, 3}) {
    std::set<std::tuple<int, int, int>> kinds;  // mover, tile, cluster
    int m_tail = 0, n_tail = 0, k_tail = 0, uneven = 0, odd_n = 0, many_tiles = 0, small = 0, split = 0, half = 0;
    test::Fuzz fuzz(seed, kWorld, true), again(seed, kWorld, true), other(seed + 100, kWorld, true);
    bool differs = false;
    for (int i = 0; i < kCalls; ++i) {
      const test::Draw d = fuzz.next();
      CHECK(same(d, again.next()));
      differs = differs || !same(d, other.next());
      mk_ag_gemm_config made;
      CHECK(refusal(d, kWorld, 1, false, &made).empty());
      kinds.insert({made.mover, made.tile_n, made.cluster});
      const int64_t shard = d.m / kWorld;
      m_tail += shard > kTileM && shard % kTileM != 0, n_tail += d.n > made.tile_n && d.n % made.tile_n != 0;
      k_tail += d.k % kStepK != 0, uneven += d.m % kWorld != 0, odd_n += d.n % 8 != 0, small += d.m < kWorld;
      many_tiles += shard > 2 * kTileM && d.n > 2 * made.tile_n, split += made.split_k > 1, half += d.half;
    }
    CHECK(differs);
    CHECK(kinds.size() == 12);  // 2 movers x (2 tiles x 2 clusters, and 2 narrow tiles)
    for (const int n : {m_tail, n_tail, k_tail, uneven, odd_n, many_tiles, small, split, half}) CHECK(n >= 3);
  }
}

TEST(the_command_line_is_read_or_refused) {
  test::Options o;
  CHECK(test::parse_options({}, &o) && o.ranks == 1 && o.mode == "all" && o.chunks == 1 && o.nodes == 1 && o.seed == 1);
  CHECK(test::parse_options({"8", "fuzz", "2", "4", "77"}, &o) && o.ranks == 8 && o.mode == "fuzz" && o.chunks == 2 && o.nodes == 4 && o.seed == 77 && o.link == "cx7");
  CHECK(test::parse_options({"4", "brief", "2", "2", "1", "efa"}, &o) && o.nodes == 2 && o.link == "efa");
  using Words = std::vector<std::string>;
  for (const Words& bad : {Words{"0"}, {"17"}, {"x"}, {""}, {"2", "brif"}, {"2", "brief", "0"}, {"2", "brief", "1", "3"}, {"8", "brief", "1", "3"},
                           {"2", "brief", "1", "1", "-1"}, {"2", "brief", "1", "1", "1", "1"}, {"2", "brief", "1", "2", "1", "efa", "1"}, {"2x"}})
    CHECK(!test::parse_options(bad, &o));
}

// A shard goes to every peer, and all of it counts.
TEST(copies_count_for_each_peer) {
  CHECK(test::copied_gbs(1000000, 2, 1) == 1 && test::copied_gbs(1000000, 4, 1) == 3 && test::copied_gbs(1000000, 8, 1) == 7);
}

// What the scripts ask of gpu_ag_gemm is a command line of it, with plans that `make cuda` writes.
TEST(the_scripts_for_gpus_call_it_rightly) {
  for (const std::string script : {"gpu-8.sh", "gpu-check.sh"})
    for (const int gpus : {1, 2, 4, 8}) {
      const auto lines = scripted(script, gpus, "build/gpu_ag_gemm");
      CHECK(!lines.empty());
      std::set<std::pair<std::string, std::string>> between;  // nodes: mode, link
      for (const std::vector<std::string>& words : lines) {
        test::Options o;
        CHECK(test::parse_options(words, &o));
        CHECK(o.ranks == gpus || script == "gpu-check.sh");
        const std::string folder = test::plan_folder("build", o.nodes, o.ranks / o.nodes, o.chunks);
        for (int rank = 0; rank < o.ranks; ++rank) CHECK(!test::read_plan(folder, rank).empty());
        if (o.nodes > 1 && o.ranks == std::min(gpus, script == "gpu-8.sh" ? gpus : 2)) between.insert({o.mode, o.link});
      }
      // With a GPU for each rank, links that keep an order and links that keep none are both gone through.
      for (const char* mode : {"brief", "fuzz"})
        for (const char* link : {"cx7", "efa"}) CHECK(gpus == 1 || between.count({mode, link}) == 1);
    }
}
