// Errors of the library: thrown inside, turned into a code and text at the C interface or by the proxy.
#pragma once
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "include/mknet.h"

namespace mk::net {

struct Error : std::runtime_error {
  int code;
  Error(int code_, const std::string& text) : std::runtime_error(text), code(code_) {}
};

__attribute__((format(printf, 1, 2))) inline std::string format(const char* pattern, ...) {
  char text[1000];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

// "1 write", "3 writes"
inline std::string counted(uint64_t n, const char* what) { return format("%" PRIu64 " %s%s", n, what, n == 1 ? "" : "s"); }

// "fake0, fake1": not more than people read.
inline std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kFew = 8;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kFew; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() <= kFew ? text : text + format(" and %zu more", names.size() - kFew);
}

// What there is in the place of NICs that were named and are not here.
inline std::string there_are(const std::vector<std::string>& names) {
  return names.empty() ? "there is none" : (names.size() == 1 ? "there is " : "there are ") + some_of(names);
}

[[noreturn]] __attribute__((format(printf, 2, 3))) inline void fail(int code, const char* pattern, ...) {
  char text[1000];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  throw Error(code, text);
}

inline int report(mknet_error* error, int code, const char* text) {
  if (error != nullptr) {
    error->code = code;
    snprintf(error->text, sizeof error->text, "%s", text);
  }
  return code;
}

template <class Struct>
void check_struct(const Struct* s, const char* name) {
  if (s == nullptr) fail(MKNET_ERROR_ARGUMENT, "%s is NULL", name);
  if (s->version != MKNET_VERSION)
    fail(MKNET_ERROR_ARGUMENT, "%s has interface version %u, this library has %u", name, s->version, MKNET_VERSION);
  if (s->size != sizeof(Struct))
    fail(MKNET_ERROR_ARGUMENT, "%s has %u bytes, this library expects %zu", name, s->size, sizeof(Struct));
}

// Runs `f`; the result goes to the caller of the C interface.
template <class F>
int guarded(mknet_error* error, F f) {
  try {
    f();
  } catch (const Error& e) {
    return report(error, e.code, e.what());
  } catch (const std::bad_alloc&) {
    return report(error, MKNET_ERROR_MEMORY, "out of host memory");
  } catch (const std::exception& e) {
    return report(error, MKNET_ERROR_SYSTEM, e.what());
  }
  return report(error, MKNET_OK, "");
}

}  // namespace mk::net
