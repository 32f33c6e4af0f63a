/* mkernel: fused multi-GPU kernels. C interface.
 *
 * Handles are opaque. Every struct starts with its size and the interface version (MK_INIT fills both), so a library
 * and a caller of different ages find out at the call. A function that can fail returns MK_OK or a code, and fills
 * *error (may be NULL) with the code and one line of text. The library keeps no global state, reads no environment
 * variable, prints nothing and never exits. A handle is used by one thread at a time (but see mk_ag_gemm_abort).
 *
 * "Collective" means: every rank of the context calls it, in the same order, with the same sizes.
 */
#ifndef MKERNEL_H
#define MKERNEL_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MK_VERSION 2u
#if defined(__GNUC__)
#define MK_API __attribute__((visibility("default")))
#else
#define MK_API
#endif

/* Zeroes a struct of this interface and sets its size and version. */
#define MK_INIT(pointer) \
  (memset((pointer), 0, sizeof *(pointer)), (void)((pointer)->size = (uint32_t)sizeof *(pointer)), (void)((pointer)->version = MK_VERSION))

typedef enum mk_code {
  MK_OK = 0,
  MK_ERROR_ARGUMENT = 1,    /* the caller's values cannot work; the text says which and why */
  MK_ERROR_UNSUPPORTED = 2, /* this machine, driver or build cannot do it */
  MK_ERROR_DRIVER = 3,      /* CUDA refused */
  MK_ERROR_BOOTSTRAP = 4,   /* the ranks could not find one another */
  MK_ERROR_MEMORY = 5,
  MK_ERROR_ABORTED = 6      /* a wait timed out on some rank; mk_ag_gemm_status has the record */
} mk_code;

typedef struct mk_error {
  int32_t code;
  char text[508];
} mk_error;

typedef struct mk_context mk_context;
typedef struct mk_ag_gemm mk_ag_gemm;
typedef struct CUstream_st* mk_stream; /* a cudaStream_t */

/* All-gather among the ranks on the host: copies `bytes` from `mine` of every rank, in rank order, to `all`.
 * Returns 0 if all went well. Used when contexts and operators are made, reset and destroyed; never by a launch. */
typedef int (*mk_allgather)(void* user, const void* mine, void* all, uint64_t bytes);

typedef enum mk_network {
  MK_NETWORK_NONE = 0,
  /* Nodes of one host: device copies, held back to the bandwidth and latency given. Kernels that a process loads for the
   * first time while a call is under way hold these copies up until the call's waits run out: load them before
   * (cudaFuncGetAttributes, or CUDA_MODULE_LOADING=EAGER). */
  MK_NETWORK_EMU = 1,
  /* What `net` says: NICs that write into the heap. Ranks of other nodes need not be on this host; mk_barrier waits on the
   * host until all nodes have come to it. With the backend "emu", nodes of one host as above, over links as `net` describes
   * them: several per rank, pieces that arrive in any order. */
  MK_NETWORK_NIC = 2
} mk_network;

struct mknet_desc;

#define MK_MOST_RANKS 16 /* of a context */

typedef struct mk_context_desc {
  uint32_t size, version;
  int32_t rank, world;
  int32_t device;          /* CUDA ordinal of this rank's GPU. A process that does not see its peers' GPUs, too, has copies
                              of the ce mover go through the host, at an eighth of the speed */
  int32_t share_gpus;      /* 0: ranks that share a GPU are refused */
  uint64_t heap_bytes;     /* symmetric heap of each rank: mk_ag_gemm_heap_bytes, summed over all operators that are ever made on the
                              context. What a destroyed operator had is not given to later ones */
  uint64_t timeout_ns;     /* bound of every wait inside a kernel, at most 10^18; 0: ten seconds. Half of it, but at least ten seconds, bounds the
                              opening of NICs; after a library that hung in it (mknet.h, open_ns) libmkernel.so must stay loaded */
  mk_allgather allgather;  /* may be NULL when world is 1 */
  void* user;
  const int32_t* node_ranks; /* ranks of each node, first node first, as in the plan; read during the call only */
  int32_t nodes;             /* entries of node_ranks; 0: one node */
  int32_t network;           /* mk_network, for more than one node */
  double net_bandwidth;      /* emu: bytes per second of each rank and direction; 0: as fast as copies are */
  uint64_t net_latency_ns;   /* emu: added to each message */
  const struct mknet_desc* net; /* MK_NETWORK_NIC: backend and its settings, cpus and rails (mknet.h); the rest is filled in */
} mk_context_desc;

