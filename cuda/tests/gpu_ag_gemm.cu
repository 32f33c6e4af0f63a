// ag_gemm on real GPUs: every answer against an fp32 reference, repeats against the first answer bit by bit, faults.
// Usage: gpu_ag_gemm [ranks] [all | quick | dead | brief | fuzz] [chunks] [nodes] [seed] [cx7 | efa]. One process per rank,
// rank r on GPU r modulo their number (more ranks than GPUs need MPS). `quick` is for sanitizers, `brief` a few of each; `dead`
// kills the last rank before the others' first call; `fuzz` makes random calls from the seed. More than one node is emulated,
// with a link per rank that keeps the order of what it carries (cx7) or with two that do not (efa). Ends with "N passed, N
// failed". Plans are read from the folder of the program (tests/plans.h).
#include "tests/gpu_faults.cuh"

namespace {

struct Everything : Faults {
  int run() {
    int devices = 1;
    cuda(cudaGetDeviceCount(&devices), "devices");
    const int device = rank.rank % devices;
    // The copy engine serves ranks with a GPU each, which pass nothing on.
    copies = rank.world > 1 && rank.world <= devices && (nodes == 1 || rank.world == nodes);
    cuda(cudaSetDevice(device), "device");
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    mk_context_desc d;
    MK_INIT(&d);
    d.rank = rank.rank, d.world = rank.world, d.device = device, d.share_gpus = 1;
    const std::vector<int32_t> node_ranks(nodes, rank.world / nodes);
    d.nodes = nodes, d.node_ranks = node_ranks.data(), d.network = nodes > 1 ? MK_NETWORK_EMU : MK_NETWORK_NONE;
    d.net_bandwidth = 50e9, d.net_latency_ns = 2000;
    mknet_desc unordered;
    MKNET_INIT(&unordered);
    unordered.backend = "emu";
    unordered.emu.bandwidth = 25e9, unordered.emu.latency_ns = 8000, unordered.emu.jitter_ns = 16000, unordered.emu.nics = 2;
    unordered.emu.unordered = 1, unordered.emu.seed = seed;
    if (nodes > 1 && link == "efa") d.network = MK_NETWORK_NIC, d.net = &unordered;
    d.timeout_ns = quick ? 20'000'000'000ull : copies || rank.world == 1 ? 250'000'000ull : 2'000'000'000ull;
    d.allgather = test::Rank::allgather, d.user = &rank;
    mk_ag_gemm_desc od;
    MK_INIT(&od);
    const std::vector<char> plan = test::read_plan(folder, rank.rank);
    od.plan = plan.data(), od.plan_bytes = plan.size();
    od.max_m = std::max(8192, 1024 * rank.world), od.max_k = 8192;
    must(mk_ag_gemm_heap_bytes(&od, &d.heap_bytes, &error), "size of the heap");
    d.heap_bytes += 16 << 20;  // for a second, small operator
    // A kernel that is loaded at its first launch takes the driver's lock until the calls before it are over, and the proxy
    // of emulated nodes needs the driver to move what these calls wait for.
    cudaFuncAttributes loaded;
    cuda(cudaFuncGetAttributes(&loaded, test::spin), "loading");
    cuda(cudaFuncGetAttributes(&loaded, test::count_different), "loading");
    must(mk_context_create(&d, &context, &error), "context");
    must(mk_ag_gemm_create(context, &od, &op, &error), "operator");
    if (mode == "dead") return dead_peer();
    if (mode == "fuzz") {
      fuzz(kFuzzCalls);
    } else {
      suite();
    }
    must(mk_ag_gemm_destroy(op, &error), "destroy");
    must(mk_context_destroy(context, &error), "destroy");
    printf("[%d] %d passed, %d failed\n", rank.rank, passed, failed);
    return failed == 0 ? 0 : 1;
  }

  void suite() {
    // The first call in a fresh process is the fused kernel.
    shapes();
    refusals();
    status_waits_for_nothing();
    if (mode == "all") granularity();
    for (const int mover : {MK_MOVER_SM, MK_MOVER_CE})
      if (rank.world > 1 && (mover == MK_MOVER_SM || copies)) input_reused(mover);
    if (!quick) two_operators();
    for (const int mover : {MK_MOVER_SM, MK_MOVER_CE}) {
      if (mover == MK_MOVER_SM ? rank.world == 1 : !copies) continue;
      empty_on_some(mover);
      empty_waits(mover);
    }
    if (copies && nodes == 1 && !quick) copies_are_direct();
    repeats(MK_MOVER_SM, quick ? 4 : 100);
    if (copies) repeats(MK_MOVER_CE, quick ? 4 : 101);
    if (mode == "all") repeats(MK_MOVER_SM, 101);
    graph(MK_MOVER_SM);
    if (copies) graph(MK_MOVER_CE);
    recorded(MK_MOVER_SM);
    if (copies) recorded(MK_MOVER_CE);
    faults(quick ? 0 : copies && mode == "all" ? 50 : 4);
    barrier_ends_calls();
    if (rank.world > 1) caller_aborts();
  }
};

}  // namespace

int main(int argc, char** argv) {
  test::Options options;
  if (!test::parse_options({argv + 1, argv + argc}, &options)) {
    fputs(test::kUsage, stderr);
    return 2;
  }
  const std::string program = argv[0];
  const size_t slash = program.rfind('/');
  const int world = options.ranks;
  const std::string folder = test::plan_folder(slash == std::string::npos ? "." : program.substr(0, slash), options.nodes,
                                               world / options.nodes, options.chunks);
  const auto body = [&](const test::Rank& r) {
    Everything suite;
    suite.rank = r, suite.mode = options.mode, suite.quick = options.mode == "quick", suite.folder = folder;
    suite.nodes = options.nodes, suite.chunks = options.chunks, suite.seed = options.seed, suite.link = options.link;
    return suite.run();
  };
  if (world == 1) {
    // In this process, so that a sanitizer sees it.
    test::Shared* shared = new test::Shared{};
    return body(test::Rank{0, 1, shared});
  }
  const int failures = test::run_ranks(world, body);
  printf("gpu_ag_gemm on %d ranks: %d passed, %d failed\n", world, world - failures, failures);
  return failures == 0 ? 0 : 1;
}
