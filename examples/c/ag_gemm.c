/* C = gather(A) * B^T from plain C: one process per GPU, no Go and no framework.
 *
 *   make cuda
 *   cc -std=c11 -Icuda/include -I$CUDA_HOME/include examples/c/ag_gemm.c -o ag_gemm \
 *      -Lbuild -lmkernel -L$CUDA_HOME/lib64 -lcudart_static -ldl -lrt -lpthread -lm -Wl,-rpath,$PWD/build
 *   mkrun plan --nodes 1 --ppn 2 --chunks 1 --binary plans ag_gemm --m 1024 --n 512 --k 256
 *   ./ag_gemm 2 plans
 *
 * The parent forks the ranks. Their all-gather, which the library needs when a context is made and destroyed, is a
 * page of shared memory here; MPI_Allgather would do as well.
 */
#define _GNU_SOURCE
#include <cuda_runtime.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mkernel.h"

enum { kMostRanks = 16, kMessage = 4096 };

typedef struct {
  atomic_uint arrived, round;
  char message[kMostRanks][kMessage];
} Meeting;

typedef struct {
  int rank, world;
  Meeting* meeting;
  const char* plans;
} Rank;

static void meet(const Rank* r) {
  const unsigned round = atomic_load(&r->meeting->round);
  if (atomic_fetch_add(&r->meeting->arrived, 1) + 1 == (unsigned)r->world) {
    atomic_store(&r->meeting->arrived, 0);
    atomic_store(&r->meeting->round, round + 1);
  }
  while (atomic_load(&r->meeting->round) == round) sched_yield();
}

static int allgather(void* user, const void* mine, void* all, uint64_t bytes) {
  const Rank* r = user;
  if (bytes > kMessage) return 1;
  memcpy(r->meeting->message[r->rank], mine, bytes);
  meet(r);
  for (int i = 0; i < r->world; ++i) memcpy((char*)all + i * bytes, r->meeting->message[i], bytes);
  meet(r);
  return 0;
}

static int self; /* rank of this process, for messages */
static mk_error error;

static void check(int code) {
  if (code == MK_OK) return;
  fprintf(stderr, "rank %d: mkernel: %s\n", self, error.text);
  exit(1);
}

static void cuda(cudaError_t e) {
  if (e == cudaSuccess) return;
  fprintf(stderr, "rank %d: cuda: %s\n", self, cudaGetErrorString(e));
  exit(1);
}

/* bfloat16 of a small whole number: the upper half of the float. */
static unsigned short bf16(float v) {
  unsigned bits;
  memcpy(&bits, &v, sizeof bits);
  return (unsigned short)(bits >> 16);
}

static int run(Rank r) {
  const int64_t m = 1024, n = 512, k = 256;
  const int64_t first = r.rank * m / r.world, rows = (r.rank + 1) * m / r.world - first; /* of the gathered A */
  const size_t a_bytes = rows * k * 2, b_bytes = n * k * 2, c_bytes = m * n * 2;
  self = r.rank;
  unsigned short* host = malloc(c_bytes > b_bytes ? c_bytes : b_bytes);
  void *a, *b, *c;
  int gpus;
  cuda(cudaGetDeviceCount(&gpus));
  if (r.rank >= gpus) {
    fprintf(stderr, "rank %d: there is no GPU for it, only %d: start as many ranks as there are GPUs\n", r.rank, gpus);
    return 1;
  }
  cuda(cudaSetDevice(r.rank));
  cuda(cudaMalloc(&a, a_bytes));
  cuda(cudaMalloc(&b, b_bytes));
  cuda(cudaMalloc(&c, c_bytes));

  /* Row i of the gathered A is i % 8 everywhere, B is 1: every element of row i of C is k * (i % 8). */
  for (int64_t i = 0; i < rows * k; ++i) host[i] = bf16((float)((first + i / k) % 8));
  cuda(cudaMemcpy(a, host, a_bytes, cudaMemcpyHostToDevice));
  for (int64_t i = 0; i < n * k; ++i) host[i] = bf16(1.0f);
  cuda(cudaMemcpy(b, host, b_bytes, cudaMemcpyHostToDevice));

  /* The plan says who sends what to whom, and when; one plan serves all shapes. */
  char name[4096];
  snprintf(name, sizeof name, "%s/rank%d.plan", r.plans, r.rank);
  static char plan[1 << 20];
  FILE* file = fopen(name, "rb");
  if (file == NULL) {
    fprintf(stderr, "no plan %s: mkrun plan --binary makes it\n", name);
    return 1;
  }
  mk_ag_gemm_desc desc;
  MK_INIT(&desc);
  desc.plan = plan;
  desc.plan_bytes = fread(plan, 1, sizeof plan, file);
  fclose(file);
  desc.max_m = m;
  desc.max_k = k;

  mk_context_desc context_desc;
  MK_INIT(&context_desc);
  context_desc.rank = r.rank;
  context_desc.world = r.world;
  context_desc.device = r.rank;
  check(mk_ag_gemm_heap_bytes(&desc, &context_desc.heap_bytes, &error));
  context_desc.allgather = allgather;
  context_desc.user = &r;
  mk_context* context;
  check(mk_context_create(&context_desc, &context, &error));

  mk_ag_gemm* op;
  check(mk_ag_gemm_create(context, &desc, &op, &error));

  mk_ag_gemm_args args;
  MK_INIT(&args);
  args.m = m, args.n = n, args.k = k;
  args.a = a, args.b = b, args.c = c;
  args.lda = k, args.ldb = k, args.ldc = n;
  args.element = MK_BF16;
  for (int call = 0; call < 3; ++call) check(mk_ag_gemm_launch(op, &args, NULL, NULL, &error));
  cuda(cudaDeviceSynchronize());
  check(mk_ag_gemm_status(op, NULL, &error));

  cuda(cudaMemcpy(host, c, c_bytes, cudaMemcpyDeviceToHost));
  int64_t wrong = 0;
  for (int64_t i = 0; i < m * n; ++i) wrong += host[i] != bf16((float)(k * (i / n % 8)));
  printf("rank %d: %lld of %lld elements are wrong\n", r.rank, (long long)wrong, (long long)(m * n));

  check(mk_ag_gemm_destroy(op, &error));
  check(mk_context_destroy(context, &error));
  return wrong != 0;
}

/* Ends the ranks that are left: they would wait for one that failed, in their all-gather. */
static void end(const pid_t* ranks, int world) {
  for (int rank = 0; rank < world; ++rank)
    if (ranks[rank] > 0) kill(ranks[rank], SIGTERM);
}

int main(int argc, char** argv) {
  const int world = argc > 1 ? atoi(argv[1]) : 1;
  if (world < 1 || world > kMostRanks || argc < 3) {
    fprintf(stderr, "usage: %s RANKS FOLDER_OF_PLANS\n", argv[0]);
    return 2;
  }
  Meeting* meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (meeting == MAP_FAILED) return 1;
  pid_t ranks[kMostRanks];
  int failed = 0, status;
  for (int rank = 0; rank < world; ++rank) {
    ranks[rank] = fork();
    if (ranks[rank] == 0) exit(run((Rank){rank, world, meeting, argv[2]}));
    failed |= ranks[rank] < 0;
  }
  if (failed) end(ranks, world);
  for (pid_t ended; (ended = wait(&status)) > 0;) {
    for (int rank = 0; rank < world; ++rank)
      if (ranks[rank] == ended) ranks[rank] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    if (!failed) end(ranks, world);
    failed = 1;
  }
  return failed;
}
