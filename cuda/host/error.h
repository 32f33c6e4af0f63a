// Errors of the host side: thrown inside the library, turned into a code and text at the C interface.
#pragma once
#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>

#include "include/mkernel.h"

namespace mk {

struct Error : std::runtime_error {
  int code;
  Error(int code_, const std::string& text) : std::runtime_error(text), code(code_) {}
};

[[noreturn]] __attribute__((format(printf, 2, 3))) inline void fail(int code, const char* format, ...) {
  char text[500];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Error(code, text);
}

inline void check_cuda(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  cudaGetLastError();  // a launch error must not surface in the caller's next call
  const int code = e == cudaErrorMemoryAllocation ? MK_ERROR_MEMORY : MK_ERROR_DRIVER;
  fail(code, "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}

// Device memory was wanted.
inline void check_allocation(cudaError_t e, uint64_t bytes, const char* what) {
  if (e == cudaSuccess) return;
  size_t available = 0, total = 0;
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) available = total = 0;
  cudaGetLastError();
  fail(e == cudaErrorMemoryAllocation ? MK_ERROR_MEMORY : MK_ERROR_DRIVER, "%s of %llu bytes: %s; %zu of the GPU's %zu bytes are free", what,
       static_cast<unsigned long long>(bytes), cudaGetErrorString(e), available, total);
}

constexpr const char* kWhyAnotherStruct = "fill it with the INIT macro, and compile its user with the header of this library";

template <class Struct>
void check_struct(const Struct* s, const char* name) {
  if (s == nullptr) fail(MK_ERROR_ARGUMENT, "%s is NULL", name);
  if (s->version != MK_VERSION)
    fail(MK_ERROR_ARGUMENT, "%s has interface version %u, this library has %u: %s", name, s->version, MK_VERSION, kWhyAnotherStruct);
  if (s->size != sizeof(Struct))
    fail(MK_ERROR_ARGUMENT, "%s has %u bytes, this library expects %zu: %s", name, s->size, sizeof(Struct), kWhyAnotherStruct);
}

// Clocks count on from a bound without overflow.
inline void check_timeout(uint64_t ns) {
  constexpr uint64_t kMost = 1'000'000'000'000'000'000;
  if (ns > kMost)
    fail(MK_ERROR_ARGUMENT, "timeout_ns is %llu; every wait is bounded, by at most 10^18 ns (31 years)", static_cast<unsigned long long>(ns));
}

// Runs `f`; the result goes to the caller of the C interface.
template <class F>
int guarded(mk_error* error, F f) {
  int code = MK_OK;
  std::string text;
  try {
    f();
  } catch (const Error& e) {
    code = e.code;
    text = e.what();
  } catch (const std::bad_alloc&) {
    code = MK_ERROR_MEMORY;
    text = "out of host memory";
  } catch (const std::exception& e) {
    code = MK_ERROR_DRIVER;
    text = e.what();
  }
  if (error != nullptr) {
    error->code = code;
    snprintf(error->text, sizeof error->text, "%s", text.c_str());
  }
  return code;
}

}  // namespace mk
