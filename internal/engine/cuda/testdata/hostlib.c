// The data plane's C interface on host memory, for tests of the Go side where there is no GPU: ranks are processes or
// threads of one host, a stream is the calling thread, and a launch interprets the plan with one worker per role. Nothing
// here is fast, and nothing of it is in mkrun.
//
// What "GPUs" there are comes from the environment: HOSTLIB_GPUS (number), HOSTLIB_CC ("9.0"), HOSTLIB_BYTES (memory of
// each), HOSTLIB_P2P ("0": none). Faults: HOSTLIB_DROP ("flag at rank": a signal that is never raised), HOSTLIB_NAN ("1": one
// element of the result is not written). Between nodes with NICs, data and flags go through the library HOSTLIB_MKNET
// (libmknet.so), over the fake verbs library HOSTLIB_VERBS. HOSTLIB_VERSION is set when it is compiled, to be of another ABI.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "mkernel.h"
#include "mkernel_device.h"
#include "mkernel_measure.h"
#include "mkernel_plan.h"
#include "mknet.h"

#ifndef HOSTLIB_VERSION
#define HOSTLIB_VERSION MK_VERSION
#endif

enum { kMostRanks = 16, kControl = 1 << 20, kMostFlags = 65536 };

// The beginning of each rank's heap.
typedef struct {
  _Atomic uint64_t abort;
  _Atomic uint64_t barrier[kMostRanks]; // the number of the last barrier that each rank has entered
  _Atomic uint64_t flags[kMostFlags];
} Control;
_Static_assert(sizeof(Control) <= kControl, "control block");

struct mk_context {
  mk_context_desc d;
  char* heap[kMostRanks];
  uint64_t barriers;
  int meets_on_host; // ranks of other nodes are reached by NICs, which raise no flags of barriers
  mk_wait_record gave_up;
  uint64_t first_rank, end_rank; // of the own node
  int heap_fd;
  mknet* net; // NULL: ranks of other nodes are reached as those of the own one
  uint32_t source; // region, 0: none yet
  const void* source_base;
};

// The inter-node library, opened at run time as the data plane links it.
static struct {
  void* handle;
  __typeof__(mknet_join)* join;
  __typeof__(mknet_register)* add;
  __typeof__(mknet_push)* push;
  __typeof__(mknet_flush)* flush;
  __typeof__(mknet_status)* status;
  __typeof__(mknet_describe)* describe;
  __typeof__(mknet_destroy)* destroy;
} nets;

struct mk_event {
  uint64_t at;
};

struct mk_ag_gemm {
  mk_context* context;
  uint8_t* image;
  mk_plan plan;
  mk_ag_gemm_desc d;
  uint64_t epoch;
  mk_wait_record record;
  int64_t life, waited;
  mk_timeline_event* events; // of a call that is recorded
  uint64_t room, recorded;
};

static int fail(mk_error* e, int code, const char* text) {
  if (e != NULL) {
    e->code = code;
    snprintf(e->text, sizeof e->text, "%.507s", text);
  }
  return code;
}

static int ok(mk_error* e) { return fail(e, MK_OK, ""); }

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const char* setting(const char* name, const char* otherwise) {
  const char* v = getenv(name);
  return v != NULL && *v != 0 ? v : otherwise;
}

uint32_t mk_version(void) { return HOSTLIB_VERSION; }

// Devices.

int mk_device_count(int32_t* count, mk_error* e) {
  *count = atoi(setting("HOSTLIB_GPUS", "2"));
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible != NULL && *visible != 0) { // as CUDA does it, by commas
    int named = 1;
    for (const char* p = visible; *p != 0; ++p) named += *p == ',';
    if (named < *count) *count = named;
  }
  if (*count < 0) return fail(e, MK_ERROR_UNSUPPORTED, "no NVIDIA driver, or one that is too old");
  return ok(e);
}

