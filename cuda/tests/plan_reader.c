/* Reads plans with mkernel_plan.h and prints all there is in them, for a test that compares it with what was written
 * (internal/plan/binary_c_test.go). Standard input is a sequence of (length, image), the length as 4 bytes; a line
 * "refused: why" stands for an image that is no plan. With an argument, it prints one line per image only. */
#include <mkernel_plan.h>

#include <stdio.h>
#include <stdlib.h>

static const char* const dims = "MNK";

static void print_region(const mk_plan* p, uint32_t index) {
  if (index == MK_PLAN_NONE) {
    printf(" -");
    return;
  }
  const mk_plan_region* r = &p->regions[index];
  const mk_plan_span *a = &p->spans[r->rows], *b = &p->spans[r->cols];
  printf(" %s[%c %u/%u..%u/%u,%c %u/%u..%u/%u]", mk_plan_text(p, p->buffers[r->buffer].name), dims[a->dim], a->from_num, a->from_den, a->to_num,
         a->to_den, dims[b->dim], b->from_num, b->from_den, b->to_num, b->to_den);
}

/* A number that depends on everything that a launch would look up. */
static uint64_t walk(const mk_plan* p, const int64_t sizes[MK_DIMS]) {
  uint64_t sum = 0;
  int64_t from, to;
  for (uint32_t i = 0; i < p->span_count; i++) {
    mk_plan_span_at(&p->spans[i], sizes, &from, &to);
    sum = sum * 31 + (uint64_t)from;
    sum = sum * 31 + (uint64_t)to;
  }
  for (uint32_t i = 0; i < p->flag_count; i++) sum = sum * 31 + (uint64_t)mk_plan_flag_words(p, &p->flags[i], sizes);
  for (uint32_t i = 0; i < p->task_count; i++) {
    const mk_plan_task* t = &p->tasks[i];
    for (uint32_t j = 0; j < t->sources; j++) sum = sum * 31 + mk_plan_source(p, t, j)->buffer;
    for (uint32_t j = 0; j < t->waits; j++) sum = sum * 31 + p->waits[t->wait + j].flag;
    for (uint32_t j = 0; j < t->signals; j++) sum = sum * 31 + p->signals[t->signal + j].rank;
    if (t->dst == MK_PLAN_NONE) continue;
    mk_plan_part_at(p, &p->buffers[p->regions[t->dst].buffer], t->dst_part, sizes, &from, &to);
    sum = sum * 31 + (uint64_t)from;
    sum = sum * 31 + (uint64_t)to;
  }
  return sum;
}

static void print_plan(const mk_plan* p) {
  printf("%s %s rank %u of %u chunks %u nodes", p->operator_name, p->algorithm, p->rank, p->world, p->chunks);
  for (uint32_t i = 0; i < p->nodes; i++) printf(" %u", p->node_ranks[i]);
  printf("\n");
  for (uint32_t i = 0; i < p->buffer_count; i++) {
    const mk_plan_buffer* b = &p->buffers[i];
    printf("buffer %s kind %u elem %u %c x %c bits %u part %d\n", mk_plan_text(p, b->name), b->kind, b->elem, dims[b->rows], dims[b->cols], b->bits,
           b->part);
  }
  for (uint32_t i = 0; i < p->flag_count; i++) {
    printf("flag %u kind %u", i, p->flags[i].kind);
    if (p->flags[i].region != MK_PLAN_NONE) {
      print_region(p, p->flags[i].region);
      printf(" %u %u", p->flags[i].block_rows, p->flags[i].block_cols);
    }
    printf("\n");
  }
  for (uint32_t role = 0; role < MK_ROLES; role++) {
    for (uint32_t i = 0; i < p->queues[role].count; i++) {
      const mk_plan_task* t = &p->tasks[p->queues[role].first + i];
      printf("task %u %u kind %u peer %u steps %u part %d dst", role, i, t->kind, t->peer, t->steps, t->dst_part);
      print_region(p, t->dst);
      printf(" b");
      print_region(p, t->b);
      printf(" src");
      for (uint32_t j = 0; j < t->sources; j++) print_region(p, p->sources[t->source + j]);
      for (uint32_t j = 0; j < t->waits; j++) {
        const mk_plan_wait* w = &p->waits[t->wait + j];
        printf(" wait %u x%u lag %u step %u", w->flag, w->count, w->lag, w->step);
      }
      for (uint32_t j = 0; j < t->signals; j++) printf(" signal %u at %u", p->signals[t->signal + j].flag, p->signals[t->signal + j].rank);
      printf("\n");
    }
  }
}

int main(int argc, char** argv) {
  const int64_t sizes[MK_DIMS] = {10007, 1009, 2003};
  const int quiet = argc > 1;
  (void)argv;
  uint32_t length;
  while (fread(&length, sizeof length, 1, stdin) == 1) {
    if (length > (1u << 24)) return 2;
    uint8_t* image = malloc(length > 0 ? length : 1); /* no longer than the image, so that a sanitizer sees every step beyond */
    if (image == NULL || fread(image, 1, length, stdin) != length) return 2;
    mk_plan plan;
    const char* why = mk_plan_open(image, length, &plan);
    if (why != NULL) {
      printf("refused: %s\n", why);
    } else {
      if (!quiet) print_plan(&plan);
      printf("sum %llu\n", (unsigned long long)walk(&plan, sizes));
    }
    free(image);
  }
  return 0;
}
