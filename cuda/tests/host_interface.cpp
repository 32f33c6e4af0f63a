// The C interface where there is no GPU: refusals with a message, choices, the heap's offsets, passing descriptors.
#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <string>

#include "heap/fd_exchange.h"
#include "heap/symmetric_heap.h"
#include "host/ag_gemm_config.h"
#include "host/context.h"
#include "host/error.h"
#include "host/network.h"
#include "kernels/ag_gemm.h"
#include "kernels/gemm_tile.h"
#include "tests/check.h"
#include "tests/ranks.h"

using namespace mk;

namespace {

alignas(16) char operand[64];

mk_ag_gemm_args problem(int64_t m, int64_t n, int64_t k) {
  mk_ag_gemm_args a;
  MK_INIT(&a);
  a.m = m, a.n = n, a.k = k, a.a = a.b = a.c = operand, a.lda = a.ldb = k, a.ldc = n;
  return a;
}

template <class F>
std::string message(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string refusal(const mk_ag_gemm_args& a, int world = 2) {
  mk_ag_gemm_desc d;
  MK_INIT(&d);
  d.max_m = 1 << 16, d.max_k = 1 << 14;
  return message([&] { check_ag_gemm(a, d, world); });
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(good_arguments_pass) {
  CHECK(refusal(problem(8191, 1024, 8192)).empty());
  mk_ag_gemm_args some = problem(8192, 0, 8192);  // no columns here, but rows that the peer needs
  some.b = some.c = nullptr;
  CHECK(refusal(some).empty());
  some.a = nullptr;
  CHECK(has(refusal(some), "a is NULL"));
  CHECK(refusal(some, 1).empty());
  CHECK(refusal(problem(8192, 1024, 8192)).empty());
  CHECK(refusal(problem(0, 1024, 8192)).empty());
  CHECK(refusal(problem(8192, 0, 8192)).empty());
  CHECK(refusal(problem(8192, 1024, 0)).empty());
}

TEST(bad_arguments_are_named) {
  mk_ag_gemm_args a = problem(8192, 1024, 8192);
  a.b = nullptr;
  CHECK(has(refusal(a), "b is NULL"));
  char address[32];
  snprintf(address, sizeof address, "c is %p; ", static_cast<void*>(operand + 2));
  a = problem(8192, 1024, 8192), a.c = operand + 2;
  CHECK(has(refusal(a), address) && has(refusal(a), "aligned to 16 bytes"));
  CHECK(has(refusal(problem(8192, 1024, 8196)), "not a multiple of 8"));
  a = problem(8192, 1024, 8192), a.lda = 8000;
  CHECK(has(refusal(a), "lda is 8000"));
  a = problem(8192, 1024, 8192), a.ldc = 1028;
  CHECK(has(refusal(a), "ldc is 1028, not a multiple of 8"));
  a = problem(8192, 1024, 8192), a.element = 7;
  CHECK(has(refusal(a), "element is 7; known are bf16 (0) and f16 (1)"));
  CHECK(has(refusal(problem(1 << 20, 1024, 8192)), "m is 1048576, larger than the operator was made for: its max_m is 65536"));
  CHECK(has(refusal(problem(8192, 1024, 1 << 20)), "k is 1048576, larger than the operator was made for: its max_k is 16384"));
}

// What is too large: which operand or size, its value and the bound.
TEST(sizes_out_of_range_are_named) {
  const auto sized = [](int which, int64_t value) {
    int64_t sizes[] = {8, 8, 8};
    sizes[which] = value;
    return problem(sizes[0], sizes[1], sizes[2]);
  };
  const char* const names[] = {"m", "n", "k"};
  for (int i = 0; i < 3; ++i) {
    const std::string name = names[i];
    CHECK(has(refusal(sized(i, -2)), (name + " is -2; it must not be negative").c_str()));
    CHECK(has(refusal(sized(i, int64_t{1} << 31)), (name + " is 2147483648; at most 2147483647").c_str()));
  }
  constexpr int64_t kLong = (int64_t{1} << 31) - 8;
  CHECK(has(refusal(problem(8192, kLong, 8192)), "c spans 8192 rows with ldc 2147483640, more than 2^39 bytes"));
  mk_ag_gemm_args a = problem(8, kLong, 8192);
  CHECK(has(refusal(a), "b spans 2147483640 rows with ldb 8192, more than 2^39 bytes"));
  a = problem(1 << 16, 8, 8), a.lda = kLong;
  CHECK(has(refusal(a), "a spans 32768 rows with lda 2147483640, more than 2^39 bytes"));
}

// Each operand's pointer and pitch, also where others are as good as ever.
TEST(every_misaligned_operand_is_named) {
  for (const int64_t off : {1, 2, 8, 15}) {
    mk_ag_gemm_args a = problem(8192, 1024, 8192);
    a.a = operand + off;
    CHECK(has(refusal(a), "a is 0x"));
    a = problem(8192, 1024, 8192), a.b = operand + off;
    CHECK(has(refusal(a), "b is 0x"));
    a = problem(8192, 1024, 8192), a.c = operand + off;
    CHECK(has(refusal(a), "c is 0x"));
  }
  const struct {
    int64_t mk_ag_gemm_args::*pitch;
    const char* name;
    int64_t least;
  } pitches[] = {{&mk_ag_gemm_args::lda, "lda", 8192}, {&mk_ag_gemm_args::ldb, "ldb", 8192}, {&mk_ag_gemm_args::ldc, "ldc", 1024}};
  for (const auto& p : pitches) {
    for (const int64_t bad : {int64_t{0}, -p.least, p.least - 8, p.least + 4}) {
      mk_ag_gemm_args a = problem(8192, 1024, 8192);
      a.*p.pitch = bad;
      CHECK(has(refusal(a), (p.name + (" is " + std::to_string(bad)) + ",").c_str()));
    }
    mk_ag_gemm_args a = problem(8192, 1024, 8192);
    a.*p.pitch = INT64_MAX - 7;
    CHECK(has(refusal(a), (std::string(p.name) + " is 9223372036854775800; at most 2147483647 elements").c_str()));
    a.*p.pitch = p.least + 8;
    CHECK(refusal(a).empty());
  }
}

TEST(capacity_refuses_what_overflows) {
  mk_ag_gemm_desc d;
  MK_INIT(&d);
  d.max_m = INT_MAX, d.max_k = INT_MAX;
  CHECK(has(message([&] { check_ag_gemm_capacity(d); }), "max_m 2147483647 times max_k 2147483647 is too large"));
  d.max_m = -1;
  CHECK(has(message([&] { check_ag_gemm_capacity(d); }), "max_m is -1; it must not be negative"));
  d.max_m = 8, d.max_k = int64_t{1} << 31;
  CHECK(has(message([&] { check_ag_gemm_capacity(d); }), "max_k is 2147483648; at most 2147483647"));
}

TEST(choices_are_complete_and_checked) {
  for (const int world : {1, 2, 8})
    for (const int64_t m : {int64_t{2048}, int64_t{8192}, int64_t{16}, int64_t{1} << 20})
      for (const int64_t n : {int64_t{8}, int64_t{1024}, int64_t{4096}}) {
        mk_ag_gemm_config c;
        MK_INIT(&c);
        const mk_ag_gemm_args a = problem(m, n, 8192);
        complete_ag_gemm(c, a, {world, 132, 1});
        CHECK(tile_index(ag_gemm_tile(a, c, {world, 132, 1})) >= 0 && (c.tile_n > kNarrowTileN || m <= 64 || n == 8));
        CHECK(c.push_group >= 1 && c.raster_group >= 1);
        // No wave more than all SMs would need, and no CTA more than that takes.
        const int64_t units = ag_gemm_units(a, c, {world, 132, 1}), clusters = c.ctas / c.cluster, waves = ceil_div(units, 132 / c.cluster);
        CHECK(c.ctas % c.cluster == 0 && c.ctas <= 132 && waves == ceil_div(units, clusters));
        CHECK(waves == 1 ? c.ctas == 132 : units > (clusters - 1) * waves);
        CHECK(c.mover == MK_MOVER_CE || world == 1 || c.push_ctas >= 1);
        CHECK(c.split_k >= 1 && ag_gemm_units(a, c, {world, 132, 1}) * (c.split_k > 1 ? c.split_k : 0) <= 132);
        const StampGrid g = ag_gemm_gate(a, c);
        CHECK(stamp_rows(g, m / world) * (128 << g.row_shift) >= m / world && int64_t{g.k_blocks} * (64 << g.k_shift) >= 8192);
      }
  mk_ag_gemm_config c;
  MK_INIT(&c);
  c.tile_n = 192;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(64, 64, 64), {2, 132, 1}); }), "tile_n is 192"));
  c.tile_n = 32;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(129, 64, 64), {2, 132, 1}); }), "at most 64 rows of a rank, here are 65"));
  c.cluster = 2;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(64, 64, 64), {2, 132, 1}); }), "with tile_n 32 it must be 1"));
  c.cluster = 3;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(64, 64, 64), {2, 132, 1}); }), "it must be 1 or 2"));
  MK_INIT(&c);
  c.mover = MK_MOVER_CE, c.row_block = 100;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(64, 64, 64), {2, 132, 1}); }), "power of two"));
  MK_INIT(&c);
  c.mover = MK_MOVER_SM, c.k_block = 512;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(64, 64, 64), {2, 132, 1}); }), "sm mover"));
}

