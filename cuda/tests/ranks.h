// Test harness: forks one process per rank, with an all-gather through shared memory.
#pragma once
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace test {

struct Shared {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  std::atomic<uint32_t> failed;
  char data[16][4096];
};

struct Rank {
  int rank = 0;
  int world = 1;
  Shared* shared = nullptr;

  // False if a rank failed or did not come within a minute.
  bool meet() const {
    const uint32_t g = shared->generation.load();
    if (shared->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(world)) {
      shared->arrived = 0;
      shared->generation = g + 1;
      return true;
    }
    for (int i = 0; shared->generation.load() == g; ++i) {
      if (i > 600000 || shared->failed.load() != 0) return false;
      const timespec nap = {0, 100000};
      nanosleep(&nap, nullptr);
    }
    return true;
  }

  static int allgather(void* user, const void* mine, void* all, uint64_t bytes) {
    const Rank& r = *static_cast<const Rank*>(user);
    if (bytes > sizeof r.shared->data[0]) return 1;
    memcpy(r.shared->data[r.rank], mine, bytes);
    if (!r.meet()) return 1;
    for (int i = 0; i < r.world; ++i) memcpy(static_cast<char*>(all) + i * bytes, r.shared->data[i], bytes);
    return r.meet() ? 0 : 1;
  }
};

// Runs `body` as `world` processes; the number of those that failed. Call it before any CUDA call.
template <class Body>
int run_ranks(int world, Body body) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return world;
  Shared* shared = new (memory) Shared{};
  fflush(nullptr);
  for (int r = 0; r < world; ++r) {
    const pid_t child = fork();
    if (child < 0) return world;
    if (child != 0) continue;
    const int status = body(Rank{r, world, shared});
    if (status != 0) shared->failed = 1;
    fflush(nullptr);
    _exit(status);
  }
  int failures = 0, status = 0;
  while (wait(&status) > 0)
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failures;
  munmap(memory, sizeof(Shared));
  return failures;
}

}  // namespace test
