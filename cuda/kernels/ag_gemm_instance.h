// The kernel for one tile; each is compiled by a file of its own (ag_gemm_tile_*.cu).
#pragma once
#include "kernels/ag_gemm.h"
#include "kernels/gemm_tile.h"

namespace mk {

template <class Tile>
struct AgGemmInstance {
  static cudaError_t prepare(Element element);
  static cudaError_t resident(Element element, int* ctas);
  static cudaError_t launch(Element element, const AgGemmParams& params, int ctas, cudaStream_t stream);
};

extern template struct AgGemmInstance<GemmTile<256, 1>>;
extern template struct AgGemmInstance<GemmTile<256, 2>>;
extern template struct AgGemmInstance<GemmTile<128, 1>>;
extern template struct AgGemmInstance<GemmTile<128, 2>>;

}  // namespace mk
