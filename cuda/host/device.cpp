// What GPUs there are (mkernel_device.h).
#include <algorithm>
#include <cstring>

#include "host/context.h"
#include "host/error.h"
#include "include/mkernel_device.h"
#include "kernels/hold.h"

namespace mk {
namespace {

int attribute(int device, cudaDeviceAttr which, const char* what) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device), what);
  return value;
}

int count_devices() {
  int devices = 0;
  const cudaError_t e = cudaGetDeviceCount(&devices);
  if (e == cudaErrorNoDevice) {
    cudaGetLastError();
    return 0;
  }
  if (e == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    fail(MK_ERROR_UNSUPPORTED, "no NVIDIA driver, or one that is too old: %s", cudaGetErrorString(e));
  }
  check_cuda(e, "counting the devices");
  return devices;
}

void check_number(int device) {
  const int devices = count_devices();
  if (device < 0 || device >= devices)
    fail(MK_ERROR_ARGUMENT, "device %d does not exist, this process sees %d", device, devices);
}

template <class T>
void check_out(const T* p, const char* name) {
  if (p == nullptr) fail(MK_ERROR_ARGUMENT, "%s is NULL", name);
}

}  // namespace
}  // namespace mk

extern "C" {

int mk_device_count(int32_t* count, mk_error* error) {
  return mk::guarded(error, [&] {
    mk::check_out(count, "count");
    *count = mk::count_devices();
  });
}

int mk_device_query(int32_t device, mk_device_info* info, mk_error* error) {
  return mk::guarded(error, [&] {
    mk::check_struct(info, "mk_device_info");
    mk::check_number(device);
    cudaDeviceProp p;
    mk::check_cuda(cudaGetDeviceProperties(&p, device), "device properties");
    snprintf(info->name, sizeof info->name, "%.*s", int(sizeof info->name - 1), p.name);
    static_assert(sizeof info->uuid == sizeof p.uuid.bytes);
    memcpy(info->uuid, p.uuid.bytes, sizeof info->uuid);
    info->major = p.major;
    info->minor = p.minor;
    info->sms = p.multiProcessorCount;
    info->cooperative = mk::attribute(device, cudaDevAttrCooperativeLaunch, "cooperative launch");
    info->clock_khz = mk::attribute(device, cudaDevAttrClockRate, "SM clock");
    mk::check_cuda(cudaDriverGetVersion(&info->driver), "driver version");
    info->total_bytes = p.totalGlobalMem;
  });
}

int mk_device_reaches(int32_t device, int32_t peer, int32_t* yes, mk_error* error) {
  return mk::guarded(error, [&] {
    mk::check_out(yes, "yes");
    mk::check_number(device);
    mk::check_number(peer);
    *yes = 1;
    if (device != peer) mk::check_cuda(cudaDeviceCanAccessPeer(yes, device, peer), "peer access");
  });
}

int mk_device_free_bytes(int32_t device, uint64_t* bytes, mk_error* error) {
  return mk::guarded(error, [&] {
    mk::check_out(bytes, "bytes");
    mk::check_number(device);
    const mk::DeviceGuard guard(device);
    size_t available = 0, total = 0;
    mk::check_cuda(cudaMemGetInfo(&available, &total), "free memory");
    *bytes = available;
  });
}

int mk_stream_hold(mk_context* context, mk_stream stream, uint64_t nanoseconds, mk_error* error) {
  return mk::guarded(error, [&] {
    if (context == nullptr) mk::fail(MK_ERROR_ARGUMENT, "context is NULL");
    const mk::DeviceGuard guard(context->device);
    mk::check_cuda(mk::hold_launch(std::min<uint64_t>(nanoseconds, 1'000'000'000), stream), "holding a stream");
  });
}

}  // extern "C"
