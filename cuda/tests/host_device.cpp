// mkernel_device.h where there is no GPU: what is refused, and how it is said.
#include <cstring>
#include <string>

#include "host/context.h"
#include "include/mkernel_device.h"
#include "tests/check.h"

namespace {

bool says(const mk_error& error, const char* part) { return strstr(error.text, part) != nullptr; }

CUcontext current = nullptr;
int sets = 0;
const mk::CurrentContext kFake = {[](CUcontext* c) { return *c = current, CUDA_SUCCESS; },
                                  [](CUcontext c) { return current = c, ++sets, CUDA_SUCCESS; }};

}  // namespace

// A thread that chose no device is not made to choose one: that costs a context on GPU 0.
TEST(the_callers_context_comes_back_and_none_is_made) {
  int places[2];
  const CUcontext callers = reinterpret_cast<CUcontext>(&places[0]), ours = reinterpret_cast<CUcontext>(&places[1]);
  for (const CUcontext before : {callers, CUcontext{nullptr}}) {
    current = before, sets = 0;
    {
      const mk::KeptContext kept(kFake);
      current = ours;
    }
    CHECK(before != nullptr ? current == callers && sets == 1 : current == ours && sets == 0);
  }
  const mk::KeptContext nothing(mk::CurrentContext{});
}

TEST(no_driver_is_said_plainly) {
  mk_error error;
  int32_t count = -1;
  const int code = mk_device_count(&count, &error);
  if (code == MK_OK) {  // a machine with a driver
    CHECK(count >= 0);
    return;
  }
  CHECK(code == MK_ERROR_UNSUPPORTED);
  CHECK(says(error, "driver"));
}

TEST(device_calls_refuse_missing_places) {
  mk_error error;
  CHECK(mk_device_count(nullptr, &error) == MK_ERROR_ARGUMENT);
  CHECK(says(error, "count is NULL"));
  mk_device_info info;
  memset(&info, 0, sizeof info);
  CHECK(mk_device_query(0, &info, &error) == MK_ERROR_ARGUMENT);
  CHECK(says(error, "interface version 0"));
  MK_INIT(&info);
  info.size -= 4;
  CHECK(mk_device_query(0, &info, &error) == MK_ERROR_ARGUMENT);
  CHECK(says(error, "bytes"));
  MK_INIT(&info);
  CHECK(mk_device_query(-1, &info, &error) != MK_OK);
  CHECK(mk_device_reaches(0, 0, nullptr, &error) == MK_ERROR_ARGUMENT);
}
