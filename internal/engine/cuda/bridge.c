//go:build cgo

#include "bridge.h"

#include <dlfcn.h>
#include <stdio.h>

#include "_cgo_export.h"

int mkrun_open(const char *path, mkrun_library *lib, uint32_t *version, char *why, size_t size) {
  *version = 0;
  memset(lib, 0, sizeof *lib);
  // It is never closed: a CUDA runtime cannot be unloaded.
  lib->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (lib->handle == NULL) {
    snprintf(why, size, "%s", dlerror());
    return 1;
  }
  *(void **)&lib->mk_version = dlsym(lib->handle, "mk_version");
  if (lib->mk_version == NULL) {
    snprintf(why, size, "it has no function mk_version");
    return 1;
  }
  *version = lib->mk_version();
  if (*version != MK_VERSION) return 0;
#define MKRUN_FIND(name)                                   \
  *(void **)&lib->name = dlsym(lib->handle, #name);        \
  if (lib->name == NULL) {                                 \
    snprintf(why, size, "it has no function %s", #name);   \
    return 1;                                              \
  }
  MKRUN_FUNCTIONS(MKRUN_FIND)
#undef MKRUN_FIND
  return 0;
}

static int allgather(void *user, const void *mine, void *all, uint64_t bytes) {
  return mkrunAllgather((uintptr_t)user, (void *)mine, all, bytes);
}

int mkrun_context_create(const mkrun_library *lib, const mkrun_context_args *args, mk_context **out, mk_error *error) {
  mk_context_desc d;
  MK_INIT(&d);
  d.rank = args->rank;
  d.world = args->world;
  d.device = args->device;
  d.share_gpus = args->share_gpus;
  d.heap_bytes = args->heap_bytes;
  d.timeout_ns = args->timeout_ns;
  d.allgather = allgather;
  d.user = (void *)args->bootstrap;
  d.node_ranks = args->node_ranks;
  d.nodes = args->nodes;
  d.network = args->network;
  d.net_bandwidth = args->net_bandwidth;
  d.net_latency_ns = args->net_latency_ns;
  d.net = args->net;
  return lib->mk_context_create(&d, out, error);
}
