/* mkernel: fused multi-GPU kernels. C interface.
 *
 * Handles are opaque. Every struct starts with its size and the interface version (MK_INIT fills both), so a library
 * and a caller of different ages find out at the call. A function that can fail returns MK_OK or a code, and fills
 * *error (may be NULL) with the code and one line of text. The library keeps no global state, reads no environment
 * variable, prints nothing and never exits. A handle is used by one thread at a time.
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

#define MK_VERSION 1u
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

typedef struct mk_context_desc {
  uint32_t size, version;
  int32_t rank, world;
  int32_t device;          /* CUDA ordinal of this rank's GPU */
  int32_t reserved;
  uint64_t heap_bytes;     /* symmetric heap of each rank */
  uint64_t timeout_ns;     /* bound of every wait inside a kernel; 0: ten seconds */
  mk_allgather allgather;  /* may be NULL when world is 1 */
  void* user;
} mk_context_desc;

typedef enum mk_element { MK_BF16 = 0, MK_F16 = 1 } mk_element;

typedef enum mk_mover {
  MK_MOVER_AUTO = 0,
  MK_MOVER_SM = 1, /* a warp of each computing SM copies */
  MK_MOVER_CE = 2  /* copy engines copy, on streams forked from the caller's */
} mk_mover;

typedef struct mk_ag_gemm_desc {
  uint32_t size, version;
  int64_t max_m, max_k; /* largest gathered M and largest K: sizes of the landing buffer and flags */
} mk_ag_gemm_desc;

/* C (m x n) = gather(a) (m x k) * b (n x k)^T, fp32 sums. Rank r holds rows [r*m/world, (r+1)*m/world) of the gathered
 * A in `a`; m is a multiple of world. All ranks pass the same m, k and element; n may differ, but is 0 on all ranks or
 * on none. Leading dimensions in elements. Pointers 16-byte aligned; k, lda, ldb and ldc multiples of 8. */
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
  int32_t tile_n;        /* 128 or 256 */
  int32_t cluster;       /* 1 or 2 */
  int32_t ctas;          /* persistent CTAs; at most what can be resident */
  int32_t raster_group;  /* tiles of M walked together */
  int32_t push_ctas;     /* sm: CTAs that push beside computing */
  int32_t push_group;    /* row blocks announced together before K moves on */
  int32_t row_block;     /* ce: rows and columns of a chunk; 128, 64 times a power of two */
  int32_t k_block;
  int32_t split_k;       /* parts of K on different CTAs, added in a fixed order; with tile_n 128, cluster 1 */
} mk_ag_gemm_config;

/* The first wait that ran out of time. */
typedef struct mk_wait_record {
  uint32_t size, version;
  uint32_t valid;
  uint32_t rank, cta, role, peer, reserved; /* role: 1 producer, 2 push, 3 credit, 4 barrier, 5 sum */
  uint64_t flag_offset, seen, wanted;
} mk_wait_record;

MK_API uint32_t mk_version(void);

/* Collective. The library passes its own memory handles between ranks of one host. */
MK_API int mk_context_create(const mk_context_desc* desc, mk_context** out, mk_error* error);
MK_API int mk_context_destroy(mk_context* context, mk_error* error);

/* Stream-ordered barrier of all ranks, on the devices. Fails once an earlier one has timed out. */
MK_API int mk_barrier(mk_context* context, mk_stream stream, mk_error* error);

/* Collective. The operator owns its epoch, flags and landing buffer. Destroy operators before their context. */
MK_API int mk_ag_gemm_create(mk_context* context, const mk_ag_gemm_desc* desc, mk_ag_gemm** out, mk_error* error);
MK_API int mk_ag_gemm_destroy(mk_ag_gemm* op, mk_error* error);

/* Stream-ordered; no host step and no barrier is needed between calls; can be captured in a graph. `config` may be NULL. */
MK_API int mk_ag_gemm_launch(mk_ag_gemm* op, const mk_ag_gemm_args* args, const mk_ag_gemm_config* config,
                             mk_stream stream, mk_error* error);

/* Fills the fields of `config` that are 0 as a launch would. */
MK_API int mk_ag_gemm_choose(mk_ag_gemm* op, const mk_ag_gemm_args* args, mk_ag_gemm_config* config, mk_error* error);

/* MK_OK, or MK_ERROR_ABORTED with the record (if this rank wrote one). Does not synchronise. */
MK_API int mk_ag_gemm_status(mk_ag_gemm* op, mk_wait_record* record, mk_error* error);

/* Collective: waits for the device, clears flags, epoch and abort word. */
MK_API int mk_ag_gemm_reset(mk_ag_gemm* op, mk_error* error);

/* Copies to `cycles` (one per CTA, at most `count`) the clock cycles each producer waited for peers in the last call. */
MK_API int mk_ag_gemm_waited(mk_ag_gemm* op, int64_t* cycles, int32_t count, mk_error* error);

#ifdef __cplusplus
}
#endif
#endif
