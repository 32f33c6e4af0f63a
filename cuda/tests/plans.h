// The plans that `make cuda` has mkrun write: build/plans/ag_gemm-<nodes>x<ranks per node>-c<chunks>/rank<r>.plan.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace test {

inline std::string plan_folder(const std::string& build, int nodes, int per_node, int chunks) {
  return build + "/plans/ag_gemm-" + std::to_string(nodes) + "x" + std::to_string(per_node) + "-c" + std::to_string(chunks);
}

// Empty if there is no such file.
inline std::vector<char> read_plan(const std::string& folder, int rank) {
  std::vector<char> image;
  FILE* f = fopen((folder + "/rank" + std::to_string(rank) + ".plan").c_str(), "rb");
  if (f == nullptr) return image;
  char part[4096];
  for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) image.insert(image.end(), part, part + n);
  fclose(f);
  return image;
}

}  // namespace test