int mk_device_query(int32_t device, mk_device_info* info, mk_error* e) {
  if (info->size != sizeof *info || info->version != MK_VERSION) return fail(e, MK_ERROR_ARGUMENT, "mk_device_info is of another version");
  int32_t count;
  mk_device_count(&count, e);
  if (device < 0 || device >= count) return fail(e, MK_ERROR_ARGUMENT, "the device does not exist");
  snprintf(info->name, sizeof info->name, "host memory");
  memset(info->uuid, 0, sizeof info->uuid);
  info->uuid[15] = (uint8_t)device;
  sscanf(setting("HOSTLIB_CC", "9.0"), "%d.%d", &info->major, &info->minor);
  info->sms = 4;
  info->cooperative = 1;
  info->clock_khz = 1000000;
  info->driver = 13000;
  info->total_bytes = strtoull(setting("HOSTLIB_BYTES", "17179869184"), NULL, 10);
  return ok(e);
}

int mk_device_reaches(int32_t device, int32_t peer, int32_t* yes, mk_error* e) {
  *yes = device == peer || atoi(setting("HOSTLIB_P2P", "1"));
  return ok(e);
}

int mk_device_free_bytes(int32_t device, uint64_t* bytes, mk_error* e) {
  (void)device;
  *bytes = strtoull(setting("HOSTLIB_FREE", setting("HOSTLIB_BYTES", "17179869184")), NULL, 10);
  return ok(e);
}

// Figures of links: made up, each another number, so that one in the wrong place is seen.
int mk_measure_pair(int32_t a, int32_t b, const mk_measure_options* options, mk_measure_path path[2], mk_error* e) {
  (void)options;
  const int gpus = atoi(setting("HOSTLIB_GPUS", "0"));
  if (a >= gpus || b >= gpus) return fail(e, MK_ERROR_ARGUMENT, "a device that does not exist");
  for (int i = 0; i < 2; ++i) {
    MK_INIT(&path[i]);
    const double back = 0.5 * i;
    path[i].direct = i == 0;
    path[i].copy_gbs = 1 + back, path[i].both_gbs = 2 + back, path[i].store_gbs = 3 + back;
    path[i].load_us = 4 + back, path[i].signal_us = 5 + back;
    path[i].words = 6 + i, path[i].wrong_copy = 8 + i, path[i].wrong_store = 10 + i, path[i].wrong_load = 12 + i;
  }
  return ok(e);
}

int mk_measure_fan_out(const int32_t* devices, int32_t count, const mk_measure_options* options, mk_measure_fan* fans,
                       int32_t fan_count, mk_error* e) {
  (void)options;
  for (int i = 0; i < count; ++i)
    if (devices[i] >= atoi(setting("HOSTLIB_GPUS", "0"))) return fail(e, MK_ERROR_ARGUMENT, "a device that does not exist");
  for (int i = 0; i < fan_count; ++i) {
    mk_measure_fan* f = &fans[i];
    if (f->size != sizeof *f || f->version != MK_VERSION) return fail(e, MK_ERROR_ARGUMENT, "mk_measure_fan is of another version");
    f->gbs = 1000 * f->sources + 100 * f->peers + f->ctas + 0.1 * f->depth;
    f->words = 14 + i, f->wrong = 15 + i;
  }
  return ok(e);
}

int mk_measure_host_link(int32_t device, const mk_measure_options* options, mk_measure_host* out, mk_error* e) {
  (void)options;
  if (device >= atoi(setting("HOSTLIB_GPUS", "0"))) return fail(e, MK_ERROR_ABORTED, "lost signal 7");
  MK_INIT(out);
  out->to_device_gbs = 1, out->to_host_gbs = 2, out->both_to_device_gbs = 3, out->both_to_host_gbs = 4, out->signal_us = 5;
  out->words = 6, out->wrong_to_device = 7, out->wrong_to_host = 8;
  return ok(e);
}

// Contexts.

static int gather(mk_context* c, const void* mine, void* all, uint64_t bytes, mk_error* e) {
  if (c->d.world == 1) {
    memcpy(all, mine, bytes);
    return MK_OK;
  }
  return c->d.allgather(c->d.user, mine, all, bytes) == 0 ? MK_OK : fail(e, MK_ERROR_BOOTSTRAP, "the all-gather callback failed");
}

static int meet(mk_context* c, mk_error* e) {
  char all[kMostRanks], mine = 1;
  return gather(c, &mine, all, 1, e);
}

static Control* control(const mk_context* c, int rank) { return (Control*)c->heap[rank]; }

