// Checks of ag_gemm's arguments and the choice of how to run; pure functions, tested without a GPU.
#pragma once
#include <vector>

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
  int sharers;  // most ranks on one GPU
};

// Fills what is 0, then checks the whole; throws Error. All ranks get the same answer from the same input.
void complete_ag_gemm(mk_ag_gemm_config& config, const mk_ag_gemm_args& args, const AgGemmMachine& machine);

// All shards in one tile of at most 128 rows, so that B is read once: shards of whole swizzle atoms (8 rows) only.
bool ag_gemm_merged(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, int world);

TileGrid ag_gemm_tiles(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, int world);
StampGrid ag_gemm_gate(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, int world);

// One copy of the copy engine: a rectangle of the own shard, in units of the gate's blocks.
struct CopyChunk {
  int32_t row_block;
  int32_t k_block;
  int32_t k_blocks;
};

// Whole blocks of rows at the rate of contiguous copies; the last block, which the last tiles wait for, in pieces of
// half of what is left, so that little is left to compute when the last piece comes.
std::vector<CopyChunk> ag_gemm_copies(const StampGrid& gate);

}  // namespace mk
