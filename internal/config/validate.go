package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/pattern"
)

var isoDate = pattern.Of(`^\d{4}-\d{2}-\d{2}$`)

// report takes a field that is wrong, and why.
type report func(field, format string, args ...any)

// validate tells what is wrong with an entry.
func (e *entry) validate(l limits, wrong report) {
	e.Match.validate(wrong)
	e.Use.validate(e.Match.Engine, l, wrong)
	p := e.Provenance
	if !slices.Contains(knownHows, p.How) {
		wrong("provenance.how", "how is %q; want one of %s", p.How, strings.Join(knownHows, ", "))
		return
	}
	switch {
	case p.Date == "" && p.How != "chosen":
		wrong("provenance.date", "a %s entry needs its date", p.How)
	case p.Date == "":
	case !isoDate().MatchString(p.Date):
		wrong("provenance.date", "date is %q; want YYYY-MM-DD", p.Date)
	default:
		if _, err := time.Parse(time.DateOnly, p.Date); err != nil {
			wrong("provenance.date", "date is %q, which no calendar has", p.Date)
		}
	}
	switch {
	case p.On != "":
	case p.How == "measured":
		wrong("provenance.on", "a measured entry needs on: the machine it was measured on")
	case p.How == "predicted":
		wrong("provenance.on", "a predicted entry needs on: the hardware description it was predicted with")
	}
}

func (m *match) validate(wrong report) {
	for _, list := range []struct {
		field  string
		values []string
		known  []string
	}{
		{"dtype", m.DType, knownDTypes},
		{"fabric", m.Fabric, knownFabrics},
	} {
		if list.values != nil && len(list.values) == 0 {
			wrong("match."+list.field, "%s names none; leave the key out for any", list.field)
		}
		for i, v := range list.values {
			at := fmt.Sprintf("match.%s[%d]", list.field, i)
			if !slices.Contains(list.known, v) {
				wrong(at, "%s is %q; want one of %s", list.field, v, strings.Join(list.known, ", "))
			} else if slices.Contains(list.values[:i], v) {
				wrong(at, "%s names %s twice", list.field, v)
			}
		}
	}
	if !slices.Contains(knownEngines, m.Engine) {
		wrong("match.engine", "engine is %q; want one of %s", m.Engine, strings.Join(knownEngines, ", "))
	}
	for _, r := range m.ranges() {
		b, at := r.bounds, "match."+r.name
		if b == nil {
			continue
		}
		if b.Min == nil && b.Max == nil {
			wrong(at, "%s has neither min nor max", r.name)
		}
		for _, end := range []struct {
			name  string
			value *int64
		}{{"min", b.Min}, {"max", b.Max}} {
			if end.value != nil && *end.value < 1 {
				wrong(at+"."+end.name, "%s must be at least 1", r.name)
			}
		}
		if b.Min != nil && b.Max != nil && *b.Min > *b.Max {
			wrong(at, "%s: min %d is above max %d", r.name, *b.Min, *b.Max)
		}
	}
}

// limits is what an entry's numbers are held against.
type limits struct {
	operator string
	kind     operatorKind
	known    bool // else nothing is held against kind
	sms      int  // of the GPU, one for each CTA
}

// MaxChunks bounds the pieces of a shard: far more than help, and few enough for a plan that is made in a moment.
const MaxChunks = 64

// MaxWorkers bounds the workers of a role, far above the cores of any host and the CTAs of any GPU.
const MaxWorkers = 4096

const maxNumber = 1 << 20 // of SMs and sizes of tiles: far above any machine