static void find_net(void) {
  if (nets.handle != NULL || (nets.handle = dlopen(setting("HOSTLIB_MKNET", ""), RTLD_NOW | RTLD_LOCAL)) == NULL) return;
#define FIND(field, name) *(void**)&nets.field = dlsym(nets.handle, name)
  FIND(join, "mknet_join"), FIND(add, "mknet_register"), FIND(push, "mknet_push"), FIND(flush, "mknet_flush");
  FIND(status, "mknet_status"), FIND(describe, "mknet_describe"), FIND(destroy, "mknet_destroy");
#undef FIND
}

// How the proxy moves "device memory", which is the host's: at once, so that all is done when it asks.
static int device_copy(void* user, void* target, const void* source, uint64_t bytes) {
  (void)user;
  memcpy(target, source, bytes);
  return 0;
}
static int device_store(void* user, void* target, uint64_t value) {
  (void)user;
  __atomic_store_n((uint64_t*)target, value, __ATOMIC_SEQ_CST);
  return 0;
}
static int device_mark(void* user, uint64_t* ticket) {
  (void)user;
  *ticket = 0;
  return 0;
}
static int device_done(void* user, uint64_t ticket) {
  (void)user, (void)ticket;
  return 1;
}
static const mknet_device device = {.copy = device_copy, .store = device_store, .mark = device_mark, .done = device_done};

// The NICs: the heap is device memory with a dma-buf, as far as they know.
static int join_nics(mk_context* c, mk_error* e) {
  find_net();
  if (nets.handle == NULL) return fail(e, MK_ERROR_UNSUPPORTED, "HOSTLIB_MKNET is no library");
  mknet_desc d = *c->d.net;
  d.rank = c->d.rank, d.world = c->d.world, d.timeout_ns = c->d.timeout_ns, d.device_producers = 1, d.device = &device;
  if (*setting("HOSTLIB_VERBS", "") != 0) d.rdma.library = setting("HOSTLIB_VERBS", "");
  uint8_t peers[kMostRanks];
  for (int r = 0; r < c->d.world; ++r) peers[r] = (uint64_t)r < c->first_rank || (uint64_t)r >= c->end_rank;
  mknet_range heap;
  MKNET_INIT(&heap);
  heap.base = c->heap[c->d.rank], heap.bytes = c->d.heap_bytes, heap.memory = MKNET_DEVICE, heap.fd = c->heap_fd;
  mknet_group g;
  MKNET_INIT(&g);
  g.allgather = c->d.allgather, g.user = c->d.user, g.peers = peers, g.mapped = (void**)c->heap, g.verify_ns = c->d.timeout_ns;
  g.open_ns = c->d.timeout_ns / 2, g.place = "host memory";
  mknet_error why;
  return nets.join(&d, &heap, &g, &c->net, &why) == MKNET_OK ? MK_OK : fail(e, MK_ERROR_BOOTSTRAP, why.text);
}

int mk_context_network(mk_context* c, char* text, uint64_t length, mk_error* e) {
  text[0] = 0;
  if (c->net != NULL)
    nets.describe(c->net, text, length, NULL);
  else if (c->d.nodes > 1)
    snprintf(text, length, "emu: the memory of one host");
  return ok(e);
}

