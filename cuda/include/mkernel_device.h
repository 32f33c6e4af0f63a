/* mkernel_device: devices, their memory, streams and timing, for callers of mkernel.h that have no CUDA runtime of their
 * own. Streams are those that mk_ag_gemm_launch takes, pointers those of its operands; both may be mixed with a caller's
 * own CUDA code. The rules of mkernel.h hold: codes and text, no global state, nothing read from the environment (but the
 * driver itself reads CUDA_VISIBLE_DEVICES), nothing printed.
 */
#ifndef MKERNEL_DEVICE_H
#define MKERNEL_DEVICE_H

#include "mkernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUevent_st* mk_event; /* a cudaEvent_t */

typedef struct mk_device_info {
  uint32_t size, version;
  char name[128];
  uint8_t uuid[16];
  int32_t major, minor;   /* compute capability */
  int32_t sms;            /* that this process may use: fewer than there are under MPS or in a GPU instance */
  int32_t cooperative;    /* 1: cooperative launches work */
  int32_t clock_khz;      /* highest SM clock */
  int32_t driver;         /* newest CUDA the driver can run, as 1000 * major + 10 * minor */
  uint64_t total_bytes;   /* of memory */
} mk_device_info;

/* How many GPUs this process sees; 0 with MK_OK if the driver is there and shows none. MK_ERROR_UNSUPPORTED: no driver, or one that
 * is too old for this library. */
MK_API int mk_device_count(int32_t* count, mk_error* error);
MK_API int mk_device_query(int32_t device, mk_device_info* info, mk_error* error);
/* 1 if kernels on `device` can read and write the memory of `peer`; a device reaches itself. */
MK_API int mk_device_reaches(int32_t device, int32_t peer, int32_t* yes, mk_error* error);
/* Memory that could be allocated now. Makes the device's context, so it takes a while the first time. */
MK_API int mk_device_free_bytes(int32_t device, uint64_t* bytes, mk_error* error);

/* Memory is aligned to 256 bytes. 0 bytes give NULL. */
MK_API int mk_device_alloc(int32_t device, uint64_t bytes, void** out, mk_error* error);
MK_API int mk_device_release(int32_t device, void* memory, mk_error* error);

/* Copies between host and device, and a fill with one byte (0xff: NaN in bf16, f16 and f32). Ordered in `stream`; they
 * return when done. Host memory may be any. */
MK_API int mk_device_write(int32_t device, void* to, const void* host, uint64_t bytes, mk_stream stream, mk_error* error);
MK_API int mk_device_read(int32_t device, void* host, const void* from, uint64_t bytes, mk_stream stream, mk_error* error);
MK_API int mk_device_fill(int32_t device, void* to, uint8_t value, uint64_t bytes, mk_stream stream, mk_error* error);

/* A stream that waits for no other. mk_stream_wait returns when all that was put into it is done. */
MK_API int mk_stream_create(int32_t device, mk_stream* out, mk_error* error);
MK_API int mk_stream_wait(int32_t device, mk_stream stream, mk_error* error);
MK_API int mk_stream_destroy(int32_t device, mk_stream stream, mk_error* error);

/* Moments in a stream. mk_event_elapsed gives the time between two that have passed. */
MK_API int mk_event_create(int32_t device, mk_event* out, mk_error* error);
MK_API int mk_event_record(int32_t device, mk_event event, mk_stream stream, mk_error* error);
MK_API int mk_event_elapsed(int32_t device, mk_event from, mk_event to, float* milliseconds, mk_error* error);
MK_API int mk_event_destroy(int32_t device, mk_event event, mk_error* error);

/* Keeps `stream` busy for a time, so that what is put into it after is queued when it starts. At most a second. */
MK_API int mk_stream_hold(int32_t device, mk_stream stream, uint64_t nanoseconds, mk_error* error);

#ifdef __cplusplus
}
#endif
#endif
