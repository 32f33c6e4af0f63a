// Checks of ag_gemm's arguments and the choice of how to run; pure functions, tested without a GPU.
#pragma once
#include "include/mkernel.h"
#include "kernels/tile_order.h"

namespace mk {

// Heap bytes and flags for the largest problem of an operator.
struct AgGemmCapacity {
  int64_t max_m, max_k;
  int64_t landing_bytes;  // of all peers' shards
  int64_t stamps;
};
AgGemmCapacity ag_gemm_capacity(const mk_ag_gemm_desc& desc, int world);  // throws Error

void check_ag_gemm(const mk_ag_gemm_args& args, const AgGemmCapacity& capacity, int world);  // throws Error

// What the machine offers.
struct AgGemmMachine {
  int world;
  int sms;
};

// Fills what is 0, then checks the whole; throws Error. All ranks get the same answer from the same input.
void complete_ag_gemm(mk_ag_gemm_config& config, const mk_ag_gemm_args& args, const AgGemmMachine& machine);

TileGrid ag_gemm_tiles(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, int world);
StampGrid ag_gemm_gate(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, int world);

}  // namespace mk