int mk_context_create(const mk_context_desc* d, mk_context** out, mk_error* e) {
  *out = NULL;
  if (d->size != sizeof *d || d->version != MK_VERSION) return fail(e, MK_ERROR_ARGUMENT, "mk_context_desc is of another version");
  if (d->world > kMostRanks || (d->nodes > 1 && d->network != MK_NETWORK_EMU && d->network != MK_NETWORK_NIC)) return fail(e, MK_ERROR_ARGUMENT, "too many ranks, or no network between nodes");
  int32_t count;
  mk_device_count(&count, e);
  if (d->device >= count) return fail(e, MK_ERROR_ARGUMENT, "the device does not exist");
  mk_context* c = calloc(1, sizeof *c);
  c->d = *d;
  if (c->d.timeout_ns == 0) c->d.timeout_ns = 10000000000u;
  struct {
    int pid, fd;
    uint64_t bytes;
  } mine = {getpid(), memfd_create("hostlib", MFD_CLOEXEC), d->heap_bytes}, all[kMostRanks];
  int code = ftruncate(mine.fd, (off_t)d->heap_bytes) == 0 ? gather(c, &mine, all, sizeof mine, e) : fail(e, MK_ERROR_MEMORY, "no memory");
  for (int r = 0; r < d->world && code == MK_OK; ++r) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", all[r].pid, all[r].fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || all[r].bytes != d->heap_bytes) code = fail(e, MK_ERROR_BOOTSTRAP, "a peer's heap cannot be opened, or is of another size");
    if (code == MK_OK) c->heap[r] = mmap(NULL, d->heap_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
  }
  if (code == MK_OK) code = meet(c, e);
  c->end_rank = (uint64_t)d->world;
  for (int node = 0, first = 0; node < d->nodes; first += d->node_ranks[node++])
    if (d->rank >= first && d->rank < first + d->node_ranks[node]) c->first_rank = (uint64_t)first, c->end_rank = (uint64_t)(first + d->node_ranks[node]);
  c->heap_fd = mine.fd;
  c->meets_on_host = d->nodes > 1 && d->network == MK_NETWORK_NIC && strcmp(d->net->backend, "emu") != 0;
  if (code == MK_OK && d->nodes > 1 && d->network == MK_NETWORK_NIC) code = join_nics(c, e);
  close(mine.fd);
  if (code != MK_OK) {
    mk_context_destroy(c, NULL);
    return code;
  }
  *out = c;
  return ok(e);
}

int mk_context_destroy(mk_context* c, mk_error* e) {
  if (c == NULL) return ok(e);
  const int code = c->heap[c->d.world - 1] != NULL ? meet(c, e) : MK_OK;
  if (c->net != NULL) nets.destroy(c->net, NULL);
  for (int r = 0; r < c->d.world; ++r)
    if (c->heap[r] != NULL) munmap(c->heap[r], c->d.heap_bytes);
  free(c);
  return code == MK_OK ? ok(e) : code;
}

int mk_barrier(mk_context* c, mk_stream s, mk_error* e) {
  (void)s;
  if (c->gave_up.valid) return fail(e, MK_ERROR_ABORTED, "a barrier was given up");
  if (c->meets_on_host && meet(c, e) != MK_OK) return MK_ERROR_BOOTSTRAP;
  ++c->barriers;
  for (int r = 0; r < c->d.world; ++r) atomic_store(&control(c, r)->barrier[c->d.rank], c->barriers);
  const uint64_t deadline = now() + c->d.timeout_ns;
  for (int r = 0; r < c->d.world; ++r)
    while (atomic_load(&control(c, c->d.rank)->barrier[r]) < c->barriers) {
      if (atomic_load(&control(c, c->d.rank)->abort) != 0) return ok(e);
      if (now() > deadline) {
        c->gave_up.valid = 1, c->gave_up.rank = (uint32_t)c->d.rank, c->gave_up.block = (uint32_t)r;
        c->gave_up.role = MK_WAIT_BARRIER, c->gave_up.flag = MK_NO_FLAG;
        c->gave_up.seen = atomic_load(&control(c, c->d.rank)->barrier[r]), c->gave_up.wanted = c->barriers;
        for (int other = 0; other < c->d.world; ++other) atomic_store(&control(c, other)->abort, 1);
        return ok(e);
      }
      sched_yield();
    }
  return ok(e);
}

// Memory, streams, events.

