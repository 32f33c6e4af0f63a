/* mkernel_device: what GPUs there are, for callers of mkernel.h that have no CUDA runtime of their own and must know before
 * they make a context. The rules of mkernel.h hold: codes and text, no global state, nothing read from the environment
 * (but the driver itself reads CUDA_VISIBLE_DEVICES), nothing printed.
 */
#ifndef MKERNEL_DEVICE_H
#define MKERNEL_DEVICE_H

#include "mkernel.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* How many GPUs this process sees; 0 with MK_OK if the driver is there and shows none. MK_ERROR_UNSUPPORTED: no driver,
 * or one that is too old for this library. */
MK_API int mk_device_count(int32_t* count, mk_error* error);
MK_API int mk_device_query(int32_t device, mk_device_info* info, mk_error* error);
/* 1 if kernels on `device` can read and write the memory of `peer`; a device reaches itself. */
MK_API int mk_device_reaches(int32_t device, int32_t peer, int32_t* yes, mk_error* error);
/* Memory that could be allocated now. Makes the device's context, so it takes a while the first time. */
MK_API int mk_device_free_bytes(int32_t device, uint64_t* bytes, mk_error* error);

/* Keeps `stream` busy for a time, so that what is put into it after is queued when it starts. At most a second. */
MK_API int mk_stream_hold(mk_context* context, mk_stream stream, uint64_t nanoseconds, mk_error* error);

#ifdef __cplusplus
}
#endif
#endif
