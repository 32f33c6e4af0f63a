// mkernel_device.h where there is no GPU: what is refused, and how it is said.
#include <cstring>
#include <string>

#include "include/mkernel_device.h"
#include "tests/check.h"

namespace {

bool says(const mk_error& error, const char* part) { return strstr(error.text, part) != nullptr; }

}  // namespace

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