int mk_allocate(mk_context* c, uint64_t bytes, void** out, mk_error* e) {
  (void)c;
  *out = NULL;
  if (bytes != 0 && posix_memalign(out, 256, bytes) != 0) return fail(e, MK_ERROR_MEMORY, "no memory");
  return ok(e);
}
int mk_free(mk_context* c, void* p, mk_error* e) {
  (void)c;
  free(p);
  return ok(e);
}
int mk_copy(mk_context* c, void* to, const void* from, uint64_t bytes, mk_stream s, mk_error* e) {
  (void)c, (void)s;
  memcpy(to, from, bytes);
  return ok(e);
}
int mk_fill(mk_context* c, void* to, uint8_t value, uint64_t bytes, mk_stream s, mk_error* e) {
  (void)c, (void)s;
  memset(to, value, bytes);
  return ok(e);
}
int mk_stream_create(mk_context* c, mk_stream* out, mk_error* e) {
  *out = (mk_stream)c;
  return ok(e);
}
int mk_stream_destroy(mk_context* c, mk_stream s, mk_error* e) {
  (void)c, (void)s;
  return ok(e);
}
int mk_stream_synchronize(mk_context* c, mk_stream s, mk_error* e) {
  (void)c, (void)s;
  return ok(e);
}
int mk_stream_hold(mk_context* c, mk_stream s, uint64_t ns, mk_error* e) {
  (void)c, (void)s, (void)ns;
  return ok(e);
}
int mk_event_create(mk_context* c, mk_event** out, mk_error* e) {
  (void)c;
  *out = calloc(1, sizeof **out);
  return ok(e);
}
int mk_event_destroy(mk_context* c, mk_event* v, mk_error* e) {
  (void)c;
  free(v);
  return ok(e);
}
int mk_event_record(mk_context* c, mk_event* v, mk_stream s, mk_error* e) {
  (void)c, (void)s;
  v->at = now();
  return ok(e);
}
int mk_event_elapsed(mk_context* c, mk_event* from, mk_event* to, float* ms, mk_error* e) {
  (void)c;
  *ms = (float)(to->at - from->at) * 1e-6f;
  return ok(e);
}

// The operator.

int mk_ag_gemm_heap_bytes(const mk_ag_gemm_desc* d, uint64_t* bytes, mk_error* e) {
  *bytes = kControl + (uint64_t)d->max_m * (uint64_t)d->max_k * 2;
  return ok(e);
}

int mk_ag_gemm_create(mk_context* c, const mk_ag_gemm_desc* d, mk_ag_gemm** out, mk_error* e) {
  *out = NULL;
  if (d->size != sizeof *d || d->version != MK_VERSION) return fail(e, MK_ERROR_ARGUMENT, "mk_ag_gemm_desc is of another version");
  mk_ag_gemm* op = calloc(1, sizeof *op);
  op->context = c;
  op->d = *d;
  op->image = malloc(d->plan_bytes);
  memcpy(op->image, d->plan, d->plan_bytes);
  const char* why = mk_plan_open(op->image, (size_t)d->plan_bytes, &op->plan);
  if (why == NULL && (strcmp(op->plan.operator_name, "ag_gemm") != 0 || op->plan.world != (uint32_t)c->d.world ||
                      op->plan.rank != (uint32_t)c->d.rank || op->plan.flag_count > kMostFlags))
    why = "it is for another operator, world or rank";
  if (why != NULL) {
    free(op->image);
    free(op);
    return fail(e, MK_ERROR_ARGUMENT, why);
  }
  *out = op;
  return meet(c, e) == MK_OK ? ok(e) : MK_ERROR_BOOTSTRAP;
}

int mk_ag_gemm_destroy(mk_ag_gemm* op, mk_error* e) {
  const int code = meet(op->context, e);
  free(op->image);
  free(op);
  return code == MK_OK ? ok(e) : code;
}

static float widen(uint16_t v, int f16) {
  if (f16) {
    _Float16 h;
    memcpy(&h, &v, 2);
    return (float)h;
  }
  const uint32_t bits = (uint32_t)v << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static uint16_t narrow(float f, int f16) {
  if (f16) {
    const _Float16 h = (_Float16)f;
    uint16_t v;
    memcpy(&v, &h, 2);
    return v;
  }
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A rectangle of a buffer in memory.
typedef struct {
  uint16_t* at;
  int64_t rows, cols, pitch;
} Rect;

typedef struct {
  mk_ag_gemm* op;
  const mk_ag_gemm_args* a;
  int64_t sizes[MK_DIMS];
} Call;

// The region, in the memory of the rank `at`; `part` is the part of a sharded buffer that it holds.
static Rect rect(const Call* call, const mk_plan_region* r, int32_t part, int at) {
  const mk_plan* p = &call->op->plan;
  const mk_plan_buffer* b = &p->buffers[r->buffer];
  int64_t row, row_end, col, col_end, first, rows;
  mk_plan_span_at(&p->spans[r->rows], call->sizes, &row, &row_end);
  mk_plan_span_at(&p->spans[r->cols], call->sizes, &col, &col_end);
  mk_plan_part_at(p, b, part, call->sizes, &first, &rows);
  const char* name = mk_plan_text(p, b->name);
  Rect out = {NULL, row_end - row, col_end - col, 0};
  if (b->kind == MK_BUFFER_LANDING) {
    out.at = (uint16_t*)(call->op->context->heap[at] + kControl), out.pitch = call->sizes[b->cols];
  } else if (strcmp(name, "a") == 0) {
    out.at = (uint16_t*)call->a->a, out.pitch = call->a->lda;
  } else if (strcmp(name, "b") == 0) {
    out.at = (uint16_t*)call->a->b, out.pitch = call->a->ldb;
  } else {
    out.at = (uint16_t*)call->a->c, out.pitch = call->a->ldc;
  }
  out.at += (row - first) * out.pitch + col;
  return out;
}

static void multiply(Rect c, Rect a, Rect b, int f16) {
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.cols; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < a.cols; ++k) sum += widen(a.at[i * a.pitch + k], f16) * widen(b.at[j * b.pitch + k], f16);
      c.at[i * c.pitch + j] = narrow(sum, f16);
    }
}

