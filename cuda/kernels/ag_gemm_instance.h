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

// Calls `f` with the tile of a shape, one of kAgGemmTiles.
template <class F>
cudaError_t with_tile(const AgGemmShape& s, F f) {
  switch (tile_index(s.tile)) {
    case tile_index({64, 32, 1}): return f(GemmTile<64, 32, 1>{});
    case tile_index({64, 64, 1}): return f(GemmTile<64, 64, 1>{});
    case tile_index({128, 64, 1}): return f(GemmTile<128, 64, 1>{});
    case tile_index({128, 128, 1}): return f(GemmTile<128, 128, 1>{});
    case tile_index({128, 128, 2}): return f(GemmTile<128, 128, 2>{});
    case tile_index({128, 256, 1}): return f(GemmTile<128, 256, 1>{});
    case tile_index({128, 256, 2}): return f(GemmTile<128, 256, 2>{});
  }
  return cudaErrorInvalidValue;
}

extern template struct AgGemmInstance<GemmTile<64, 32, 1>>;
extern template struct AgGemmInstance<GemmTile<64, 64, 1>>;
extern template struct AgGemmInstance<GemmTile<128, 64, 1>>;
extern template struct AgGemmInstance<GemmTile<128, 128, 1>>;
extern template struct AgGemmInstance<GemmTile<128, 128, 2>>;
extern template struct AgGemmInstance<GemmTile<128, 256, 1>>;
extern template struct AgGemmInstance<GemmTile<128, 256, 2>>;

}  // namespace mk
