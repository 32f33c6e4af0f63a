package cpu

import (
	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// MemoryNeed is the number of bytes that Open of the given configuration allocates on its rank, for
// those who want to know before anything starts. Config.Bootstrap is not looked at.
func MemoryNeed(cfg engine.Config) (int64, error) {
	lay, err := newLayout(cfg.Plan, cfg.Shape, cfg.DType)
	if err != nil {
		return 0, err
	}
	tile := int64(cfg.Tile)
	if tile == 0 {
		tile = DefaultTile
	}
	return memoryNeed(cfg.Plan, cfg.Shape, cfg.DType, cfg.Rank, cfg.Workers[plan.RoleCompute], tile, lay)
}