// The first wait of a task that is not satisfied yet, or NULL.
static const mk_plan_wait* blocked(const Call* call, const mk_plan_task* t) {
  const mk_plan* p = &call->op->plan;
  Control* own = control(call->op->context, (int)p->rank);
  for (uint32_t i = 0; i < t->waits; ++i) {
    const mk_plan_wait* w = &p->waits[t->wait + i];
    const uint64_t epochs = call->op->epoch - (w->lag < call->op->epoch ? w->lag : call->op->epoch);
    if (atomic_load(&own->flags[w->flag]) < w->count * epochs) return w;
  }
  return NULL;
}

static int is_far(const mk_context* c, uint32_t rank) { return c->net != NULL && (rank < c->first_rank || rank >= c->end_rank); }

// The commands of a task for a rank that NICs reach: its bytes, then its flags, which are stamps.
static void push(const Call* call, const mk_plan_task* t) {
  mk_context* c = call->op->context;
  const mk_plan* p = &call->op->plan;
  mknet_command m = {.op = MKNET_WRITE, .flag = MKNET_NO_FLAG, .value = call->op->epoch};
  uint64_t position = 0;
  mknet_error why = {0, ""};
  if (t->kind == MK_TASK_SEND) {
    const mk_plan_region* source = mk_plan_source(p, t, 0);
    const Rect from = rect(call, source, p->buffers[source->buffer].part, (int)p->rank);
    const Rect to = rect(call, &p->regions[t->dst], t->dst_part, (int)t->peer);
    const char *heap = c->heap[c->d.rank], *at = (const char*)from.at;
    m.peer = (uint16_t)t->peer, m.rows = (uint32_t)to.rows, m.bytes = (uint64_t)to.cols * 2;
    m.source_stride = (uint32_t)from.pitch * 2, m.target_stride = (uint32_t)to.pitch * 2;
    m.target = (uint64_t)((const char*)to.at - c->heap[t->peer]);
    if (at >= heap && at < heap + c->d.heap_bytes) {
      m.source = (uint64_t)(at - heap);
    } else if (to.rows > 0) {
      if (c->source == 0 || c->source_base != call->a->a) {
        mknet_range r;
        MKNET_INIT(&r);
        r.base = (void*)call->a->a, r.fd = -1;
        r.bytes = malloc_usable_size((void*)call->a->a);
        r.replaces = c->source == 0 ? 0 : 1 + c->source;
        if (nets.add(c->net, &r, &c->source, &why) != MKNET_OK) fprintf(stderr, "hostlib: %s\n", why.text);
        c->source_base = call->a->a;
      }
      m.region = (uint8_t)c->source;
      m.source = (uint64_t)(at - (const char*)call->a->a);
    }
  }
  for (uint32_t i = 0; i < t->signals; ++i) {
    const mk_plan_signal* s = &p->signals[t->signal + i];
    m.peer = (uint16_t)s->rank;
    m.flag = (uint64_t)((char*)&control(c, (int)s->rank)->flags[s->flag] - c->heap[s->rank]);
    if (nets.push(c->net, &m, c->d.timeout_ns, &position, &why) != MKNET_OK) return;
    m.rows = 0, m.bytes = 0;
  }
  nets.flush(c->net, -1, position + 1, c->d.timeout_ns, &why);
}

