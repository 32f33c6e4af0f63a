// Package tune looks for the settings with which an operator is fastest, shape by shape, and writes them down as
// entries of a configuration file.
//
// It measures nothing itself: whoever uses it hands in a function that times some settings next to each other.
package tune

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/config"
)

// Space is what may be tried.
type Space struct {
	Starts []config.Settings // where the search may begin; the first is all zero: the engine's own choice
	Knobs  []Knob            // in the order in which they are turned
}

// Knob is a setting and the values that are tried.
type Knob struct {
	Name   string
	values []int
	field  func(*config.Settings) *int
	use    func(config.Settings) (yes bool)      // whether it means anything beside the others; nil: always
	fits   func(config.Settings, int) (yes bool) // whether a value can be beside the others; nil: all
}

// Kind is what a space is made for.
type Kind struct {
	Engine   string // cpu or cuda
	Operator string
	M, N, K  int64
	Nodes    int
	Ranks    int  // of all nodes
	Sums     bool // the operator adds partial sums
	// Algorithms to choose from, without auto; none where there is one only.
	Algorithms []string
	Cores      int // cpu: of this host, which all ranks share
	SMs        int // cuda: of a GPU
}

// NewSpace is what may be tried for an operator on an engine.
func NewSpace(k Kind) (Space, error) {
	switch k.Engine {
	case "cpu":
		return cpuSpace(k), nil
	case "cuda":
		return cudaSpace(k), nil
	}
	return Space{}, fmt.Errorf("it is not known what can be set on engine %q", k.Engine)
}

func number(name string, field func(*config.Settings) *int, values ...int) Knob {
	return Knob{Name: name, field: field, values: values}
}

func cpuSpace(k Kind) Space {
	s := Space{Starts: []config.Settings{{}}}
	if len(k.Algorithms) > 0 {
		for _, a := range k.Algorithms {
			s.Starts = append(s.Starts, config.Settings{Algorithm: a})
		}
	}
	var chunks []int
	for _, n := range []int{1, 2, 4, 8, 16} {
		if int64(n*k.Ranks) <= max(k.M, int64(k.Ranks)) { // no chunk without a row
			chunks = append(chunks, n)
		}
	}
	s.Knobs = append(s.Knobs, number("chunks", func(s *config.Settings) *int { return &s.Chunks }, chunks...))
	tile := number("tile", func(s *config.Settings) *int { return &s.TileM }, 32, 64, 128)
	tile.fits = func(_ config.Settings, v int) bool { return int64(v) <= 2*max(k.M, k.N) }
	s.Knobs = append(s.Knobs, tile)
	if k.Ranks > k.Nodes { // some node has more than one rank
		s.Knobs = append(s.Knobs, number("intra workers", func(s *config.Settings) *int { return &s.Intra }, 1, 2))
	}
	if k.Nodes > 1 {
		s.Knobs = append(s.Knobs, number("send workers", func(s *config.Settings) *int { return &s.Send }, 1, 2))
	}
	if k.Sums {
		s.Knobs = append(s.Knobs, number("reduce workers", func(s *config.Settings) *int { return &s.Reduce }, 1, 2))
	}
	var compute []int
	for n := 1; n <= k.Cores; n *= 2 {
		compute = append(compute, n)
	}
	return Space{Starts: s.Starts, Knobs: append(s.Knobs, number("compute workers", func(s *config.Settings) *int { return &s.Compute }, compute...))}
}

// with is the settings with the knob at a value.
func (k Knob) with(s config.Settings, v int) config.Settings {
	*k.field(&s) = v
	if k.Name == "tile" { // of the CPU engine: square
		s.TileN = s.TileM
	}
	return s
}

// others are the settings that differ in the knob alone.
func (k Knob) others(s config.Settings) []config.Settings {
	if k.use != nil && !k.use(s) {
		return nil
	}
	var list []config.Settings
	for _, v := range k.values {
		if k.fits != nil && !k.fits(s, v) {
			continue
		}
		if other := k.with(s, v); other != s && !slices.Contains(list, other) {
			list = append(list, other)
		}
	}
	return list
}

// Describe says in words what is set.
func Describe(s config.Settings) string {
	var parts []string
	number := func(name string, v int) {
		if v != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, v))
		}
	}
	word := func(name, v string) {
		if v != "" {
			parts = append(parts, name+" "+v)
		}
	}
	word("algorithm", s.Algorithm)
	word("mover", s.Mover)
	number("compute", s.Compute)
	number("intra", s.Intra)
	number("send", s.Send)
	number("reduce", s.Reduce)
	switch {
	case s.TileM != 0 && s.TileM == s.TileN:
		number("tile", s.TileM)
	default:
		number("tile rows", s.TileM)
		number("tile columns", s.TileN)
	}
	number("chunks", s.Chunks)
	number("cluster", s.CUDA.Cluster)
	number("raster group", s.CUDA.RasterGroup)
	number("push group", s.CUDA.PushGroup)
	number("row block", s.CUDA.RowBlock)
	number("K block", s.CUDA.KBlock)
	number("split of K", s.CUDA.SplitK)
	if len(parts) == 0 {
		return "the engine's own choice"
	}
	return strings.Join(parts, ", ")
}
