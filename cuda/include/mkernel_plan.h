/* mkernel_plan: reads one rank's part of a plan in its binary form, version 0, where it lies.
 *
 * mk_plan_open checks everything once: sizes, indices, ratios, the checksum. After that no access below can leave the
 * image, and none allocates. The image must stay where it is, and be aligned to 4 bytes. internal/plan/binary.go of
 * mkrun writes the form and docs/plans.md explains what it means; until version 1 both may change together.
 *
 * Formulas are evaluated once per launch: mk_plan_span_at of every span, into an array; regions name spans by index.
 */
#ifndef MKERNEL_PLAN_H
#define MKERNEL_PLAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MK_PLAN_MAGIC 0x4c504b4du /* "MKPL" */
#define MK_PLAN_VERSION 0u
#define MK_PLAN_NONE 0xffffffffu /* no region */
#define MK_PLAN_SECTIONS 11
#define MK_PLAN_MAX_BLOCK (1u << 24)
#define MK_PLAN_HEADER (4u * 8u + 8u * MK_PLAN_SECTIONS)

/* The host reads and writes these structs as they lie in the image, so it has to be little-endian. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "mkernel_plan.h reads plans in place on little-endian machines only"
#endif

typedef enum mk_plan_dim { MK_DIM_M = 0, MK_DIM_N = 1, MK_DIM_K = 2, MK_DIMS = 3 } mk_plan_dim;
typedef enum mk_plan_role { MK_ROLE_COMPUTE = 0, MK_ROLE_INTRA = 1, MK_ROLE_SEND = 2, MK_ROLE_REDUCE = 3, MK_ROLES = 4 } mk_plan_role;
typedef enum mk_plan_kind { MK_TASK_COPY = 0, MK_TASK_SEND = 1, MK_TASK_COMPUTE = 2, MK_TASK_NOTIFY = 3, MK_TASK_REDUCE = 4, MK_TASK_KINDS = 5 } mk_plan_kind;
typedef enum mk_plan_buffer_kind { MK_BUFFER_INPUT = 0, MK_BUFFER_OUTPUT = 1, MK_BUFFER_LANDING = 2, MK_BUFFER_KINDS = 3 } mk_plan_buffer_kind;
typedef enum mk_plan_flag_kind { MK_FLAG_STAMP = 0, MK_FLAG_COUNTER = 1, MK_FLAG_KINDS = 2 } mk_plan_flag_kind;
typedef enum mk_plan_elem { MK_ELEM_OPERAND = 0, MK_ELEM_FP32 = 1, MK_ELEMS = 2 } mk_plan_elem;
enum { MK_BUFFER_SHARDED = 1, MK_BUFFER_SAME = 2, MK_BUFFER_SUM = 4, MK_BUFFER_SHARED = 8 };

typedef struct mk_plan_buffer {
  uint32_t name;         /* for mk_plan_text */
  int32_t part;          /* of a sharded one: which of the world's parts this rank holds, -1: none */
  uint8_t kind, elem, rows, cols;
  uint32_t bits;         /* MK_BUFFER_SHARDED ... */
} mk_plan_buffer;

typedef struct mk_plan_span { uint32_t dim, from_num, from_den, to_num, to_den; } mk_plan_span; /* floor(dim * num / den) */
typedef struct mk_plan_region { uint32_t buffer, rows, cols; } mk_plan_region;                  /* rows, cols: spans */
typedef struct mk_plan_flag {
  uint32_t kind;
  uint32_t region;                 /* of a field: a stamp for each block of it; else MK_PLAN_NONE */
  uint32_t block_rows, block_cols; /* of the smallest block, from the region's first row and column on */
} mk_plan_flag;
typedef struct mk_plan_wait { uint32_t flag, count, lag, step; } mk_plan_wait;
typedef struct mk_plan_signal { uint32_t rank, flag; } mk_plan_signal;
typedef struct mk_plan_queue { uint32_t first, count; } mk_plan_queue; /* tasks */

typedef struct mk_plan_task {
  uint32_t kind, peer;
  int32_t dst_part;           /* of a sharded destination: the part that the peer holds */
  uint32_t dst, b;            /* regions, or MK_PLAN_NONE */
  uint32_t steps;             /* of the depth, for gates; 0: none */
  uint32_t source, sources;   /* first and number, for mk_plan_source */
  uint32_t wait, waits;       /* first and number, in waits */
  uint32_t signal, signals;
  uint32_t reserved;
} mk_plan_task;