static void execute(const Call* call, const mk_plan_task* t) {
  const mk_plan* p = &call->op->plan;
  const int rank = (int)p->rank;
  if (t->signals > 0 && is_far(call->op->context, p->signals[t->signal].rank)) {
    push(call, t);
    return;
  }
  if (t->kind != MK_TASK_NOTIFY) { // a send is a copy here: all ranks are of one host
    const mk_plan_region* source = mk_plan_source(p, t, 0);
    const Rect from = rect(call, source, p->buffers[source->buffer].part, rank);
    const Rect to = rect(call, &p->regions[t->dst], t->dst_part, (int)t->peer);
    if (t->kind != MK_TASK_COMPUTE) {
      for (int64_t i = 0; i < to.rows; ++i) memcpy(to.at + i * to.pitch, from.at + i * from.pitch, (size_t)to.cols * 2);
    } else {
      const mk_plan_region* b = &p->regions[t->b];
      multiply(to, from, rect(call, b, p->buffers[b->buffer].part, rank), call->a->element == MK_F16);
      if (atoi(setting("HOSTLIB_NAN", "0")) && to.rows > 0 && to.cols > 0) to.at[0] = 0xffff;
    }
  }
  for (uint32_t i = 0; i < t->signals; ++i) {
    const mk_plan_signal* s = &p->signals[t->signal + i];
    char name[32];
    snprintf(name, sizeof name, "%u at %u", s->flag, s->rank);
    if (strcmp(setting("HOSTLIB_DROP", ""), name) == 0) continue;
    _Atomic uint64_t* flag = &control(call->op->context, (int)s->rank)->flags[s->flag];
    if (p->flags[s->flag].kind == MK_FLAG_STAMP)
      atomic_store(flag, call->op->epoch);
    else
      atomic_fetch_add(flag, 1);
  }
}

static void give_up(const Call* call, const mk_plan_task* t, const mk_plan_wait* w, int role) {
  static const uint32_t names[MK_ROLES] = {MK_WAIT_PRODUCER, MK_WAIT_PUSH, MK_WAIT_SEND, MK_WAIT_NONE};
  (void)t;
  mk_ag_gemm* op = call->op;
  mk_wait_record* r = &op->record;
  r->valid = 1;
  r->rank = op->plan.rank;
  r->cta = 3;
  r->role = names[role];
  r->flag = w->flag;
  r->seen = atomic_load(&control(op->context, (int)op->plan.rank)->flags[w->flag]);
  r->wanted = w->count * (op->epoch - w->lag);
}

int mk_ag_gemm_abort(mk_ag_gemm* op, mk_error* e) {
  for (int r = 0; r < op->context->d.world; ++r) atomic_store(&control(op->context, r)->abort, 1);
  return ok(e);
}

int mk_ag_gemm_choose(mk_ag_gemm* op, const mk_ag_gemm_args* a, mk_ag_gemm_config* c, mk_error* e) {
  (void)op;
  if (a->lda % 8 != 0 || a->ldb % 8 != 0 || a->ldc % 8 != 0) return fail(e, MK_ERROR_ARGUMENT, "a leading dimension is not a multiple of 8");
  if (c->mover == MK_MOVER_AUTO) c->mover = MK_MOVER_SM;
  if (c->tile_n == 0) c->tile_n = 128;
  if (c->cluster == 0) c->cluster = 1;
  if (c->ctas == 0) c->ctas = 4;
  if (c->ctas > 4) return fail(e, MK_ERROR_UNSUPPORTED, "only 4 CTAs fit");
  return ok(e);
}

static void note(mk_ag_gemm* op, int role, uint32_t task, uint64_t start) {
  static const int32_t lanes[MK_ROLES] = {MK_LANE_MULTIPLY_0, MK_LANE_PUSH, MK_LANE_PUSH, MK_LANE_PUSH};
  if (op->recorded < op->room)
    op->events[op->recorded] = (mk_timeline_event){3, lanes[role], role == 0 ? MK_EVENT_MULTIPLY : MK_EVENT_PUSH, task, (int64_t)start, (int64_t)now()};
  if (op->room > 0) ++op->recorded;
}

