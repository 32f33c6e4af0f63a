// The smallest test frame: CHECK counts, the runner prints one closing line.
#pragma once
#include <cstdio>
#include <vector>

namespace test {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int n = 0;
  return n;
}

struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

}  // namespace test

#define TEST(name)                                       \
  static void name();                                    \
  static const test::Register register_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      ++test::failures();                                                       \
      printf("%s:%d: CHECK(%s) does not hold\n", __FILE__, __LINE__, #condition); \
    }                                                                           \
  } while (0)
