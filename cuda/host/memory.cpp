// Memory, streams and events for callers without a CUDA runtime of their own.
#include "host/context.h"
#include "host/error.h"

namespace mk {
namespace {

// Runs `f` with the context's device selected.
template <class F>
int in_context(mk_context* context, mk_error* error, F f) {
  return guarded(error, [&] {
    if (context == nullptr) fail(MK_ERROR_ARGUMENT, "context is NULL");
    const DeviceGuard guard(context->device);
    f();
  });
}

template <class T>
void check_out(T* out, const char* name = "out") {
  if (out == nullptr) fail(MK_ERROR_ARGUMENT, "%s is NULL", name);
  *out = {};
}

cudaEvent_t cuda_event(mk_event* event, const char* name = "event") {
  if (event == nullptr) fail(MK_ERROR_ARGUMENT, "%s is NULL", name);
  return reinterpret_cast<cudaEvent_t>(event);
}

}  // namespace
}  // namespace mk

extern "C" {

int mk_allocate(mk_context* context, uint64_t bytes, void** out, mk_error* error) {
  return mk::in_context(context, error, [&] {
    mk::check_out(out);
    if (bytes > 0) mk::check_allocation(cudaMalloc(out, bytes), bytes, "device memory");
  });
}

int mk_free(mk_context* context, void* memory, mk_error* error) {
  return mk::in_context(context, error, [&] { mk::check_cuda(cudaFree(memory), "freeing device memory"); });
}

int mk_copy(mk_context* context, void* to, const void* from, uint64_t bytes, mk_stream stream, mk_error* error) {
  return mk::in_context(context, error, [&] {
    if (bytes == 0) return;
    if (to == nullptr) mk::fail(MK_ERROR_ARGUMENT, "to is NULL");
    if (from == nullptr) mk::fail(MK_ERROR_ARGUMENT, "from is NULL");
    mk::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying");
    mk::check_cuda(cudaStreamSynchronize(stream), "copying");
  });
}

int mk_fill(mk_context* context, void* to, uint8_t value, uint64_t bytes, mk_stream stream, mk_error* error) {
  return mk::in_context(context, error, [&] {
    if (bytes == 0) return;
    if (to == nullptr) mk::fail(MK_ERROR_ARGUMENT, "to is NULL");
    mk::check_cuda(cudaMemsetAsync(to, value, bytes, stream), "filling memory");
    mk::check_cuda(cudaStreamSynchronize(stream), "filling memory");
  });
}

int mk_stream_create(mk_context* context, mk_stream* out, mk_error* error) {
  return mk::in_context(context, error, [&] {
    mk::check_out(out);
    mk::check_cuda(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking), "making a stream");
  });
}

int mk_stream_destroy(mk_context* context, mk_stream stream, mk_error* error) {
  return mk::in_context(context, error, [&] {
    if (stream != nullptr) mk::check_cuda(cudaStreamDestroy(stream), "destroying a stream");
  });
}

int mk_stream_synchronize(mk_context* context, mk_stream stream, mk_error* error) {
  return mk::in_context(context, error, [&] { mk::check_cuda(cudaStreamSynchronize(stream), "waiting for the stream"); });
}

int mk_event_create(mk_context* context, mk_event** out, mk_error* error) {
  return mk::in_context(context, error, [&] {
    mk::check_out(out);
    cudaEvent_t event;
    mk::check_cuda(cudaEventCreate(&event), "making an event");
    *out = reinterpret_cast<mk_event*>(event);
  });
}

int mk_event_destroy(mk_context* context, mk_event* event, mk_error* error) {
  return mk::in_context(context, error, [&] {
    if (event != nullptr) mk::check_cuda(cudaEventDestroy(mk::cuda_event(event)), "destroying an event");
  });
}

int mk_event_record(mk_context* context, mk_event* event, mk_stream stream, mk_error* error) {
  return mk::in_context(context, error, [&] { mk::check_cuda(cudaEventRecord(mk::cuda_event(event), stream), "recording an event"); });
}

int mk_event_elapsed(mk_context* context, mk_event* start, mk_event* end, float* ms, mk_error* error) {
  return mk::in_context(context, error, [&] {
    mk::check_out(ms, "ms");
    mk::check_cuda(cudaEventElapsedTime(ms, mk::cuda_event(start, "start"), mk::cuda_event(end, "end")), "time between two events");
  });
}

}  // extern "C"