func (u *use) validate(engine string, l limits, wrong report) {
	for _, r := range u.Roles.others() {
		if r.value != nil && l.known && !slices.Contains(l.kind.roles, r.name) {
			wrong("use.roles."+r.name, "%s has no %s tasks", l.operator, r.name)
		}
	}
	for _, n := range []struct {
		field string
		value *int
		most  int
		cuda  bool // has no meaning for the CPU engine
	}{
		{"roles.compute", u.Roles.Compute, MaxWorkers, false},
		{"roles.intra", u.Roles.Intra, MaxWorkers, false},
		{"roles.send", u.Roles.Send, MaxWorkers, false},
		{"roles.reduce", u.Roles.Reduce, MaxWorkers, false},
		{"tile.m", u.Tile.M, maxNumber, false},
		{"tile.n", u.Tile.N, maxNumber, false},
		{"tile.k", u.Tile.K, maxNumber, true},
		{"stages", u.Stages, maxNumber, true},
		{"chunks", u.Chunks, MaxChunks, false},
	} {
		switch {
		case n.value == nil:
		case engine == "cpu" && n.cuda:
			wrong("use."+n.field, "%s has no meaning for the CPU engine", n.field)
		case *n.value < 1 && n.field == "roles.compute":
			wrong("use."+n.field, "a split that leaves no compute worker; leave compute out to give it all that the others leave")
		case *n.value < 1:
			wrong("use."+n.field, "%s is %d, want at least 1", n.field, *n.value)
		case *n.value > n.most:
			wrong("use."+n.field, "%s is %d, want at most %d", n.field, *n.value, n.most)
		}
	}
	if engine == "cuda" {
		if msg := u.split(l); msg != "" {
			wrong("use.roles", "%s", msg)
		}
		if l.kind.kernel != nil {
			u.validateKernel(l.operator, l.kind.kernel, wrong)
		}
	}
	if engine == "cpu" && or0(u.Tile.M) != or0(u.Tile.N) {
		wrong("use.tile", "tiles of the CPU engine are square: want the same m and n")
	}
	switch {
	case u.Mover == "":
	case engine == "cpu":
		wrong("use.mover", "mover has no meaning for the CPU engine")
	case !slices.Contains(knownMovers, u.Mover):
		wrong("use.mover", "mover is %q; want one of %s", u.Mover, strings.Join(knownMovers, ", "))
	}
	u.validateAlgorithm(l, wrong)
	if u.CUDA != nil {
		u.CUDA.validate(engine, wrong)
	}
}

// validateKernel holds settings against what the CUDA engine's kernels are built for.
func (u *use) validateKernel(operator string, k *kernel, wrong report) {
	for _, n := range []struct {
		name  string
		value *int
		known []int
	}{{"m", u.Tile.M, k.tileM(or0(u.Tile.N))}, {"n", u.Tile.N, k.tileN}, {"k", u.Tile.K, k.tileK}} {
		if n.value != nil && !slices.Contains(n.known, *n.value) {
			wrong("use.tile."+n.name, "tile %s is %d; the kernels of %s are built for %s", n.name, *n.value, operator,
				alternatives(n.known))
		}
	}
	if u.Stages != nil {
		wrong("use.stages", "stages is %d; the depth of the pipeline of %s follows from its tile: leave the key out", *u.Stages, operator)
	}
	if slices.Contains(knownMovers, u.Mover) && !slices.Contains(k.movers, u.Mover) {
		wrong("use.mover", "mover is %q; the kernels of %s have %s", u.Mover, operator, strings.Join(k.movers, " and "))
	}
	if c := u.CUDA; c != nil && c.SplitK > 1 && (or0(u.Tile.N) > 128 || c.Cluster > 1) {
		wrong("use.cuda.split_k", "split_k is %d; a split of K needs tile n 128 or less and cluster 1", c.SplitK)
	}
	if c := u.CUDA; c != nil && c.Cluster > 1 && u.Tile.N != nil && slices.Contains(k.tileM(*u.Tile.N), 64) {
		wrong("use.cuda.cluster", "cluster is %d; with tile n %d it is 1", c.Cluster, *u.Tile.N)
	}
}

// alternatives writes numbers as "32, 64 or 128".
func alternatives(numbers []int) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.Itoa(n)
	}
	if last := len(words) - 1; last > 0 {
		return strings.Join(words[:last], ", ") + " or " + words[last]
	}
	return words[0]
}

