// The command line of gpu_ag_gemm; without CUDA, so that scripts' calls are checked where there is no GPU.
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace test {

constexpr int kMostRanks = 16;
constexpr const char* kUsage =
    "usage: gpu_ag_gemm [ranks] [all | quick | dead | brief | fuzz] [chunks] [nodes] [seed] [cx7 | efa]\n";

struct Options {
  int ranks = 1;
  std::string mode = "all";
  int chunks = 1;
  int nodes = 1;
  uint64_t seed = 1;  // of fuzz
  std::string link = "cx7";  // between nodes
};

// False if the words (without the program's name) are no command line of it.
inline bool parse_options(const std::vector<std::string>& words, Options* o) {
  const auto number = [&](size_t at, long least, long most, long* to) {
    if (at >= words.size()) return true;
    char* end;
    errno = 0;
    *to = strtol(words[at].c_str(), &end, 10);
    return errno == 0 && !words[at].empty() && *end == 0 && *to >= least && *to <= most;
  };
  long ranks = 1, chunks = 1, nodes = 1, seed = 1;
  if (words.size() > 6 || !number(0, 1, kMostRanks, &ranks) || !number(2, 1, 64, &chunks) || !number(3, 1, ranks, &nodes) ||
      !number(4, 0, 1L << 62, &seed) || ranks % nodes != 0)
    return false;
  if (words.size() > 1) o->mode = words[1];
  if (words.size() > 5) o->link = words[5];
  bool known = false;
  for (const char* mode : {"all", "quick", "dead", "brief", "fuzz"}) known = known || o->mode == mode;
  o->ranks = static_cast<int>(ranks), o->chunks = static_cast<int>(chunks), o->nodes = static_cast<int>(nodes);
  o->seed = static_cast<uint64_t>(seed);
  return known && (o->link == "cx7" || o->link == "efa");
}

}  // namespace test
