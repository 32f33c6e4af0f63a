// The inter-node library, opened at run time: its functions by name.
#ifndef MKRUN_MKNET_BRIDGE_H
#define MKRUN_MKNET_BRIDGE_H

#include <stddef.h>

#include "mknet.h"

#define MKNET_FUNCTIONS(X)                                                                                       \
  X(mknet_version) X(mknet_usable) X(mknet_create) X(mknet_destroy) X(mknet_register) X(mknet_endpoint)          \
  X(mknet_connect) X(mknet_start) X(mknet_verify) X(mknet_queue) X(mknet_drain) X(mknet_abort) X(mknet_status)   \
  X(mknet_describe)

typedef struct bridge {
  void *handle;
#define MKNET_FIELD(name) __typeof__(name) *name;
  MKNET_FUNCTIONS(MKNET_FIELD)
#undef MKNET_FIELD
} bridge;

// Opens the file and finds the functions: 0, or `why` is filled.
int bridge_open(const char *path, bridge *b, char *why, size_t size);

static inline int bridge_usable(const bridge *b, const mknet_desc *d, char *text, uint64_t n, mknet_error *e) { return b->mknet_usable(d, text, n, e); }
static inline int bridge_create(const bridge *b, const mknet_desc *d, mknet **out, mknet_error *e) { return b->mknet_create(d, out, e); }
static inline int bridge_destroy(const bridge *b, mknet *n, mknet_error *e) { return b->mknet_destroy(n, e); }
static inline int bridge_register(const bridge *b, mknet *n, const mknet_range *r, uint32_t *region, mknet_error *e) { return b->mknet_register(n, r, region, e); }
static inline int bridge_endpoint(const bridge *b, mknet *n, int32_t peer, void *data, uint64_t *length, mknet_error *e) { return b->mknet_endpoint(n, peer, data, length, e); }
static inline int bridge_connect(const bridge *b, mknet *n, int32_t peer, const void *common, uint64_t nc, const void *own, uint64_t no, mknet_error *e) {
  return b->mknet_connect(n, peer, common, nc, own, no, NULL, e);
}
static inline int bridge_start(const bridge *b, mknet *n, mknet_error *e) { return b->mknet_start(n, e); }
static inline int bridge_verify(const bridge *b, mknet *n, uint64_t ns, mknet_error *e) { return b->mknet_verify(n, ns, e); }
static inline mknet_fifo *bridge_queue(const bridge *b, mknet *n) { return b->mknet_queue(n); }
static inline int bridge_drain(const bridge *b, mknet *n, uint64_t ns, mknet_error *e) { return b->mknet_drain(n, ns, e); }
static inline void bridge_abort(const bridge *b, mknet *n, const char *reason) { b->mknet_abort(n, reason); }
static inline int bridge_status(const bridge *b, mknet *n, uint64_t ns, mknet_error *e) { return b->mknet_status(n, ns, e); }
static inline int bridge_describe(const bridge *b, mknet *n, char *text, uint64_t length, mknet_error *e) { return b->mknet_describe(n, text, length, e); }

#endif