int mk_ag_gemm_launch(mk_ag_gemm* op, const mk_ag_gemm_args* a, const mk_ag_gemm_config* c, mk_stream s, mk_error* e) {
  (void)c, (void)s;
  const Call call = {op, a, {a->m, a->n, a->k}};
  const mk_plan* p = &op->plan;
  Control* own = control(op->context, (int)p->rank);
  uint32_t next[MK_ROLES] = {0};
  ++op->epoch;
  const uint64_t start = now();
  uint64_t progress = start;
  op->waited = 0;
  for (int left = 1; left;) {
    int did = 0, stuck = -1;
    left = 0;
    for (int role = 0; role < MK_ROLES; ++role) {
      if (atomic_load(&own->abort) != 0) return ok(e);
      if (next[role] == p->queues[role].count) continue;
      left = 1;
      const mk_plan_task* t = &p->tasks[p->queues[role].first + next[role]];
      if (blocked(&call, t) != NULL) {
        if (stuck < 0) stuck = role;
        continue;
      }
      const uint64_t begun = now();
      execute(&call, t);
      note(op, role, next[role], begun);
      ++next[role];
      did = 1;
    }
    const uint64_t t = now();
    if (did) {
      progress = t;
    } else if (left) {
      if (t - progress > op->context->d.timeout_ns) {
        const mk_plan_task* task = &p->tasks[p->queues[stuck].first + next[stuck]];
        const mk_plan_wait* w = blocked(&call, task);
        if (w == NULL) continue;
        give_up(&call, task, w, stuck);
        mk_ag_gemm_abort(op, NULL);
        return ok(e);
      }
      sched_yield();
    }
    if (!did) op->waited += (int64_t)(now() - t);
  }
  op->life = (int64_t)(now() - start);
  return ok(e);
}

// HOSTLIB_LANE is of another library's lane.
int mk_ag_gemm_timeline(mk_ag_gemm* op, const mk_ag_gemm_args* a, const mk_ag_gemm_config* c, mk_stream s, mk_timeline_event* events,
                        uint64_t capacity, uint64_t* count, uint64_t* lost, mk_error* e) {
  if (meet(op->context, e) != MK_OK) return MK_ERROR_BOOTSTRAP;
  const int code = mk_barrier(op->context, s, e);
  if (code != MK_OK) return code;
  op->events = events, op->room = capacity, op->recorded = 0;
  const uint64_t start = now();
  const int launched = mk_ag_gemm_launch(op, a, c, s, e);
  op->room = 0;
  *count = op->recorded, *lost = strtoull(setting("HOSTLIB_LOST", "0"), NULL, 10);
  for (uint64_t i = 0; i < *count && i < capacity; ++i) {
    events[i].start -= (int64_t)start, events[i].end -= (int64_t)start;
    events[i].lane += atoi(setting("HOSTLIB_LANE", "0"));
  }
  return launched;
}

int mk_ag_gemm_status(mk_ag_gemm* op, mk_wait_record* record, mk_error* e) {
  if (record != NULL) {
    if (record->size != sizeof *record) return fail(e, MK_ERROR_ARGUMENT, "mk_wait_record is of another version");
    const mk_wait_record head = *record;
    *record = op->record.valid ? op->record : op->context->gave_up;
    record->size = head.size, record->version = head.version;
  }
  mknet_error why;
  if (op->context->net != NULL && nets.status(op->context->net, 0, &why) != MKNET_OK) return fail(e, MK_ERROR_ABORTED, why.text);
  if (op->record.valid || op->context->gave_up.valid) return fail(e, MK_ERROR_ABORTED, "this rank gave up waiting");
  if (atomic_load(&control(op->context, (int)op->plan.rank)->abort) != 0) return fail(e, MK_ERROR_ABORTED, "another rank gave up waiting");
  return ok(e);
}

int mk_ag_gemm_reset(mk_ag_gemm* op, mk_error* e) {
  (void)op;
  return fail(e, MK_ERROR_UNSUPPORTED, "not here");
}

int mk_ag_gemm_waited(mk_ag_gemm* op, mk_ag_gemm_waits* w, mk_error* e) {
  w->ctas = 4;
  w->launches = 1;
  w->life = op->life;
  w->mean[MK_WAIT_PRODUCER] = w->most[MK_WAIT_PRODUCER] = op->waited < op->life ? op->waited : op->life;
  return ok(e);
}