// Each setting that cannot be is named with its value and what can.
TEST(settings_out_of_range_are_named) {
  const struct {
    int32_t mk_ag_gemm_config::*field;
    int32_t value;
    const char* want;
  } cases[] = {
      {&mk_ag_gemm_config::mover, 7, "mover is 7; known are sm (1) and ce (2), and 0"},
      {&mk_ag_gemm_config::ctas, -1, "ctas is -1;"},
      {&mk_ag_gemm_config::push_ctas, -3, "push_ctas is -3;"},
      {&mk_ag_gemm_config::push_group, -4, "push_group is -4;"},
      {&mk_ag_gemm_config::raster_group, -5, "raster_group is -5;"},
      {&mk_ag_gemm_config::split_k, -6, "split_k is -6;"},
      {&mk_ag_gemm_config::split_k, 200, "split_k 200 of 2 tiles needs more than the 132 CTAs: split_k can be 66"},
  };
  for (const auto& x : cases) {
    mk_ag_gemm_config c;
    MK_INIT(&c);
    c.*x.field = x.value;
    CHECK(has(message([&] { complete_ag_gemm(c, problem(256, 64, 1 << 14), {2, 132, 1}); }), x.want));
  }
  mk_ag_gemm_config c;
  MK_INIT(&c);
  c.mover = MK_MOVER_CE, c.k_block = 1 << 25;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(64, 64, 64), {2, 132, 1}); }), "k_block 33554432; each is from 128 or 64 to 2^24"));
  MK_INIT(&c);
  c.mover = MK_MOVER_CE;
  mk_ag_gemm_args far = problem(64, 64, 64);
  far.lda = int64_t{1} << 30;
  CHECK(has(message([&] { complete_ag_gemm(c, far, {2, 132, 1}); }), "lda is 1073741824; the copy engine takes rows that are at most 1073741823"));
  MK_INIT(&c);
  c.raster_group = INT_MAX;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(64, 1024, 64), {2, 132, 1}); }), "raster_group 2147483647, push_group 1: larger blocks or smaller groups"));
}

