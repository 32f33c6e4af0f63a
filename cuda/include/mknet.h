/* mknet: writes with flags between the memories of ranks on different nodes. C interface of libmknet.so; libmkernel.so
 * has the same functions.
 *
 * A rank opens one mknet. It has the rank's NICs (one or several; transfers are striped over them), one command FIFO
 * (net/fifo.h) and one proxy thread that executes commands. Conventions are those of mkernel.h: structs begin with size
 * and version (MKNET_INIT), functions return MKNET_OK or a code and fill *error (may be NULL). Unless said otherwise a
 * handle is used by one thread at a time; producers of the FIFO are free.
 *
 * Order of calls on every rank:
 *
 *   create -> register (heap, then others) -> endpoint (common, then one per planned peer), given to the peers through
 *   an authenticated session -> connect each planned peer -> [all ranks have connected] -> start -> verify
 *   -> push commands ... -> drain -> [all ranks have drained] -> destroy
 *
 * After an error or an abort nothing moves any more; waits of producers end. `reset` on all ranks, with new endpoints,
 * makes the handle ready again: create's part is kept, register is kept, endpoint and connect are called again.
 */
#ifndef MKNET_H
#define MKNET_H

#include <stdint.h>
#include <string.h>

#include "../net/fifo.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MKNET_VERSION 3u
#if defined(__GNUC__)
#define MKNET_API __attribute__((visibility("default")))
#else
#define MKNET_API
#endif

#define MKNET_INIT(pointer)                                                             \
  (memset((pointer), 0, sizeof *(pointer)), (void)((pointer)->size = (uint32_t)sizeof *(pointer)), \
   (void)((pointer)->version = MKNET_VERSION))

typedef enum mknet_code {
  MKNET_OK = 0,
  MKNET_ERROR_ARGUMENT = 1,    /* the caller's values cannot work */
  MKNET_ERROR_UNSUPPORTED = 2, /* this machine has no such NIC, library or capability; the text says what is missing */
  MKNET_ERROR_SYSTEM = 3,      /* the operating system or a library refused */
  MKNET_ERROR_MEMORY = 4,
  MKNET_ERROR_PEER = 5,        /* a peer sent what cannot be right, or is gone */
  MKNET_ERROR_TIMEOUT = 6,
  MKNET_ERROR_ABORTED = 7      /* aborted by the caller, or by an earlier error, whose text is given */
} mknet_code;

typedef struct mknet_error {
  int32_t code;
  char text[1020];
} mknet_error;

typedef struct mknet mknet;

typedef enum mknet_memory {
  MKNET_HOST = 0,
  MKNET_DEVICE = 1 /* accelerator memory: the proxy moves it with the device callbacks, NICs by dma-buf or peer memory */
} mknet_memory;

/* How the proxy moves device memory where no NIC does, and raises flags there. Called by the proxy thread only, but for
 * pin and unpin. Copies and stores of one rank are executed in the order in which they were given. May be NULL when all
 * memory is on the host. */
typedef struct mknet_device {
  void* user;
  /* Starts a copy between any two of: host, own device, a mapped peer's memory. 0, or a code of the device's library. */
  int (*copy)(void* user, void* target, const void* source, uint64_t bytes);
  /* Stores a 64-bit word behind all copies started before, visible to kernels that run. At most 4096 are not executed. */
  int (*store)(void* user, void* target, uint64_t value);
  /* Marks the copies and stores until now; done() tells when they are complete: 1, 0 not yet, negative: a code. Tickets grow. */
  int (*mark)(void* user, uint64_t* ticket);
  int (*done)(void* user, uint64_t ticket);
  /* Text of a code. */
  const char* (*text)(void* user, int code);
  /* Makes host memory fast to copy from and to; by the thread that registers, or destroys. May be NULL. */
  int (*pin)(void* user, void* base, uint64_t bytes);
  int (*unpin)(void* user, void* base);
  /* Makes the rank's device the calling thread's: first of all on the thread that opens NICs, whose library may ask for memory of
   * the device. May be NULL. */
  void (*enter)(void* user);
} mknet_device;

/* Told once, by the proxy thread, when the network has failed or was aborted; must return soon. Kernels' abort words are
 * set here. May be NULL. */
typedef void (*mknet_failed)(void* user, const mknet_error* error);

/* emu: the link that is emulated. Bandwidth and latency 0: as fast as the memory. */
typedef struct mknet_emu {
  double bandwidth;     /* bytes per second and NIC */
  uint64_t latency_ns;  /* of every piece */
  uint64_t jitter_ns;   /* up to so much more; unordered links only */
  uint32_t nics;        /* emulated NICs per rank, 0: one */
  uint32_t unordered;   /* 0: like RC queue pairs; 1: like SRD, pieces arrive in any order */
  uint32_t piece;       /* largest message in bytes, 0: 1 MiB */
  uint32_t direct;      /* 1: peers in this process are reached at their own addresses, which race detectors can follow;
                           they must not close before all is drained */
  uint64_t seed;        /* of jitter and order */
  uint64_t drop_after;  /* the piece with this number, from 1, is lost and reported as an error; 0: none */
} mknet_emu;