// validate holds the numbers against what the data plane takes (mk_ag_gemm_config in cuda/include/mkernel.h); 0, as in a
// key that is left out, leaves the choice to it.
func (c *CUDA) validate(engine string, wrong report) {
	if engine == "cpu" {
		wrong("use.cuda", "cuda has no meaning for the CPU engine")
		return
	}
	for _, n := range []struct {
		name  string
		value int
		unit  int // the value is this, times a power of two
		most  int
	}{
		{"cluster", c.Cluster, 1, 2}, {"raster_group", c.RasterGroup, 0, maxNumber}, {"push_group", c.PushGroup, 0, maxNumber},
		{"row_block", c.RowBlock, 128, maxNumber}, {"k_block", c.KBlock, 64, maxNumber}, {"split_k", c.SplitK, 0, 64},
	} {
		switch parts := n.value / max(1, n.unit); {
		case n.value == 0:
		case n.value < 0 || n.value > n.most:
			wrong("use.cuda."+n.name, "%s is %d, want 1 to %d", n.name, n.value, n.most)
		case n.unit > 0 && (n.value%n.unit != 0 || parts&(parts-1) != 0):
			wrong("use.cuda."+n.name, "%s is %d, want %d times a power of two", n.name, n.value, n.unit)
		}
	}
}

func (u *use) validateAlgorithm(l limits, wrong report) {
	switch known := l.kind.algorithms; {
	case u.Algorithm == "" || !l.known:
	case known == nil:
		wrong("use.algorithm", "%s has one algorithm only; leave the key out", l.operator)
	case !slices.Contains(known, u.Algorithm):
		wrong("use.algorithm", "algorithm is %q; want one of %s", u.Algorithm, strings.Join(known, ", "))
	}
	switch n := u.OneShotBytes; {
	case n == nil:
	case l.known && l.kind.algorithms == nil:
		wrong("use.one_shot_bytes", "%s has one algorithm only; leave the key out", l.operator)
	case *n < 0:
		wrong("use.one_shot_bytes", "one_shot_bytes is %d, want 0 (never) or more", *n)
	case u.Algorithm != "" && u.Algorithm != "auto":
		wrong("use.one_shot_bytes", "one_shot_bytes has a meaning for algorithm auto only, not for %s", u.Algorithm)
	}
}

// namedCount is a role and how many workers it gets.
type namedCount struct {
	name  string
	value *int
}

// others are the roles beside compute.
func (r *roles) others() []namedCount {
	return []namedCount{{"intra", r.Intra}, {"send", r.Send}, {"reduce", r.Reduce}}
}

// split says what is wrong with the CTAs of the roles on a GPU that holds one for each of its SMs, or "".
func (u *use) split(l limits) string {
	if l.kind.kernel != nil {
		return u.splitOfKernel(l.sms)
	}
	var parts []string
	others := 0
	for _, r := range u.Roles.others() {
		if r.value != nil {
			parts = append(parts, fmt.Sprintf("%s %d", r.name, *r.value))
			others += *r.value
		}
	}
	sum := strings.Join(parts, " + ")
	if others >= l.sms {
		return fmt.Sprintf("a split that leaves no compute CTA: %s on %d SMs", sum, l.sms)
	}
	if all := others + or0(u.Roles.Compute); all > l.sms {
		if sum != "" {
			sum += " + "
		}
		return fmt.Sprintf("%scompute %d is more than the %d SMs, and a CTA without an SM would never start", sum, or0(u.Roles.Compute), l.sms)
	}
	return ""
}

// splitOfKernel is split where a kernel is there: those of its CTAs that push compute, too, and what sends is on the host.
func (u *use) splitOfKernel(sms int) string {
	compute, intra := or0(u.Roles.Compute), or0(u.Roles.Intra)
	switch {
	case compute > sms:
		return fmt.Sprintf("compute %d is more than the %d SMs, and a CTA without an SM would never start", compute, sms)
	case compute > 0 && intra > compute:
		return fmt.Sprintf("intra %d is more than compute %d, and those that push are some of the CTAs that compute", intra, compute)
	case intra > sms:
		return fmt.Sprintf("intra %d is more than the %d SMs, and those that push are some of the CTAs that compute", intra, sms)
	}
	return ""
}

// or0 is the number that was given, or 0.
func or0[T int | int64](p *T) T {
	if p == nil {
		return 0
	}
	return *p
}
