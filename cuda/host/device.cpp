// Devices, memory, streams and events for callers without a CUDA runtime (mkernel_device.h).
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

// Runs `f` with the device selected; every function below that works on one goes through it.
template <class F>
int on_device(int device, mk_error* error, F f) {
  return guarded(error, [&] {
    const DeviceGuard guard(device);
    f();
  });
}

// Copies and fills do not wait for streams of other callers, and are done when they return.
template <class F>
int transfer(int device, const void* memory, uint64_t bytes, mk_stream stream, mk_error* error, const char* what, F start) {
  return on_device(device, error, [&] {
    if (bytes == 0) return;
    check_out(memory, "memory");
    check_cuda(start(), what);
    check_cuda(cudaStreamSynchronize(stream), what);
  });
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
    snprintf(info->name, sizeof info->name, "%s", p.name);
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
  return mk::on_device(device, error, [&] {
    mk::check_out(bytes, "bytes");
    size_t available = 0, total = 0;
    mk::check_cuda(cudaMemGetInfo(&available, &total), "free memory");
    *bytes = available;
  });
}

int mk_device_alloc(int32_t device, uint64_t bytes, void** out, mk_error* error) {
  return mk::on_device(device, error, [&] {
    mk::check_out(out, "out");
    *out = nullptr;
    if (bytes != 0) mk::check_cuda(cudaMalloc(out, bytes), "device memory");
  });
}

int mk_device_release(int32_t device, void* memory, mk_error* error) {
  return mk::on_device(device, error, [&] { mk::check_cuda(cudaFree(memory), "releasing device memory"); });
}

int mk_device_write(int32_t device, void* to, const void* host, uint64_t bytes, mk_stream stream, mk_error* error) {
  return mk::transfer(device, bytes != 0 && host == nullptr ? nullptr : to, bytes, stream, error, "copying to the device",
                      [&] { return cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream); });
}

int mk_device_read(int32_t device, void* host, const void* from, uint64_t bytes, mk_stream stream, mk_error* error) {
  return mk::transfer(device, bytes != 0 && host == nullptr ? nullptr : from, bytes, stream, error, "copying from the device",
                      [&] { return cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream); });
}

int mk_device_fill(int32_t device, void* to, uint8_t value, uint64_t bytes, mk_stream stream, mk_error* error) {
  return mk::transfer(device, to, bytes, stream, error, "filling device memory",
                      [&] { return cudaMemsetAsync(to, value, bytes, stream); });
}

int mk_stream_create(int32_t device, mk_stream* out, mk_error* error) {
  return mk::on_device(device, error, [&] {
    mk::check_out(out, "out");
    *out = nullptr;
    mk::check_cuda(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking), "making a stream");
  });
}

int mk_stream_wait(int32_t device, mk_stream stream, mk_error* error) {
  return mk::on_device(device, error, [&] { mk::check_cuda(cudaStreamSynchronize(stream), "waiting for a stream"); });
}

int mk_stream_destroy(int32_t device, mk_stream stream, mk_error* error) {
  return mk::on_device(device, error, [&] {
    if (stream != nullptr) mk::check_cuda(cudaStreamDestroy(stream), "ending a stream");
  });
}

int mk_stream_hold(int32_t device, mk_stream stream, uint64_t nanoseconds, mk_error* error) {
  return mk::on_device(device, error, [&] {
    mk::check_cuda(mk::hold_launch(std::min<uint64_t>(nanoseconds, 1'000'000'000), stream), "holding a stream");
  });
}

int mk_event_create(int32_t device, mk_event* out, mk_error* error) {
  return mk::on_device(device, error, [&] {
    mk::check_out(out, "out");
    *out = nullptr;
    mk::check_cuda(cudaEventCreate(out), "making an event");
  });
}

int mk_event_record(int32_t device, mk_event event, mk_stream stream, mk_error* error) {
  return mk::on_device(device, error, [&] { mk::check_cuda(cudaEventRecord(event, stream), "recording an event"); });
}

int mk_event_elapsed(int32_t device, mk_event from, mk_event to, float* milliseconds, mk_error* error) {
  return mk::on_device(device, error, [&] {
    mk::check_out(milliseconds, "milliseconds");
    mk::check_cuda(cudaEventElapsedTime(milliseconds, from, to), "time between two events");
  });
}

int mk_event_destroy(int32_t device, mk_event event, mk_error* error) {
  return mk::on_device(device, error, [&] {
    if (event != nullptr) mk::check_cuda(cudaEventDestroy(event), "ending an event");
  });
}

}  // extern "C"
