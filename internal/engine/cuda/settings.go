//go:build cgo

package cuda

// #include "bridge.h"
import "C"

import (
	"fmt"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// libraryConfig writes the settings as the library takes them; 0 leaves the choice to it.
func libraryConfig(cfg engine.Config) (C.mk_ag_gemm_config, error) {
	c := C.mk_ag_gemm_config{size: C.sizeof_mk_ag_gemm_config, version: C.MK_VERSION}
	if err := CheckSettings(cfg.CUDA, cfg.Tile); err != nil {
		return c, err
	}
	s := cfg.CUDA
	c.mover = map[string]C.int32_t{"": C.MK_MOVER_AUTO, "sm": C.MK_MOVER_SM, "ce": C.MK_MOVER_CE}[s.Mover]
	for _, f := range []struct {
		to    *C.int32_t
		value int
		what  string
	}{
		{&c.tile_n, cfg.Tile, "tile"}, {&c.cluster, s.Cluster, "cluster"},
		{&c.ctas, cfg.Workers[plan.RoleCompute], "number of compute workers"}, {&c.push_ctas, cfg.Workers[plan.RoleIntra], "number of intra workers"},
		{&c.raster_group, s.RasterGroup, "raster group"}, {&c.push_group, s.PushGroup, "push group"},
		{&c.row_block, s.RowBlock, "row block"}, {&c.k_block, s.KBlock, "K block"}, {&c.split_k, s.SplitK, "split of K"},
	} {
		if f.value < 0 || f.value > 1<<30 {
			return c, fmt.Errorf("a %s of %d", f.what, f.value)
		}
		*f.to = C.int32_t(f.value)
	}
	return c, nil
}

// Settings implements engine.Chooser: what the library filled in, or was told.
func (in *instance) Settings() map[string]any {
	c := &in.config
	m := map[string]any{
		"mover": map[C.int32_t]string{C.MK_MOVER_SM: "sm", C.MK_MOVER_CE: "ce"}[c.mover],
		"tile":  int(c.tile_n), "cluster": int(c.cluster), "ctas": int(c.ctas), "raster_group": int(c.raster_group), "split_k": int(c.split_k),
	}
	if c.mover == C.MK_MOVER_CE {
		m["row_block"], m["k_block"] = int(c.row_block), int(c.k_block)
	} else {
		m["push_ctas"], m["push_group"] = int(c.push_ctas), int(c.push_group)
	}
	return m
}