typedef enum mk_element { MK_BF16 = 0, MK_F16 = 1 } mk_element;

typedef enum mk_mover {
  MK_MOVER_AUTO = 0,
  MK_MOVER_SM = 1, /* a warp of each computing SM copies */
  MK_MOVER_CE = 2  /* copy engines copy, on streams forked from the caller's */
} mk_mover;

typedef struct mk_ag_gemm_desc {
  uint32_t size, version;
  const void* plan;     /* this rank's part of a plan of ag_gemm, in binary form (mkernel_plan.h); it is copied */
  uint64_t plan_bytes;
  int64_t max_m, max_k; /* largest gathered M and largest K: sizes of the landing buffer and flags */
} mk_ag_gemm_desc;

/* C (m x n) = gather(a) (m x k) * b (n x k)^T, fp32 sums. Rank r holds rows [r*m/world, (r+1)*m/world), rounded down,
 * of the gathered A in `a`. All ranks pass the same m, k and element; n may differ, also be 0. Leading dimensions in
 * elements. Pointers 16-byte aligned (NULL where there are no elements); k, lda, ldb and ldc multiples of 8. */
typedef struct mk_ag_gemm_args {
  uint32_t size, version;
  int64_t m, n, k;
  const void* a;
  const void* b;
  void* c;
  int64_t lda, ldb, ldc;
  int32_t element; /* mk_element */
  int32_t reserved;
} mk_ag_gemm_args;

/* How the kernel runs; 0 in a field lets the library choose. All ranks pass the same values. */
typedef struct mk_ag_gemm_config {
  uint32_t size, version;
  int32_t mover;         /* mk_mover */
  int32_t tile_n;        /* columns of a tile: 64, 128 or 256; or 32, where no rank has more than 64 rows of A */
  int32_t cluster;       /* CTAs that share loads: 1, or 2 with tile_n 128 or 256 */
  int32_t ctas;          /* persistent CTAs; at most what can be resident; more than its share of the SMs is refused to a rank
                          that shares its GPU */
  int32_t raster_group;  /* tiles of M walked together */
  int32_t push_ctas;     /* sm: CTAs that push beside computing */
  int32_t push_group;    /* row blocks announced together before K moves on */
  int32_t row_block;     /* ce: rows and columns of a chunk; 128, 64 times a power of two */
  int32_t k_block;
  int32_t split_k;       /* parts of K on different CTAs, added in a fixed order; with tile_n of at most 128, cluster 1 */
} mk_ag_gemm_config;

/* Who waits inside a kernel. */
typedef enum mk_wait_role {
  MK_WAIT_NONE = 0,
  MK_WAIT_PRODUCER = 1, /* the loads of a product, for operands from peers */
  MK_WAIT_PUSH = 2,     /* mover sm: for the credit to overwrite, or for what is passed on */
  MK_WAIT_CREDIT = 3,   /* mover ce, before the copies: for the credit to overwrite */
  MK_WAIT_BARRIER = 4,
  MK_WAIT_SUM = 5,      /* split K: for the other part's sums */
  MK_WAIT_SEND = 6,     /* messages to other nodes: for credits and what is passed on */
  MK_WAIT_NOTICE = 7,   /* at the end: for the reads that a credit to another node tells of */
  MK_WAIT_ROLES = 8
} mk_wait_role;

#define MK_NO_FLAG 0xffffffffu

