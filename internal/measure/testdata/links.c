// A data plane library without GPUs: what it tells of links is made up, so that the way to the caller can be tested.
#include <stdio.h>

#include "mkernel_device.h"
#include "mkernel_measure.h"

#ifndef LINKS_VERSION
#define LINKS_VERSION MK_VERSION
#endif

static int failed(mk_error* e, int code, const char* text) {
  e->code = code;
  snprintf(e->text, sizeof e->text, "%s", text);
  return code;
}

uint32_t mk_version(void) { return LINKS_VERSION; }

int mk_device_count(int32_t* count, mk_error* e) {
#ifdef LINKS_NO_DRIVER
  return failed(e, MK_ERROR_UNSUPPORTED, "no NVIDIA driver");
#endif
  *count = 2;
  return MK_OK;
}

int mk_device_query(int32_t device, mk_device_info* info, mk_error* e) {
  if (info->size != sizeof *info || info->version != MK_VERSION) return failed(e, MK_ERROR_ARGUMENT, "not initialised");
  for (int i = 0; i < 16; ++i) info->uuid[i] = (uint8_t)(16 * device + i);
  return MK_OK;
}

#ifndef LINKS_OLD
int mk_measure_pair(int32_t a, int32_t b, const mk_measure_options* options, mk_measure_path path[2], mk_error* e) {
  if (options != NULL) return failed(e, MK_ERROR_ARGUMENT, "options");
  if (a > 1 || b > 1) return failed(e, MK_ERROR_ARGUMENT, "device 2 does not exist");
  for (int i = 0; i < 2; ++i) {
    MK_INIT(&path[i]);
    const double d = i == 0 ? 0 : 0.5;
    path[i].direct = i == 0;
    path[i].copy_gbs = 1 + d, path[i].both_gbs = 2 + d, path[i].store_gbs = 3 + d, path[i].load_us = 4 + d, path[i].signal_us = 5 + d;
    path[i].words = 6 + i, path[i].wrong_copy = 8 + i, path[i].wrong_store = 10 + i, path[i].wrong_load = 12 + i;
  }
  return MK_OK;
}

int mk_measure_host_link(int32_t device, const mk_measure_options* options, mk_measure_host* out, mk_error* e) {
  if (device > 1 || options != NULL) return failed(e, MK_ERROR_ABORTED, "lost signal 7");
  MK_INIT(out);
  out->to_device_gbs = 1, out->to_host_gbs = 2, out->both_to_device_gbs = 3, out->both_to_host_gbs = 4, out->signal_us = 5;
  out->words = 6, out->wrong_to_device = 7, out->wrong_to_host = 8;
  return MK_OK;
}
#endif