/* ibverbs and efa: which NICs, and how queue pairs are set up. 0 or NULL: chosen. */
typedef struct mknet_rdma {
  const char* devices;     /* NIC names in rail order, separated by commas, each NAME or NAME:PORT; NULL: all that are active */
  const char* library;     /* libibverbs to load, for efa libefa; NULL: libibverbs.so.1 or libefa.so.1 at the usual places */
  const char* efa_home;    /* EFA installation whose lib folders are searched first, by ofi too; NULL: none */
  uint32_t gid;            /* RoCE: 1 + index in the GID table; 0: chosen by type and address */
  uint32_t gid_family;     /* 4 or 6: wanted address family of the GID; 0: IPv4 if there is one */
  uint32_t mtu;            /* largest path MTU in bytes: 256, 512, 1024, 2048, 4096; 0: what both ports have */
  uint32_t qps;            /* queue pairs per peer and NIC; 0: one */
  uint32_t depth;          /* send slots per queue pair; 0: 128 */
  uint32_t traffic_class;  /* RoCE */
  uint32_t service_level;
  uint32_t timeout;        /* 4.096 us x 2^timeout; 0: 18 */
  uint32_t retries;        /* 1 to 6; 0: 6. 7 is refused: some devices take it as "for ever" */
  uint32_t pkey;           /* value; 0: the default partition, 0xffff */
  uint32_t relaxed;        /* 1: relaxed ordering of data; flags then come by immediate */
  uint32_t rnr_retries;    /* when a peer has no receive posted: 1 to 6, 7: until the command's time is over; 0: 6 */
} mknet_rdma;

/* ofi: which of libfabric's providers. NULL or 0: chosen. */
typedef struct mknet_ofi {
  const char* provider; /* "tcp", "efa", "verbs;ofi_rxm", ...; NULL: the first with NICs, else tcp */
  const char* devices;  /* domains (NICs) in rail order, separated by commas; NULL: all NICs, or the one at `address` */
  const char* address;  /* of this host, for providers over IP that are no NICs; NULL: the provider's choice */
  const char* library;  /* libfabric to load; NULL: libfabric.so.1 at the usual places */
  uint32_t first_port, last_port; /* where providers over IP that are no NICs listen; 0: anywhere */
  uint32_t hardware;    /* 1: NICs only, no provider in software */
  uint32_t reserved;
} mknet_ofi;

typedef struct mknet_desc {
  uint32_t size, version;
  const char* backend;     /* emu, ibverbs, efa or ofi */
  int32_t rank, world;
  uint64_t job;            /* of this job and generation, the same on all ranks; endpoints of others are refused */
  uint32_t capacity;       /* slots of the FIFO, a power of two; 0: 1024 */
  uint32_t device_producers; /* 1: GPUs push, so the proxy does not wait to be woken */
  uint64_t start;          /* first position and sequence number; 0 but in tests of the wrap */
  uint64_t timeout_ns;     /* a command that is not complete after so long is an error; 0: ten seconds */
  const char* cpus;        /* where the proxy runs, as in "0-7,16", also outside the mask of the thread that starts it;
                              NULL: where that one may run */
  const char* rails;       /* rail number of each NIC, in their order, as in "2,3": NICs of the same rail are connected,
                              and NICs by position with a peer that shares no rail; NULL: positions are the rails */
  uint32_t bounce;         /* 1, the same on all ranks: a heap in device memory that a NIC cannot register goes through
                              pinned host memory of the same size. Flags then come by immediate. 0: that is
                              MKNET_ERROR_UNSUPPORTED. (Sources in device memory are bounced where they must be.) */
  const mknet_device* device;
  mknet_failed failed;
  void* failed_user;
  mknet_emu emu;
  mknet_rdma rdma;
  mknet_ofi ofi;
} mknet_desc;

typedef struct mknet_range {
  uint32_t size, version;
  void* base;
  uint64_t bytes;
  int32_t memory;  /* mknet_memory */
  int32_t fd;      /* host: a memfd of it, by which emu peers map it; device: a dma-buf; -1: none */
  uint64_t fd_offset; /* of base in fd */
  uint32_t replaces;  /* 1 + the region whose number this range takes, which no command under way uses; 0: none */
  uint32_t reserved;
} mknet_range;

typedef struct mknet_stats {
  uint32_t size, version;
  uint64_t commands, writes, doorbells, bytes; /* executed; posted to NICs; batches; of data */
  uint64_t wakes, naps;    /* of the proxy: sleeps that a command ended, and all */
  uint64_t nic_wakes;      /* sleeps that a NIC ended */
  uint64_t late_ns;        /* how long the proxy had slept when the last command that ended a sleep came */
  uint64_t flags_raised;   /* by this proxy for its peers' commands */
  uint64_t woken_ns;       /* CLOCK_MONOTONIC when the proxy had the last command that ended a sleep */
} mknet_stats;

MKNET_API uint32_t mknet_version(void);