/* The first wait of this rank that ran out of time. */
typedef struct mk_wait_record {
  uint32_t size, version;
  uint32_t valid;
  uint32_t rank, cta, role; /* role: mk_wait_role */
  uint32_t flag;            /* index of the flag in the plan, or MK_NO_FLAG: barrier and sums */
  uint32_t block;           /* of a field of flags: which one; of a barrier: the rank that did not come */
  uint64_t flag_offset;     /* in the heap */
  uint64_t seen, wanted;
} mk_wait_record;

/* Time spent waiting in the last call, in clock cycles of the SMs. Of `life` cycles that a CTA ran (mean), waiters of
 * a role waited `mean` (over the CTAs that have the role) and at `most`. */
typedef struct mk_ag_gemm_waits {
  uint32_t size, version;
  int32_t ctas;
  int32_t launches; /* kernels and copies that the host started for the call */
  int64_t life;
  int64_t mean[MK_WAIT_ROLES], most[MK_WAIT_ROLES];
} mk_ag_gemm_waits;

/* A CTA's threads that are recorded. */
typedef enum mk_timeline_lane {
  MK_LANE_LOAD = 0,       /* asks for operands and waits for those of peers */
  MK_LANE_PUSH = 1,       /* mover sm */
  MK_LANE_MULTIPLY_0 = 2, /* upper half of a tile's 128 rows; of 64 rows, every second K step of all */
  MK_LANE_MULTIPLY_1 = 3,
  MK_TIMELINE_LANES = 4
} mk_timeline_lane;

typedef enum mk_timeline_kind {
  MK_EVENT_LOAD = 0,     /* the loads of a unit of work, waits included; `what`: the unit */
  MK_EVENT_WAIT = 1,     /* of them, a wait for a peer's rows; `what`: the segment of the call */
  MK_EVENT_MULTIPLY = 2, /* `what`: the unit */
  MK_EVENT_STORE = 3,    /* its result; `what`: the unit */
  MK_EVENT_CREDIT = 4,   /* a wait for the credit to overwrite; `what`: the copy of the call */
  MK_EVENT_PUSH = 5,     /* this CTA's blocks of a copy; `what`: the copy */
  MK_EVENT_KINDS = 6
} mk_timeline_kind;

/* Nanoseconds since this rank's first CTA began. */
typedef struct mk_timeline_event {
  int32_t cta, lane;   /* lane: mk_timeline_lane */
  uint32_t kind, what; /* kind: mk_timeline_kind */
  int64_t start, end;
} mk_timeline_event;

MK_API uint32_t mk_version(void);

/* Collective. The library passes its own memory handles between ranks of one host. */
MK_API int mk_context_create(const mk_context_desc* desc, mk_context** out, mk_error* error);
MK_API int mk_context_destroy(mk_context* context, mk_error* error);

/* What carries bytes between nodes, one line for people; "" with one node. */
MK_API int mk_context_network(mk_context* context, char* text, uint64_t length, mk_error* error);

/* Stream-ordered barrier of all ranks, on the devices. Fails once an earlier one has timed out, until a
 * reset; calls of operators behind that one wait for nothing, and their status says so. */
MK_API int mk_barrier(mk_context* context, mk_stream stream, mk_error* error);

/* Bytes of the symmetric heap that an operator takes, 1 MiB for the context included. Needs no GPU. */
MK_API int mk_ag_gemm_heap_bytes(const mk_ag_gemm_desc* desc, uint64_t* bytes, mk_error* error);

/* Collective. The operator owns its epoch, flags and landing buffer, and follows its plan: order of segments, transfers,
 * sources, landing places, flags and credits are the plan's; tiles and rasters the kernel's. A plan for another operator,
 * world or rank is refused, and so are plans that differ between ranks in what they share. Destroy operators before
 * their context. */
