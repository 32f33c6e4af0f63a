//go:build cgo

#include "bridge.h"

#include <dlfcn.h>
#include <stdio.h>

int bridge_open(const char *path, bridge *b, char *why, size_t size) {
  memset(b, 0, sizeof *b);
  b->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // never closed: threads of it may run
  if (b->handle == NULL) {
    snprintf(why, size, "%s", dlerror());
    return 1;
  }
  // The version first: a library of another one has other functions.
  *(void **)&b->mknet_version = dlsym(b->handle, "mknet_version");
  if (b->mknet_version == NULL) {
    snprintf(why, size, "it has no function mknet_version");
    return 1;
  }
  if (b->mknet_version() != MKNET_VERSION) {
    snprintf(why, size, "it has version %u of the interface, this mkrun speaks version %u", b->mknet_version(), MKNET_VERSION);
    return 1;
  }
#define MKNET_FIND(name)                                 \
  *(void **)&b->name = dlsym(b->handle, #name);          \
  if (b->name == NULL) {                                 \
    snprintf(why, size, "it has no function %s", #name); \
    return 1;                                            \
  }
  MKNET_FUNCTIONS(MKNET_FIND)
#undef MKNET_FIND
  return 0;
}
