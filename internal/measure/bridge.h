// The functions of the data plane library that measure, found by name when it is opened.
#ifndef MKRUN_MEASURE_BRIDGE_H
#define MKRUN_MEASURE_BRIDGE_H

#include <dlfcn.h>
#include <stdio.h>

#include "mkernel_device.h"
#include "mkernel_measure.h"

#define MKRUN_MEASURE_FUNCTIONS(X) X(mk_version) X(mk_device_count) X(mk_device_query) X(mk_measure_pair) X(mk_measure_host_link)

typedef struct mkrun_meter {
#define MKRUN_FIELD(name) __typeof__(name) *name;
  MKRUN_MEASURE_FUNCTIONS(MKRUN_FIELD)
#undef MKRUN_FIELD
} mkrun_meter;

// Returns 0, or fills why. The library is never closed: a CUDA runtime cannot be unloaded.
static inline int mkrun_meter_open(const char *path, mkrun_meter *m, char *why, size_t size) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    snprintf(why, size, "%s", dlerror());
    return 1;
  }
#define MKRUN_FIND(name)                                                                                  \
  *(void **)&m->name = dlsym(handle, #name);                                                              \
  if (m->name == NULL) {                                                                                  \
    snprintf(why, size, "it has no function %s: build it from the same source as mkrun (make cuda)", #name); \
    return 1;                                                                                             \
  }
  MKRUN_MEASURE_FUNCTIONS(MKRUN_FIND)
#undef MKRUN_FIND
  if (m->mk_version() != MK_VERSION) {
    snprintf(why, size, "it has version %u of the interface, this mkrun speaks version %u", m->mk_version(), MK_VERSION);
    return 1;
  }
  return 0;
}

// cgo cannot call through a pointer.
static inline int mkrun_device_count(const mkrun_meter *m, int32_t *count, mk_error *e) { return m->mk_device_count(count, e); }
static inline int mkrun_device_query(const mkrun_meter *m, int32_t device, mk_device_info *info, mk_error *e) {
  MK_INIT(info);
  return m->mk_device_query(device, info, e);
}
static inline int mkrun_pair(const mkrun_meter *m, int32_t a, int32_t b, mk_measure_path *path, mk_error *e) {
  return m->mk_measure_pair(a, b, NULL, path, e);
}
static inline int mkrun_host_link(const mkrun_meter *m, int32_t device, mk_measure_host *out, mk_error *e) {
  return m->mk_measure_host_link(device, NULL, out, e);
}

#endif
