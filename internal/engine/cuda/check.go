package cuda

import (
	"fmt"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// NetEmu is the network between nodes that one host pretends to have.
const NetEmu = "emu"

// CheckNet says why the CUDA engine cannot send between nodes by a backend.
func CheckNet(backend string) error {
	if backend == "tcp" {
		return fmt.Errorf("--net tcp: the CUDA engine sends between nodes by NICs, or by %s on one host", NetEmu)
	}
	return nil
}

// narrowRows is the most rows of a rank that tiles of 64 rows are for.
const narrowRows = 64

// TileRows is how many rows a tile of so many columns has where m rows are spread over so many ranks; 0: it cannot have so many
// columns (tile_rows in cuda/kernels/gemm_tile.h, check_tile in cuda/host/ag_gemm_config.cpp).
func TileRows(tile int, m int64, ranks int) int {
	few := (m+int64(ranks)-1)/int64(ranks) <= narrowRows
	switch {
	case tile <= 64 && few:
		return narrowRows
	case tile == 32:
		return 0
	}
	return 128
}

// CheckTile says why a product of m rows over so many ranks cannot have a tile of so many columns.
func CheckTile(tile int, m int64, ranks int) error {
	if tile != 0 && TileRows(tile, m, ranks) == 0 {
		return fmt.Errorf("a tile of %d columns is for at most %d rows of a rank; %d rows over %d ranks are more: take 64, 128 or 256", tile, narrowRows, m, ranks)
	}
	return nil
}

// CheckSettings says which of the settings the CUDA engine cannot have, before anything starts. (What depends on the
// shape and the GPU, the library says when a rank opens.)
func CheckSettings(s engine.CUDA, tile int) error {
	switch {
	case s.Mover != "" && s.Mover != "sm" && s.Mover != "ce":
		return fmt.Errorf("the mover is %q; the CUDA engine has sm and ce for ag_gemm", s.Mover)
	case tile != 0 && tile != 32 && tile != 64 && tile != 128 && tile != 256:
		return fmt.Errorf("a tile of %d columns; tiles of the CUDA engine have 32, 64, 128 or 256", tile)
	case s.Cluster != 0 && s.Cluster != 1 && s.Cluster != 2:
		return fmt.Errorf("clusters of %d CTAs; the CUDA engine has 1 or 2", s.Cluster)
	case s.Mover == "ce" && s.ShareGPUs:
		return fmt.Errorf("the mover ce cannot serve ranks that share a GPU: a copy inside one GPU waits for the SMs that their kernels hold; use sm")
	}
	return nil
}

// CheckWorkers says which number of CTAs a GPU cannot have, if its SMs are known: each has one to itself, and one that has
// to wait for an SM would never start.
func CheckWorkers(workers [plan.NumRoles]int, sms int) error {
	for role, n := range workers {
		if sms > 0 && n > sms {
			return fmt.Errorf("%d %v workers are more CTAs than the GPU has SMs for this process: %d", n, plan.Role(role), sms)
		}
	}
	return nil
}

// MostRanks is how many ranks the data plane connects: MK_MOST_RANKS.
const MostRanks = 16

// CheckWorld says why the ranks cannot be those of the CUDA engine, or nil.
func CheckWorld(w plan.World) error {
	if size := w.Size(); size > MostRanks {
		return fmt.Errorf("the CUDA engine has up to %d ranks, and these are %d", MostRanks, size)
	}
	return nil
}

// Supports says why an operator cannot run on the CUDA engine, or nil.
func Supports(operator string) error {
	if operator != "ag_gemm" {
		return fmt.Errorf("the CUDA engine has no %s yet, only ag_gemm", operator)
	}
	return nil
}