// Few rows: narrow tiles, of as few columns as give most SMs one; where those still leave SMs idle, K is split into whole stages.
TEST(few_rows_take_narrow_tiles) {
  const auto chosen = [](int64_t m, int64_t n, int64_t k, int world) {
    mk_ag_gemm_config c;
    MK_INIT(&c);
    complete_ag_gemm(c, problem(m, n, k), {world, 132, 1});
    return c;
  };
  CHECK(chosen(16, 4096, 8192, 1).tile_n == 32 && chosen(16, 4096, 8192, 1).split_k == 1);
  CHECK(chosen(64, 8192, 8192, 2).tile_n == 64 && chosen(65, 8192, 8192, 1).tile_n == 128);
  const mk_ag_gemm_args a = problem(16, 1024, 1032);  // 17 K steps in parts of at least 8
  const mk_ag_gemm_config c = chosen(16, 1024, 1032, 2);
  CHECK(c.tile_n == 32 && c.split_k == 2 && ag_gemm_part_steps(a, c, {2, 132, 1}) == 10);
  CHECK(chosen(16, 1024, 2048, 1).split_k == 1 && chosen(16, 1024, 2112, 1).split_k == 4);  // one rank: not up to 32 steps
  // One tile of all ranks' rows, if these are whole swizzle atoms and no more than the tile has.
  CHECK(ag_gemm_merged(problem(64, 4096, 8192), chosen(64, 4096, 8192, 2), {2, 132, 1}));
  mk_ag_gemm_config narrow;
  MK_INIT(&narrow);
  narrow.mover = MK_MOVER_SM, narrow.tile_n = 64, narrow.cluster = 1;
  CHECK(!ag_gemm_merged(problem(128, 4096, 8192), narrow, {2, 132, 1}));
}