typedef struct mk_plan {
  const uint8_t* image;
  uint32_t bytes, rank, world, chunks, nodes;
  const uint32_t* node_ranks; /* ranks of each node */
  const mk_plan_buffer* buffers;
  const mk_plan_flag* flags;
  const mk_plan_span* spans;
  const mk_plan_region* regions;
  const uint32_t* sources;    /* regions */
  const mk_plan_wait* waits;
  const mk_plan_signal* signals;
  const mk_plan_task* tasks;
  const mk_plan_queue* queues; /* MK_ROLES of them */
  uint32_t buffer_count, flag_count, span_count, region_count, source_count, wait_count, signal_count, task_count;
  const char* operator_name;
  const char* algorithm;
  const char* text;
  uint32_t text_bytes;
} mk_plan;

static inline uint32_t mk_plan_crc32(const uint8_t* data, size_t n) {
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

/* A name; the offset was checked by mk_plan_open where it came from the plan. */
static inline const char* mk_plan_text(const mk_plan* plan, uint32_t offset) {
  return offset < plan->text_bytes ? plan->text + offset : "";
}

/* 0 <= num <= den > 0 and size >= 0, so the result is at most size; the product may need 95 bits. */
static inline int64_t mk_plan_cut(int64_t size, uint32_t num, uint32_t den) {
  uint64_t whole = (uint64_t)size / den, rest = (uint64_t)size % den;
  return (int64_t)(whole * num + rest * num / den);
}

/* Evaluates a span for sizes {M, N, K}, none of them negative. */
static inline void mk_plan_span_at(const mk_plan_span* span, const int64_t sizes[MK_DIMS], int64_t* from, int64_t* to) {
  *from = mk_plan_cut(sizes[span->dim], span->from_num, span->from_den);
  *to = mk_plan_cut(sizes[span->dim], span->to_num, span->to_den);
}

/* First row that the holder of a part has of a buffer, and how many; a whole buffer has part 0 of 1. */
static inline void mk_plan_part_at(const mk_plan* plan, const mk_plan_buffer* buffer, int32_t part, const int64_t sizes[MK_DIMS],
                                   int64_t* first, int64_t* rows) {
  int64_t size = sizes[buffer->rows];
  if (!(buffer->bits & MK_BUFFER_SHARDED)) {
    *first = 0;
    *rows = size;
  } else if (part < 0) {
    *first = *rows = 0;
  } else {
    *first = mk_plan_cut(size, (uint32_t)part, plan->world);
    *rows = mk_plan_cut(size, (uint32_t)part + 1, plan->world) - *first;
  }
}

/* Words of a flag that are enough for all sizes up to the given ones: one, or one for each block of its field. A span of
 * a smaller dim may have one row more than the same span of a larger one, as cut points are rounded down. */
static inline int64_t mk_plan_flag_words(const mk_plan* plan, const mk_plan_flag* flag, const int64_t sizes[MK_DIMS]) {
  int64_t words = 1;
  if (flag->region == MK_PLAN_NONE) return 1;
  for (int columns = 0; columns < 2; columns++) {
    const mk_plan_region* region = &plan->regions[flag->region];
    const mk_plan_span* span = &plan->spans[columns ? region->cols : region->rows];
    const int64_t block = columns ? flag->block_cols : flag->block_rows;
    int64_t from, to;
    mk_plan_span_at(span, sizes, &from, &to);
    to = to - from + 1 < sizes[span->dim] ? to - from + 1 : sizes[span->dim];
    words *= to > 0 ? (to - 1) / block + 1 : 1;
  }
  return words;
}

static inline const mk_plan_region* mk_plan_source(const mk_plan* plan, const mk_plan_task* task, uint32_t i) {
  return &plan->regions[plan->sources[task->source + i]];
}

static inline int mk_plan_slice(uint32_t first, uint32_t count, uint32_t all) { return count <= all && first <= all - count; }

static inline const char* mk_plan_check_tables(const mk_plan* p) {
  for (uint32_t i = 0; i < p->buffer_count; i++) {
    const mk_plan_buffer* b = &p->buffers[i];
    if (b->name >= p->text_bytes || b->kind >= MK_BUFFER_KINDS || b->elem >= MK_ELEMS || b->rows >= MK_DIMS || b->cols >= MK_DIMS || b->bits > 15u)
      return "a buffer is of a kind, type or form that there is not";
    if (b->part < -1 || b->part >= (int32_t)p->world || (!(b->bits & MK_BUFFER_SHARDED) && b->part != 0)) return "a buffer has a part that there is not";
  }
  for (uint32_t i = 0; i < p->flag_count; i++)
    if (p->flags[i].kind >= MK_FLAG_KINDS) return "a flag is of a kind that there is not";
  for (uint32_t i = 0; i < p->span_count; i++) {
    const mk_plan_span* s = &p->spans[i];
    if (s->dim >= MK_DIMS || s->from_den == 0 || s->to_den == 0 || s->from_num > s->from_den || s->to_num > s->to_den ||
        (uint64_t)s->from_num * s->to_den >= (uint64_t)s->to_num * s->from_den)
      return "a span is none";
  }
  for (uint32_t i = 0; i < p->region_count; i++) {
    const mk_plan_region* r = &p->regions[i];
    if (r->buffer >= p->buffer_count || r->rows >= p->span_count || r->cols >= p->span_count) return "a region names what is not there";
    if (p->spans[r->rows].dim != p->buffers[r->buffer].rows || p->spans[r->cols].dim != p->buffers[r->buffer].cols)
      return "a region names no part of its buffer";
  }
  for (uint32_t i = 0; i < p->flag_count; i++) {
    const mk_plan_flag* f = &p->flags[i];
    if (f->region == MK_PLAN_NONE ? f->block_rows != 0 || f->block_cols != 0
                                  : f->kind != MK_FLAG_STAMP || f->region >= p->region_count || f->block_rows - 1u >= MK_PLAN_MAX_BLOCK ||
                                        f->block_cols - 1u >= MK_PLAN_MAX_BLOCK)
      return "a flag is a field of blocks that there are not";
  }
  for (uint32_t i = 0; i < p->source_count; i++)
    if (p->sources[i] >= p->region_count) return "a source is a region that is not there";
  for (uint32_t i = 0; i < p->wait_count; i++)
    if (p->waits[i].flag >= p->flag_count || p->waits[i].count < 1 || p->waits[i].lag > 1) return "a wait means nothing";
  for (uint32_t i = 0; i < p->signal_count; i++)
    if (p->signals[i].rank >= p->world || p->signals[i].flag >= p->flag_count) return "a signal goes to a flag that is not there";
  return NULL;
}

static inline const char* mk_plan_check_task(const mk_plan* p, const mk_plan_task* t, uint32_t role) {
  static const uint8_t home[MK_TASK_KINDS] = {MK_ROLE_INTRA, MK_ROLE_SEND, MK_ROLE_COMPUTE, MK_ROLE_SEND, MK_ROLE_REDUCE};
  if (t->kind >= MK_TASK_KINDS || t->peer >= p->world || t->reserved != 0) return "a task is of a kind that there is not";
  if (home[t->kind] != role) return "a task is in the wrong queue";
  if (!mk_plan_slice(t->source, t->sources, p->source_count) || !mk_plan_slice(t->wait, t->waits, p->wait_count) ||
      !mk_plan_slice(t->signal, t->signals, p->signal_count))
    return "a task has sources, waits or signals that are not there";
  for (uint32_t i = 0; i < t->waits; i++)
    if (p->waits[t->wait + i].step > 0 && p->waits[t->wait + i].step >= t->steps) return "a gate stands before a step that is not there";
  if (t->kind == MK_TASK_COMPUTE ? t->b >= p->region_count : t->b != MK_PLAN_NONE) return "a task has a second operand that is not there";
  if (t->kind == MK_TASK_NOTIFY) return t->dst != MK_PLAN_NONE || t->sources != 0 ? "a notice has operands" : NULL;
  if (t->kind == MK_TASK_REDUCE ? t->sources == 0 : t->sources != 1) return "a task has too few or too many sources";
  if (t->dst >= p->region_count) return "a task has a destination that is not there";
  if (t->dst_part < 0 || t->dst_part >= (int32_t)p->world || (!(p->buffers[p->regions[t->dst].buffer].bits & MK_BUFFER_SHARDED) && t->dst_part != 0))
    return "a task writes to a part that is not there";
  return NULL;
}

/* Opens a plan of exactly n bytes. NULL if it is well formed; otherwise what is wrong, as static text. */
static inline const char* mk_plan_open(const void* image, size_t n, mk_plan* p) {
  static const uint8_t size[MK_PLAN_SECTIONS] = {1, 4, 16, 16, 20, 12, 4, 16, 8, 52, 8};
  const uint32_t* head = (const uint32_t*)image;
  const void* at[MK_PLAN_SECTIONS];
  uint32_t count[MK_PLAN_SECTIONS];
  memset(p, 0, sizeof *p);
  if (image == NULL) return "there is no image";
  if (n < MK_PLAN_HEADER || n > (1u << 30)) return "too few or too many bytes for a plan";
  if (((uintptr_t)image & 3u) != 0) return "the image is not aligned to 4 bytes";
  if (head[0] != MK_PLAN_MAGIC) return "it does not begin like a plan";
  if (head[1] != MK_PLAN_VERSION) return "it is of another version";
  if (head[2] != n) return "it says to have another length";
  if (head[3] != mk_plan_crc32((const uint8_t*)image + 16, n - 16)) return "its checksum is wrong";
  for (int s = 0; s < MK_PLAN_SECTIONS; s++) {
    uint64_t offset = head[8 + 2 * s];
    count[s] = head[9 + 2 * s];
    if (offset % 4 != 0 || offset < MK_PLAN_HEADER || offset + (uint64_t)count[s] * size[s] > n) return "a table is not within the image";
    at[s] = (const uint8_t*)image + offset;
  }
  p->image = (const uint8_t*)image;
  p->bytes = (uint32_t)n;
  p->rank = head[4];
  p->chunks = head[5];
  p->text = (const char*)at[0];
  p->text_bytes = count[0];
  if (count[0] == 0 || p->text[count[0] - 1] != 0) return "its last name does not end";
  if (head[6] >= count[0] || head[7] >= count[0]) return "a name is not there";
  p->operator_name = p->text + head[6];
  p->algorithm = p->text + head[7];
  p->node_ranks = (const uint32_t*)at[1], p->nodes = count[1];
  p->buffers = (const mk_plan_buffer*)at[2], p->buffer_count = count[2];
  p->flags = (const mk_plan_flag*)at[3], p->flag_count = count[3];
  p->spans = (const mk_plan_span*)at[4], p->span_count = count[4];
  p->regions = (const mk_plan_region*)at[5], p->region_count = count[5];
  p->sources = (const uint32_t*)at[6], p->source_count = count[6];
  p->waits = (const mk_plan_wait*)at[7], p->wait_count = count[7];
  p->signals = (const mk_plan_signal*)at[8], p->signal_count = count[8];
  p->tasks = (const mk_plan_task*)at[9], p->task_count = count[9];
  p->queues = (const mk_plan_queue*)at[10];
  if (count[10] != MK_ROLES) return "it has too few or too many queues";
  if (count[2] > 65536u) return "it has too many buffers";
  uint64_t world = 0;
  for (uint32_t i = 0; i < p->nodes; i++) {
    if (p->node_ranks[i] < 1 || (world += p->node_ranks[i]) > (1u << 20)) return "a node has no ranks, or too many";
  }
  p->world = (uint32_t)world;
  if (p->rank >= p->world || p->chunks < 1 || p->chunks > 0x7fffffffu) return "it is for a rank that is not there, or for no chunks";
  const char* why = mk_plan_check_tables(p);
  if (why != NULL) return why;
  uint32_t next = 0;
  for (uint32_t role = 0; role < MK_ROLES; role++) {
    if (p->queues[role].first != next || !mk_plan_slice(next, p->queues[role].count, p->task_count)) return "a queue has tasks that are not there";
    for (uint32_t i = 0; i < p->queues[role].count; i++) {
      why = mk_plan_check_task(p, &p->tasks[next + i], role);
      if (why != NULL) return why;
    }
    next += p->queues[role].count;
  }
  return next == p->task_count ? NULL : "a task is in no queue";
}

#ifdef __cplusplus
}
#endif
#endif
