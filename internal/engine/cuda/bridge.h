// The data plane library, opened at run time: its functions by name, and the few calls that need C on this side.
#ifndef MKRUN_BRIDGE_H
#define MKRUN_BRIDGE_H

#include "mkernel.h"
#include "mkernel_device.h"
#include "mkernel_measure.h"

// Every function of the library that mkrun calls.
#define MKRUN_FUNCTIONS(X)                                                                                             \
  X(mk_version)                                                                                                        \
  X(mk_device_count) X(mk_device_query) X(mk_device_reaches) X(mk_device_free_bytes)                                   \
  X(mk_measure_pair) X(mk_measure_fan_out) X(mk_measure_host_link)                                                     \
  X(mk_context_create) X(mk_context_destroy) X(mk_context_network) X(mk_barrier)                                       \
  X(mk_allocate) X(mk_free) X(mk_copy) X(mk_fill)                                                                      \
  X(mk_stream_create) X(mk_stream_destroy) X(mk_stream_synchronize) X(mk_stream_hold)                                  \
  X(mk_event_create) X(mk_event_destroy) X(mk_event_record) X(mk_event_elapsed)                                        \
  X(mk_ag_gemm_heap_bytes) X(mk_ag_gemm_create) X(mk_ag_gemm_destroy)                                                  \
  X(mk_ag_gemm_launch) X(mk_ag_gemm_choose) X(mk_ag_gemm_status) X(mk_ag_gemm_abort) X(mk_ag_gemm_waited) \
  X(mk_ag_gemm_timeline)

typedef struct mkrun_library {
  void *handle;
#define MKRUN_FIELD(name) __typeof__(name) *name;
  MKRUN_FUNCTIONS(MKRUN_FIELD)
#undef MKRUN_FIELD
} mkrun_library;

// Opens the file and finds the functions. Returns 0, or fills why: with the first function that is missing, or with
// what the dynamic linker says. `version` gets what mk_version says, 0 if the file is no data plane; functions are only
// looked for if it is the one this was built with.
int mkrun_open(const char *path, mkrun_library *lib, uint32_t *version, char *why, size_t size);

// What a Go context is made with.
typedef struct mkrun_context_args {
  int32_t rank, world, device, share_gpus;
  uint64_t heap_bytes, timeout_ns;
  const int32_t *node_ranks;
  int32_t nodes, network;
  double net_bandwidth;
  uint64_t net_latency_ns;
  const void *net; // an mknet_desc
  uintptr_t bootstrap; // a cgo.Handle, for the all-gather
} mkrun_context_args;

int mkrun_context_create(const mkrun_library *lib, const mkrun_context_args *args, mk_context **out, mk_error *error);

// cgo cannot call through a pointer: a function for each call.
#define MKRUN_CALL(name, parameters, arguments)                                                                        \
  static inline int mkrun_call_##name parameters { return lib->name arguments; }

