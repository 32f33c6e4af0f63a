package tune

import (
	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/engine/cuda"
)

// smallRows is the most rows of a product that leaves SMs idle, so that parts of K on different SMs can pay.
const smallRows = 512

// cudaSpace is what may be tried on GPUs: the fields of mk_ag_gemm_config (cuda/include/mkernel.h). Both movers are tried
// first; the other knobs are turned for those that are not far behind.
func cudaSpace(k Kind) Space {
	ce := func(s config.Settings) bool { return s.Mover == "ce" }
	sm := func(s config.Settings) bool { return s.Mover == "sm" }
	var s Space
	s.Starts = []config.Settings{{}}
	if k.Ranks > 1 {
		s.Starts = append(s.Starts, config.Settings{Mover: "sm"}, config.Settings{Mover: "ce"})
	}
	tile := number("tile", func(s *config.Settings) *int { return &s.TileN }, 32, 64, 128, 256)
	tile.Name = "tile columns" // rows are the kernel's own
	tile.fits = func(s config.Settings, v int) bool {
		if s.CUDA.SplitK > 1 && !k.partsFit(v, s.CUDA.SplitK) {
			return false
		}
		if v < 128 {
			return cuda.TileRows(v, k.M, k.Ranks) > 0 && s.CUDA.Cluster <= 1
		}
		return v == 128 || s.CUDA.SplitK <= 1 // a split needs columns that are few
	}
	s.Knobs = append(s.Knobs, tile)

	if k.M <= smallRows {
		split := number("split of K", func(s *config.Settings) *int { return &s.CUDA.SplitK }, 1, 2, 4)
		split.use = func(s config.Settings) bool { return s.TileN > 0 && s.TileN <= 128 && s.CUDA.Cluster <= 1 }
		split.fits = func(s config.Settings, v int) bool { return v == 1 || k.partsFit(s.TileN, v) }
		s.Knobs = append(s.Knobs, split)
	}
	cluster := number("cluster", func(s *config.Settings) *int { return &s.CUDA.Cluster }, 1, 2)
	cluster.fits = func(s config.Settings, v int) bool {
		return v == 1 || s.CUDA.SplitK <= 1 && (s.TileN == 0 || s.TileN >= 128)
	}
	s.Knobs = append(s.Knobs, cluster)

	var ctas []int
	for _, part := range []int{8, 4, 2, 1} { // of the SMs
		if n := k.SMs/part - 1; n > 0 { // some CTA only computes, as files of settings demand
			ctas = append(ctas, n)
		}
	}
	push := number("push CTAs", func(s *config.Settings) *int { return &s.Intra }, ctas...)
	push.use = sm
	s.Knobs = append(s.Knobs, push)
	pushGroup := number("push group", func(s *config.Settings) *int { return &s.CUDA.PushGroup }, 1, 2, 4, 8)
	pushGroup.use = sm
	s.Knobs = append(s.Knobs, pushGroup)

	rows := number("row block", func(s *config.Settings) *int { return &s.CUDA.RowBlock }, 512, 1024, 2048, 4096)
	rows.use = ce
	rows.fits = func(_ config.Settings, v int) bool { return int64(v) <= k.M/int64(k.Ranks) }
	s.Knobs = append(s.Knobs, rows)
	columns := number("K block", func(s *config.Settings) *int { return &s.CUDA.KBlock }, 512, 1024, 2048, 4096)
	columns.use = ce
	columns.fits = func(_ config.Settings, v int) bool { return int64(v) <= k.K }
	s.Knobs = append(s.Knobs, columns)

	if k.Ranks > 1 {
		chunks := number("chunks", func(s *config.Settings) *int { return &s.Chunks }, 1, 2, 4)
		chunks.fits = func(_ config.Settings, v int) bool { return int64(v*k.Ranks) <= k.M }
		s.Knobs = append(s.Knobs, chunks)
	}
	return Space{Starts: s.Starts, Knobs: append(s.Knobs,
		number("raster group", func(s *config.Settings) *int { return &s.CUDA.RasterGroup }, 4, 8, 16))}
}

// partsFit says whether each part of K of each tile has an SM to itself, which the kernels demand (complete_split in
// cuda/host/ag_gemm_config.cpp); shards that make one tile together count as one.
func (k Kind) partsFit(columns, parts int) bool {
	ceil := func(a, b int64) int64 { return (a + b - 1) / b }
	rows, ranks := int64(cuda.TileRows(columns, k.M, k.Ranks)), int64(k.Ranks)
	tiles := ranks * ceil(ceil(k.M, ranks), 128)
	if ranks > 1 && k.M <= rows && k.M%(8*ranks) == 0 {
		tiles = 1
	}
	return tiles*ceil(k.N, int64(columns))*int64(parts) <= int64(k.SMs)
}