// Products that have a tile of 64 columns for each CTA, and little of K for it, take those.
TEST(short_products_take_tiles_of_64_columns) {
  const struct {
    int64_t m, n, k;
    int world, split_wanted, tile_n, rows, split_k;
  } cases[] = {
      {1024, 1024, 1024, 1, 0, 64, 128, 1}, {256, 2048, 2048, 1, 0, 64, 128, 1},  {1024, 1024, 2048, 1, 0, 64, 128, 1},
      {1024, 1024, 4096, 1, 0, 128, 128, 2}, {768, 2048, 1024, 1, 0, 128, 128, 1}, {256, 4096, 8192, 1, 0, 128, 128, 2},
      {2048, 2048, 2048, 1, 0, 256, 128, 1}, {512, 512, 1024, 2, 0, 64, 128, 2},   {65, 512, 1024, 1, 0, 64, 128, 1},
      {128, 512, 1024, 2, 0, 128, 128, 2},   {64, 512, 1024, 1, 0, 32, 64, 1},     {1024, 1024, 1024, 1, 2, 128, 128, 2},
  };
  for (const auto& x : cases) {
    mk_ag_gemm_config c;
    MK_INIT(&c);
    c.split_k = x.split_wanted;
    const AgGemmMachine machine = {x.world, 132, 1};
    const mk_ag_gemm_args a = problem(x.m, x.n, x.k);
    complete_ag_gemm(c, a, machine);
    const AgGemmTile tile = ag_gemm_tile(a, c, machine);
    CHECK(c.tile_n == x.tile_n && tile.rows == x.rows && tile_index(tile) >= 0 && c.split_k == x.split_k);
  }
}

// Shards of 40 row tiles in 16 chunks of 2.5: the own ones are 40 tiles, those of the peer 16 x 3, of 3 columns each: 2 waves.
TEST(chunks_of_the_own_rows_take_no_further_wave) {
  mk_ag_gemm_config c;
  MK_INIT(&c);
  c.mover = MK_MOVER_SM, c.tile_n = 256, c.cluster = 1;
  complete_ag_gemm(c, problem(10240, 768, 8192), {2, 132, 1, 16});
  CHECK(c.ctas == 132);
}

TEST(ranks_that_share_a_gpu_are_kept_from_the_copy_engine) {
  mk_ag_gemm_config c;
  MK_INIT(&c);
  complete_ag_gemm(c, problem(8192, 4096, 8192), {4, 66, 2});
  CHECK(c.mover == MK_MOVER_SM && c.ctas <= 33);
  MK_INIT(&c);
  c.mover = MK_MOVER_CE;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(8192, 4096, 8192), {4, 66, 2}); }), "share a GPU"));
  // One rank's CTAs would wait for another's that find no SM.
  MK_INIT(&c);
  c.ctas = 33;
  complete_ag_gemm(c, problem(8192, 4096, 8192), {4, 66, 2});
  c.ctas = 34;
  CHECK(has(message([&] { complete_ag_gemm(c, problem(8192, 4096, 8192), {4, 66, 2}); }), "each of 2 may take 33 of its 66 SMs"));
}

TEST(a_barrier_that_was_given_up_names_the_rank) {
  for (const uint64_t at : {uint64_t{0}, uint64_t{1} << 33})
    for (uint32_t rank = 0; rank < kMaxRanks; ++rank) CHECK(missing_in_barrier(at, at + offsetof(Control, met) + rank * sizeof(Word)) == rank);
}

