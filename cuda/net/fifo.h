/* The command FIFO: what producers (CTAs, goroutines, threads) and the proxy thread share. Plain C, so that CUDA, C++
 * and Go code see one layout. The memory is host memory, page-aligned, pinned and mapped when GPUs produce.
 *
 * Positions are 64-bit, count commands from the start of the FIFO's life and never wrap. Command p lives in slot
 * p % capacity. There may be any number of producers.
 *
 *   producer                                         proxy
 *   claim p: fetch-add(tail, 1), then wait,          p = next position
 *     bounded, until p - consumed < capacity         wait until slot.sequence == p + 1  (acquire)
 *     or abort is set                                copy the command, then consumed = p + 1  (release)
 *   store words 1 to 7 of the slot                   ... post it, see it through ...
 *   store slot.sequence = p + 1  (release.sys)       completed = q  (release): sources of all commands below q
 *                                                    its peer's word, as completed, for commands to that peer alone
 *   host only: wake the proxy if it sleeps             may be reused
 *
 * A slot says by its sequence whose turn it is, so nothing is ever cleared and a stale slot is never taken for a new
 * one. The wait reads `consumed` with acquire: the slot's words are written only after the proxy has read the old ones.
 *
 * Host producers claim by compare-and-swap, and only when there is room: one that gives up leaves no claimed slot behind.
 * A GPU producer that gives up has to set `abort`: the proxy would wait for its slot for ever.
 *
 * A proxy that sleeps is woken by host producers of its own process. `sleeping` says how it sleeps, `wakes` counts what it was
 * woken for, so that nothing is lost between its last look and its sleep:
 *
 *   producer                                         proxy; `seen` is the count that it has acted upon
 *   store slot.sequence                              store sleeping = how
 *   full fence                                       full fence
 *   if sleeping != 0 and                             stay awake if slot.sequence == p + 1, or abort is set
 *      (how = exchange(sleeping, 0)) != 0:           stay awake if wakes != seen
 *     add 1 to wakes (release)                       MKNET_BY_FUTEX: wait, bounded, while the futex wakes == seen
 *     MKNET_BY_FUTEX: wake the futex wakes           MKNET_BY_FD: poll wake_fd and the descriptors of NICs, bounded
 *     MKNET_BY_FD: add 1 to the eventfd wake_fd      seen = wakes (acquire); store sleeping = 0; look at everything
 *
 * Of the two fences one comes first: either the producer sees that the proxy sleeps, or the proxy sees the command. The first
 * producer that finds it asleep wakes it for all. Whoever has something else for it (a request, the abort) stores that,
 * adds to `wakes` and wakes by both ways, whatever `sleeping` says.
 *
 * GPU producers claim positions at a counter in their own memory, which starts at the value of `tail`, and do not wake:
 * the proxy looks by itself. One FIFO has either host or GPU producers. A GPU thread stores words 1 to 7 with ordinary
 * (vector) stores and the sequence with st.release.sys.
 */
#ifndef MKNET_FIFO_H
#define MKNET_FIFO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define MKNET_ASSERT static_assert
#else
#define MKNET_ASSERT _Static_assert
#endif

enum {
  MKNET_WRITE = 1 /* rows x bytes from the source to the peer's heap, then the flag; bytes 0: the flag alone */
};

/* How the proxy sleeps; 0: it does not, or somebody is waking it. */
enum {
  MKNET_BY_FD = 1,   /* NICs have descriptors to wait for */
  MKNET_BY_FUTEX = 2 /* fewer steps of the kernel's, but only `wakes` is waited for */
};

#define MKNET_NO_FLAG UINT64_MAX

/* One command: a write and the flag that follows it. All offsets and sizes in bytes. The flag is raised at the peer when
 * all bytes of this command, and of no other, are in its memory. */
typedef struct mknet_command {
  uint64_t sequence;      /* position + 1; written last */
  uint8_t op;             /* MKNET_WRITE */
  uint8_t region;         /* where the source is: 0 the own heap, else what mknet_register returned */
  uint16_t peer;          /* rank that is written to */
  uint32_t rows;          /* 1 for bytes in one piece */
  uint64_t source;        /* offset of the first row in the region */
  uint64_t target;        /* offset of the first row in the peer's heap */
  uint64_t bytes;         /* of one row */
  uint64_t flag;          /* offset in the peer's heap of an aligned 64-bit word, or MKNET_NO_FLAG */
  uint64_t value;         /* stored there; greater than what was stored before */
  uint32_t source_stride; /* from row to row; not used when rows is 1. At most 4 GiB - 1: producers check */
  uint32_t target_stride;
} mknet_command;

MKNET_ASSERT(sizeof(mknet_command) == 64, "a command fills a slot");
MKNET_ASSERT(offsetof(mknet_command, rows) == 12, "layout");
MKNET_ASSERT(offsetof(mknet_command, source) == 16, "layout");
MKNET_ASSERT(offsetof(mknet_command, value) == 48, "layout");
MKNET_ASSERT(offsetof(mknet_command, target_stride) == 60, "layout");

#define MKNET_FIFO_MAGIC 0x6f66696674656e6bull /* "knetfifo" */
#define MKNET_FIFO_LINE 128                    /* two cache lines: neighbours are fetched in pairs */

/* The head of the FIFO; slots follow at `slots`, the words of peers at `peers`. Words of different writers are on different lines. */
typedef struct mknet_fifo {
  uint64_t magic;
  uint32_t capacity; /* slots, a power of two */
  uint32_t slots;    /* offset of slot 0 from the start of this struct */
  uint64_t bytes;    /* of the whole FIFO */
  uint64_t start;    /* first position: what tail, consumed and completed were at the beginning */
  uint64_t peers;    /* offset of one word per rank: commands to it at positions below are complete */
  char pad0[MKNET_FIFO_LINE - 40];
  uint64_t tail;     /* host producers: next position to claim */
  char pad1[MKNET_FIFO_LINE - 8];
  uint64_t consumed; /* proxy: slots of positions below are free */
  char pad2[MKNET_FIFO_LINE - 8];
  uint64_t completed; /* proxy: sources of commands at positions below may be reused */
  char pad3[MKNET_FIFO_LINE - 8];
  uint32_t sleeping; /* MKNET_BY_FD or MKNET_BY_FUTEX while the proxy sleeps and nobody is waking it */
  int32_t wake_fd;   /* an eventfd; never blocks */
  uint32_t wakes;    /* a private futex; wraps */
  char pad4[MKNET_FIFO_LINE - 12];
  uint32_t abort;    /* non-zero: producers leave their waits; sticky until the reset */
  char pad5[MKNET_FIFO_LINE - 4];
} mknet_fifo;

MKNET_ASSERT(offsetof(mknet_fifo, tail) == 1 * MKNET_FIFO_LINE, "layout");
MKNET_ASSERT(offsetof(mknet_fifo, consumed) == 2 * MKNET_FIFO_LINE, "layout");
MKNET_ASSERT(offsetof(mknet_fifo, completed) == 3 * MKNET_FIFO_LINE, "layout");
MKNET_ASSERT(offsetof(mknet_fifo, sleeping) == 4 * MKNET_FIFO_LINE, "layout");
MKNET_ASSERT(offsetof(mknet_fifo, wakes) == 4 * MKNET_FIFO_LINE + 8, "layout");
MKNET_ASSERT(offsetof(mknet_fifo, abort) == 5 * MKNET_FIFO_LINE, "layout");
MKNET_ASSERT(sizeof(mknet_fifo) == 6 * MKNET_FIFO_LINE, "layout");

#endif