MKRUN_CALL(mk_device_count, (const mkrun_library *lib, int32_t *count, mk_error *e), (count, e))
MKRUN_CALL(mk_device_query, (const mkrun_library *lib, int32_t device, mk_device_info *info, mk_error *e), (device, info, e))
MKRUN_CALL(mk_device_reaches, (const mkrun_library *lib, int32_t device, int32_t peer, int32_t *yes, mk_error *e), (device, peer, yes, e))
MKRUN_CALL(mk_device_free_bytes, (const mkrun_library *lib, int32_t device, uint64_t *bytes, mk_error *e), (device, bytes, e))
MKRUN_CALL(mk_measure_pair, (const mkrun_library *lib, int32_t a, int32_t b, mk_measure_path *path, mk_error *e), (a, b, NULL, path, e))
MKRUN_CALL(mk_measure_fan_out, (const mkrun_library *lib, const int32_t *d, int32_t n, mk_measure_fan *f, int32_t count, mk_error *e), (d, n, NULL, f, count, e))
MKRUN_CALL(mk_measure_host_link, (const mkrun_library *lib, int32_t device, mk_measure_host *out, mk_error *e), (device, NULL, out, e))
MKRUN_CALL(mk_context_destroy, (const mkrun_library *lib, mk_context *c, mk_error *e), (c, e))
MKRUN_CALL(mk_context_network, (const mkrun_library *lib, mk_context *c, char *text, uint64_t n, mk_error *e), (c, text, n, e))
MKRUN_CALL(mk_barrier, (const mkrun_library *lib, mk_context *c, mk_stream s, mk_error *e), (c, s, e))
MKRUN_CALL(mk_allocate, (const mkrun_library *lib, mk_context *c, uint64_t n, void **out, mk_error *e), (c, n, out, e))
MKRUN_CALL(mk_free, (const mkrun_library *lib, mk_context *c, void *p, mk_error *e), (c, p, e))
MKRUN_CALL(mk_copy, (const mkrun_library *lib, mk_context *c, void *to, const void *from, uint64_t n, mk_stream s, mk_error *e), (c, to, from, n, s, e))
MKRUN_CALL(mk_fill, (const mkrun_library *lib, mk_context *c, void *to, uint8_t value, uint64_t n, mk_stream s, mk_error *e), (c, to, value, n, s, e))
MKRUN_CALL(mk_stream_create, (const mkrun_library *lib, mk_context *c, mk_stream *out, mk_error *e), (c, out, e))
MKRUN_CALL(mk_stream_destroy, (const mkrun_library *lib, mk_context *c, mk_stream s, mk_error *e), (c, s, e))
MKRUN_CALL(mk_stream_synchronize, (const mkrun_library *lib, mk_context *c, mk_stream s, mk_error *e), (c, s, e))
MKRUN_CALL(mk_stream_hold, (const mkrun_library *lib, mk_context *c, mk_stream s, uint64_t ns, mk_error *e), (c, s, ns, e))
MKRUN_CALL(mk_event_create, (const mkrun_library *lib, mk_context *c, mk_event **out, mk_error *e), (c, out, e))
MKRUN_CALL(mk_event_destroy, (const mkrun_library *lib, mk_context *c, mk_event *v, mk_error *e), (c, v, e))
MKRUN_CALL(mk_event_record, (const mkrun_library *lib, mk_context *c, mk_event *v, mk_stream s, mk_error *e), (c, v, s, e))
MKRUN_CALL(mk_event_elapsed, (const mkrun_library *lib, mk_context *c, mk_event *from, mk_event *to, float *ms, mk_error *e), (c, from, to, ms, e))
MKRUN_CALL(mk_ag_gemm_heap_bytes, (const mkrun_library *lib, const mk_ag_gemm_desc *d, uint64_t *bytes, mk_error *e), (d, bytes, e))
MKRUN_CALL(mk_ag_gemm_create, (const mkrun_library *lib, mk_context *c, const mk_ag_gemm_desc *d, mk_ag_gemm **out, mk_error *e), (c, d, out, e))
MKRUN_CALL(mk_ag_gemm_destroy, (const mkrun_library *lib, mk_ag_gemm *op, mk_error *e), (op, e))
MKRUN_CALL(mk_ag_gemm_launch, (const mkrun_library *lib, mk_ag_gemm *op, const mk_ag_gemm_args *a, const mk_ag_gemm_config *c, mk_stream s, mk_error *e), (op, a, c, s, e))
MKRUN_CALL(mk_ag_gemm_choose, (const mkrun_library *lib, mk_ag_gemm *op, const mk_ag_gemm_args *a, mk_ag_gemm_config *c, mk_error *e), (op, a, c, e))
MKRUN_CALL(mk_ag_gemm_status, (const mkrun_library *lib, mk_ag_gemm *op, mk_wait_record *r, mk_error *e), (op, r, e))
MKRUN_CALL(mk_ag_gemm_abort, (const mkrun_library *lib, mk_ag_gemm *op, mk_error *e), (op, e))
MKRUN_CALL(mk_ag_gemm_timeline, (const mkrun_library *lib, mk_ag_gemm *op, const mk_ag_gemm_args *a, const mk_ag_gemm_config *c, mk_stream s, mk_timeline_event *v, uint64_t capacity, uint64_t *count, uint64_t *lost, mk_error *e), (op, a, c, s, v, capacity, count, lost, e))
MKRUN_CALL(mk_ag_gemm_waited, (const mkrun_library *lib, mk_ag_gemm *op, mk_ag_gemm_waits *w, mk_error *e), (op, w, e))

#endif
