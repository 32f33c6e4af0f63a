#include <cstdio>

#include "tests/check.h"

int main() {
  int passed = 0, failed = 0;
  for (const test::Case& c : test::cases()) {
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