MK_API int mk_ag_gemm_create(mk_context* context, const mk_ag_gemm_desc* desc, mk_ag_gemm** out, mk_error* error);
MK_API int mk_ag_gemm_destroy(mk_ag_gemm* op, mk_error* error);

/* Stream-ordered; no host step and no barrier is needed between calls; can be captured in a graph. `config` may be NULL. Calls of one
 * operator follow one another, on one stream or on several that events order, and on all ranks in the same order. */
MK_API int mk_ag_gemm_launch(mk_ag_gemm* op, const mk_ag_gemm_args* args, const mk_ag_gemm_config* config,
                             mk_stream stream, mk_error* error);

/* Fills the fields of `config` that are 0 as a launch would. */
MK_API int mk_ag_gemm_choose(mk_ag_gemm* op, const mk_ag_gemm_args* args, mk_ag_gemm_config* config, mk_error* error);

/* MK_OK, or MK_ERROR_ABORTED with the record (if this rank wrote one). Waits for no call: synchronise the stream first to know how
 * the last one ended. */
MK_API int mk_ag_gemm_status(mk_ag_gemm* op, mk_wait_record* record, mk_error* error);

/* Ends all waits of the call in flight and of all later ones, on every rank, until a reset; of barriers, too. (Ranks of other nodes
 * that NICs reach give up by themselves, after timeout_ns.) Such calls go on without what they waited for, and their results mean
 * nothing. May be called by any thread at any time between create and destroy. */
MK_API int mk_ag_gemm_abort(mk_ag_gemm* op, mk_error* error);

/* Collective: waits for the device, clears flags, epoch and abort word, and the state of the barrier. */
MK_API int mk_ag_gemm_reset(mk_ag_gemm* op, mk_error* error);

/* Of the last call that is done; synchronise the stream first. */
MK_API int mk_ag_gemm_waited(mk_ag_gemm* op, mk_ag_gemm_waits* waits, mk_error* error);

/* Collective: one call, as mk_ag_gemm_launch makes it behind a barrier, by a second build of the kernel that records what its
 * threads do; waits for it. bf16 only. Fills up to `capacity` events, in no order; *count is how many there are, *lost how many the
 * kernel could not keep. A recorded call is a little slower than others, and no other build pays for it. */
MK_API int mk_ag_gemm_timeline(mk_ag_gemm* op, const mk_ag_gemm_args* args, const mk_ag_gemm_config* config, mk_stream stream,
                               mk_timeline_event* events, uint64_t capacity, uint64_t* count, uint64_t* lost, mk_error* error);

/* For callers without a CUDA runtime of their own. Memory is the GPU's; copies go either way between it and the host
 * (or inside it), are ordered in the stream and done when the function returns. */
typedef struct mk_event mk_event; /* a point in a stream; a cudaEvent_t with timing */
MK_API int mk_allocate(mk_context* context, uint64_t bytes, void** out, mk_error* error);
MK_API int mk_free(mk_context* context, void* memory, mk_error* error);
MK_API int mk_copy(mk_context* context, void* to, const void* from, uint64_t bytes, mk_stream stream, mk_error* error);
MK_API int mk_fill(mk_context* context, void* to, uint8_t value, uint64_t bytes, mk_stream stream, mk_error* error);
MK_API int mk_stream_create(mk_context* context, mk_stream* out, mk_error* error);
MK_API int mk_stream_destroy(mk_context* context, mk_stream stream, mk_error* error);
MK_API int mk_stream_synchronize(mk_context* context, mk_stream stream, mk_error* error);
MK_API int mk_event_create(mk_context* context, mk_event** out, mk_error* error);
MK_API int mk_event_destroy(mk_context* context, mk_event* event, mk_error* error);
MK_API int mk_event_record(mk_context* context, mk_event* event, mk_stream stream, mk_error* error);
/* Milliseconds between two points that have passed. */
MK_API int mk_event_elapsed(mk_context* context, mk_event* start, mk_event* end, float* ms, mk_error* error);

#ifdef __cplusplus
}
#endif
#endif