// Peers wait for a rank that opens NICs for as long as for anything else: it gives up before they do, unless that is too soon for a NIC.
TEST(opening_ends_before_the_peers_give_up) {
  CHECK(opening_limit(0) == 10'000'000'000u && opening_limit(4'000'000'000u) == 10'000'000'000u);
  CHECK(opening_limit(30'000'000'000u) == 15'000'000'000u);
}

TEST(heap_offsets_are_aligned_and_bounded) {
  OffsetAllocator heap(10 * 1024);
  CHECK(heap.allocate(1, "one") == 0);
  CHECK(heap.allocate(1025, "two") == 1024);
  CHECK(heap.allocate(0, "nothing") == 3072);
  CHECK(has(message([&] { heap.allocate(8 * 1024, "three"); }), "three needs 8192 bytes"));
  CHECK(has(message([&] { heap.allocate(UINT64_MAX, "all"); }), "all needs"));
  CHECK(heap.allocate(7 * 1024, "rest") == 3072);
}

TEST(structs_of_another_version_or_size_are_refused) {
  mk_error e;
  mk_context* context = nullptr;
  mk_context_desc d;
  MK_INIT(&d);
  d.world = 1, d.heap_bytes = 1 << 20;
  d.version = 77;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "version 77") && has(e.text, "INIT macro"));
  MK_INIT(&d);
  d.size -= 8;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "expects"));
  MK_INIT(&d);
  d.world = 2, d.heap_bytes = 1;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "all-gather"));
  d.world = 17;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "world is 17, this library takes 1 to 16 ranks"));
  d.world = 2, d.allgather = [](void*, const void*, void*, uint64_t) { return 1; }, d.heap_bytes = 0;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "heap_bytes is 0; what mk_ag_gemm_heap_bytes says"));
  const int32_t ranks[] = {1, 2};
  d.heap_bytes = 1, d.nodes = 3;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "nodes is 3 for 2 ranks"));
  d.nodes = 2;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "node_ranks is NULL for 2 nodes"));
  d.node_ranks = ranks, d.network = MK_NETWORK_NIC;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "the nodes have 3 ranks together, the world has 2"));
  d.world = 3;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "net is NULL"));
  mknet_desc net;  // of another version nothing else may be read
  memset(&net, 0xFF, sizeof net);
  net.size = 8, net.version = 2, d.net = &net;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "mknet_desc has 8 bytes and interface version 2, this library has "));
  d.network = MK_NETWORK_NONE;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_UNSUPPORTED && has(e.text, "network 0 is unknown"));
  MK_INIT(&d);
  d.heap_bytes = 1, d.world = 1, d.rank = 1;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "rank 1"));
  MK_INIT(&d);
  d.world = 1, d.heap_bytes = 1 << 20, d.timeout_ns = UINT64_MAX;  // the bound would lie in the past
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "timeout_ns is 18446744073709551615; every wait is bounded"));
  d.timeout_ns = 0, d.heap_bytes = UINT64_MAX;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_ARGUMENT && has(e.text, "heap_bytes is 18446744073709551615; "));
  CHECK(mk_context_create(nullptr, &context, nullptr) == MK_ERROR_ARGUMENT);
  CHECK(mk_ag_gemm_launch(nullptr, nullptr, nullptr, nullptr, &e) == MK_ERROR_ARGUMENT);
}

TEST(no_gpu_is_a_plain_message) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found == cudaSuccess && devices > 0) return;
  mk_error e;
  mk_context* context = nullptr;
  mk_context_desc d;
  MK_INIT(&d);
  d.world = 1, d.heap_bytes = 1 << 20;
  CHECK(mk_context_create(&d, &context, &e) == MK_ERROR_UNSUPPORTED && has(e.text, "no CUDA device: "));
  CHECK(found != cudaErrorInsufficientDriver || has(e.text, "there is no NVIDIA driver, or one that is too old"));
  CHECK(context == nullptr);
}

// More ranks than a socket's queue has places.
TEST(descriptors_reach_every_rank) {
  const int failures = test::run_ranks(16, [](test::Rank r) {
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], &r.rank, sizeof r.rank) != sizeof r.rank) return 1;
    // Each rank's pipe holds its number once for every reader.
    for (int i = 0; i < r.world; ++i)
      if (write(ends[1], &r.rank, sizeof r.rank) != sizeof r.rank) return 1;
    const std::vector<int> got = exchange_descriptors(ends[0], r.rank, std::vector<bool>(r.world, true), test::Rank::allgather, &r);
    for (int from = 0; from < r.world; ++from) {
      if (from == r.rank) {
        if (got[from] != -1) return 1;
        continue;
      }
      int number = -1;
      if (read(got[from], &number, sizeof number) != sizeof number || number != from) return 1;
      close(got[from]);
    }
    return r.meet() ? 0 : 1;
  });
  CHECK(failures == 0);
}

TEST(a_rank_that_is_gone_is_named) {
  // Its address is that of no socket.
  const auto gone = [](void*, const void* mine, void* all, uint64_t bytes) {
    memcpy(all, mine, bytes);
    memset(static_cast<char*>(all) + bytes, 'x', bytes);
    return 0;
  };
  CHECK(has(message([&] { exchange_descriptors(0, 0, {true, true}, gone, nullptr); }), "cannot pass a memory handle to rank 1: "));
}

TEST(a_failing_all_gather_is_reported) {
  const auto fails = [](void*, const void*, void*, uint64_t) { return 1; };
  CHECK(has(message([&] { exchange_descriptors(0, 0, {true, true}, fails, nullptr); }), "all-gather"));
}
