// Checks of ag_gemm's arguments and the choice of how to run; pure functions, tested without a GPU.
#pragma once
#include <vector>

#include "include/mkernel.h"
#include "kernels/ag_gemm.h"
#include "kernels/tile_order.h"

namespace mk {

// What the plan and the machine offer.
struct AgGemmMachine {
  int world;
  int sms;
  int sharers;      // most ranks on one GPU
  int chunks = 1;   // segments per shard
  bool passes_on = false;  // ranks pass on what they got from others
};

// The largest problem of an operator; throws Error.
void check_ag_gemm_capacity(const mk_ag_gemm_desc& desc);

void check_ag_gemm(const mk_ag_gemm_args& args, const mk_ag_gemm_desc& capacity, int world);  // throws Error

// Fills what is 0, then checks the whole; throws Error. From the same m, k and element all ranks get the same mover and
// blocks; the rest is each rank's own affair.
void complete_ag_gemm(mk_ag_gemm_config& config, const mk_ag_gemm_args& args, const AgGemmMachine& machine);

// The tile: of 64 rows where its columns are few and no rank has more rows, else of 128.
AgGemmTile ag_gemm_tile(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, const AgGemmMachine& machine);

// All shards in one tile, so that B is read once: shards of whole swizzle atoms (8 rows) only.
bool ag_gemm_merged(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, const AgGemmMachine& machine);

// Units of work; as many or a few more, where segments have different numbers of rows.
int64_t ag_gemm_units(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, const AgGemmMachine& machine);

// K steps of a part of a split K: whole pipeline stages; the last part may have fewer.
int32_t ag_gemm_part_steps(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config, const AgGemmMachine& machine);

StampGrid ag_gemm_gate(const mk_ag_gemm_args& args, const mk_ag_gemm_config& config);

// One copy of the copy engine: a rectangle of what is sent, in units of the gate's blocks.
struct CopyChunk {
  int32_t row_block;
  int32_t k_block;
  int32_t k_blocks;
};

// Whole blocks of rows at the rate of contiguous copies. Of the rank's last copy, which its peer's last tiles wait for, the
// last block goes in pieces of half of what is left, so that little is left to compute when the last piece comes; each piece
// costs a gap, so the copies before, behind which others still come, are not cut.
std::vector<CopyChunk> ag_gemm_copies(const StampGrid& gate, int64_t rows, bool last);

}  // namespace mk