/* Can `desc`'s backend be used here? MKNET_OK: `text` (of `length` bytes) lists the NICs. Else why not. Leaves nothing open. */
MKNET_API int mknet_usable(const mknet_desc* desc, char* text, uint64_t length, mknet_error* error);

MKNET_API int mknet_create(const mknet_desc* desc, mknet** out, mknet_error* error);
MKNET_API int mknet_destroy(mknet* net, mknet_error* error);

/* Registers memory. The first range is the heap, region 0: peers may write it. All others can only be sent from; they may
 * also be registered while the network works. */
MKNET_API int mknet_register(mknet* net, const mknet_range* range, uint32_t* region, mknet_error* error);

/* Endpoint data: peer -1 the part that all ranks may read, else the part for that rank only (it holds keys). *length is
 * the size of `data` before and of the endpoint after; if `data` is too small, or NULL, only *length is set. */
MKNET_API int mknet_endpoint(mknet* net, int32_t peer, void* data, uint64_t* length, mknet_error* error);

/* Connects to a peer whose endpoint data has come. `mapped` is where this process sees the peer's heap (emu between
 * GPUs), or NULL. */
MKNET_API int mknet_connect(mknet* net, int32_t peer, const void* common, uint64_t common_length, const void* own,
                            uint64_t own_length, void* mapped, mknet_error* error);

/* Starts the proxy. Every rank must have connected its peers before any rank starts. */
MKNET_API int mknet_start(mknet* net, mknet_error* error);

/* Sends a probe over every queue pair to every peer and waits until the probes of all peers have come. */
MKNET_API int mknet_verify(mknet* net, uint64_t timeout_ns, mknet_error* error);

/* The FIFO, for producers. */
MKNET_API mknet_fifo* mknet_queue(mknet* net);

/* A producer in C: pushes a command; *position (may be NULL) is its place. Any thread. `sequence` need not be set. */
MKNET_API int mknet_push(mknet* net, const mknet_command* command, uint64_t timeout_ns, uint64_t* position, mknet_error* error);

/* Waits until commands below `position` are complete, so that their sources may be reused: those to `peer`, of which the
 * last is at position - 1, whatever becomes of those to others; or, with peer -1, all. Any thread. */
MKNET_API int mknet_flush(mknet* net, int32_t peer, uint64_t position, uint64_t timeout_ns, mknet_error* error);

/* Waits until all commands pushed are complete and nothing is under way. */
MKNET_API int mknet_drain(mknet* net, uint64_t timeout_ns, mknet_error* error);

/* All-gather among the ranks: copies `bytes` from `mine` of every rank, in rank order, to `all`. 0 if all went well. */
typedef int (*mknet_allgather)(void* user, const void* mine, void* all, uint64_t bytes);

/* How ranks meet that have an all-gather. Read during the calls only. */
typedef struct mknet_group {
  uint32_t size, version;
  mknet_allgather allgather;
  void* user;
  const uint8_t* peers;  /* by rank, 1: connect to it, on both sides; NULL: all are */
  void* const* mapped;   /* by rank: where this process sees its heap, or NULL (emu between GPUs); NULL: nowhere */
  uint64_t verify_ns;    /* bound for the probes of the peers; 0: none are sent */
  uint64_t open_ns;      /* bound for opening the NICs; 0: none. A library that hangs is given up: the thread of ours that called it
                            stays in it, so this library must stay loaded; and where it hangs while it is loaded, exit() would wait
                            for the loader: leave by _exit() */
  const char* place;     /* where this rank is, as messages name it, such as "node 1, host b"; NULL: they do not */
} mknet_group;

/* Collective: all of the order above, up to start and verify, in one call. The job's number is drawn; where a rank's NIC
 * does not reach its heap in device memory, all ranks agree to bounce. What is wrong on one rank is an error on all.
 * `rejoin` is the same after a reset, which it includes. */
MKNET_API int mknet_join(const mknet_desc* desc, const mknet_range* heap, const mknet_group* group, mknet** out, mknet_error* error);
MKNET_API int mknet_rejoin(mknet* net, const mknet_group* group, mknet_error* error);

/* Ends all work now; the reason is what later calls say. The first reason stays. Any thread, any time before destroy. */
MKNET_API void mknet_abort(mknet* net, const char* reason);

/* MKNET_OK, or the error by which the network ended. Waits for one up to timeout_ns. Any thread. */
MKNET_API int mknet_status(mknet* net, uint64_t timeout_ns, mknet_error* error);

/* Stops the proxy, closes all connections and forgets what was under way. Afterwards: endpoint, connect, start, verify. */
MKNET_API int mknet_reset(mknet* net, uint64_t job, mknet_error* error);

/* What the network is made of, one line for people: NICs, link, how memory was registered. */
MKNET_API int mknet_describe(mknet* net, char* text, uint64_t length, mknet_error* error);

MKNET_API int mknet_statistics(mknet* net, mknet_stats* stats, mknet_error* error);

#ifdef __cplusplus
}
#endif
#endif
