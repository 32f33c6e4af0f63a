#include <cstdio>
#include <cstring>

#include "tests/check.h"

// An argument is a part of the names of the tests to run.
int main(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const test::Case& c : test::cases()) {
    if (argc > 1 && strstr(c.name, argv[1]) == nullptr) continue;
    const int before = test::failures();
    c.run();
    const bool good = test::failures() == before;
    ++(good ? passed : failed);
    printf("%s %s\n", good ? "ok  " : "FAIL", c.name);
    fflush(stdout);
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
