/* mkernel_measure: what the links between GPUs, and between GPUs and the host, carry and how soon. The rules of mkernel.h
 * hold. One process measures all its GPUs; nothing else should use them meanwhile. All bandwidths are one way, in GB/s
 * (10^9 bytes); all times in microseconds; 0 stands for what could not be measured because there is no direct way.
 *
 * Every transfer is written over a poisoned target and read back word by word, so that a path which loses or bends data
 * (an IOMMU that translates peer traffic, a broken link) is found and not only timed.
 */
#ifndef MKERNEL_MEASURE_H
#define MKERNEL_MEASURE_H

#include "mkernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mk_measure_options {
  uint32_t size, version;
  uint64_t bytes;      /* of one transfer, a multiple of 16, at most 4 GiB; 0: 256 MiB */
  uint64_t timeout_ns; /* bound of every wait inside a kernel; 0: two seconds */
  int32_t repeats;     /* transfers that are timed, at most 1000; 0: eight */
  int32_t rounds;      /* signals and loads that are timed, at most 1000000; 0: two thousand */
} mk_measure_options;

/* From the memory of GPU `from` to that of GPU `to`, CUDA ordinals. */
typedef struct mk_measure_path {
  uint32_t size, version;
  int32_t from, to;
  int32_t direct;     /* 1: kernels on `from` reach the memory of `to`; 0: the driver copies over the host */
  int32_t reserved;
  double copy_gbs;    /* copy engine, this direction alone */
  double both_gbs;    /* copy engine, this direction's share while both are busy */
  double store_gbs;   /* a kernel on `from` that stores to `to` */
  double load_us;     /* one load by `from` of a word that `to` holds, dependent on the one before */
  double signal_us;   /* a word stored by `from` until a kernel on `to` sees it: half of a round trip */
  uint64_t words;     /* 8-byte words checked in each of the three transfers below */
  uint64_t wrong_copy, wrong_store, wrong_load; /* of them, not what was written */
} mk_measure_path;

/* Between one GPU and pinned host memory, which is on the NUMA node where the calling thread runs. */
typedef struct mk_measure_host {
  uint32_t size, version;
  int32_t device;
  int32_t reserved;
  double to_device_gbs, to_host_gbs;           /* copy engine, one direction alone */
  double both_to_device_gbs, both_to_host_gbs; /* shares while both are busy */
  double signal_us; /* GPU writes a word, the CPU sees it and answers, the GPU sees that: the whole round trip */
  uint64_t words;
  uint64_t wrong_to_device, wrong_to_host;
} mk_measure_host;

/* Some GPUs push at once, each the same data to several peers: CTAs of one thread carry blocks of 16 KiB through their shared
 * memory, by TMA both ways, each block to one peer after the other. The first four fields are the caller's. */
typedef struct mk_measure_fan {
  uint32_t size, version;
  int32_t sources; /* the first so many of the devices push */
  int32_t peers;   /* each to so many that follow it, the first device following the last */
  int32_t ctas;    /* of each kernel, at most 1024; 0: as many as the GPU has SMs */
  int32_t depth;   /* blocks that a CTA has on their way, 1 to 4. 1: a block is written before the next is loaded, as the sm mover
                      of ag_gemm does it */
  double gbs;      /* what the slowest source sends to all its peers together */
  uint64_t words;  /* 8-byte words checked */
  uint64_t wrong;  /* of them, not what was sent */
} mk_measure_fan;

/* One thread of a kernel posts commands of one row to the proxy thread of another rank of this process, as the sends of ag_gemm do, over an
 * emulated link that is as fast as the memory, and waits for the flag behind each: GPU, proxy, GPU. The first three fields are the
 * caller's. */
typedef struct mk_measure_trip {
  uint32_t size, version;
  int32_t on_device; /* where source, target and flag are. 0: pinned host memory, which the proxy writes itself; 1: memory of the GPU,
                        which it has a copy engine write, through pinned memory */
  int32_t unordered; /* 0: the sender's proxy writes the flag; 1: a notice does, which the receiver's proxy answers with the flag */
  uint64_t bytes;    /* before the flag, a multiple of 8, at most 1 MiB; 0: the flag alone */
  double median_us, p99_us; /* from the wish to send until the flag is seen */
  double post_us;    /* median, of it: until the command is in the FIFO, as far as the GPU knows */
  uint64_t rounds;   /* timed */
  uint64_t wrong;    /* of them, with another flag than the round's, or other words at the ends of what came before it */
} mk_measure_trip;

/* Both directions between two GPUs: path[0] is from a to b, path[1] back. `options` may be NULL. */
MK_API int mk_measure_pair(int32_t a, int32_t b, const mk_measure_options* options, mk_measure_path path[2], mk_error* error);
/* `devices` are 2 to 16 CUDA ordinals; every source must reach its peers directly. Each peer gets bytes / (count - 1). */
MK_API int mk_measure_fan_out(const int32_t* devices, int32_t count, const mk_measure_options* options, mk_measure_fan* fans,
                              int32_t fan_count, mk_error* error);
MK_API int mk_measure_trips(int32_t device, const mk_measure_options* options, mk_measure_trip* trips, int32_t count, mk_error* error);
MK_API int mk_measure_host_link(int32_t device, const mk_measure_options* options, mk_measure_host* out, mk_error* error);

#ifdef __cplusplus
}
#endif
#endif
