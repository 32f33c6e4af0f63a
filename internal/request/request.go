// Package request turns what a user asked an operator for (a named layer or three sizes, an engine,
// a few overrides) into a complete run, or into an error before anything starts.
package request

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cpu"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/plan"
)

// Request is what a user asked for. Zero values of the overrides mean "as configured".
type Request struct {
	Operator string
	World    plan.World
	M, N, K  int64  // 0: not given
	Layer    string // name of a layer in the catalogue, instead of N and K
	Tokens   int64  // M of that layer; 0: not given
	DType    string
	Engine   string // auto, cpu or cuda
	Config   string // file with settings, instead of the built-in ones
	Bare     bool   // nothing is configured: what is not given is the engine's own choice

	Check  bool
	Iters  int
	Warmup int
	Seed   uint64

	Net         engine.Net
	WaitTimeout time.Duration

	Chunks    int
	Algorithm string    // of an operator that has several; "": as configured; "auto": by the size of the result
	Partials  plan.Elem // type in which partial sums travel
	Tile      int
	Workers   [plan.NumRoles]int
}

// Resolved is a run that can start.
type Resolved struct {
	Run       operator.RunSpec
	Plan      *plan.Plan // verified
	Engine    string     // "cpu"
	EngineWhy string
	Net       string // what carries bytes between nodes
	Source    string // where the settings came from
	SourceWhy string // why those: that they match, or by how far they do not
	Layer     string // what the layer is, with its source; "" if sizes were given
}

// maxLaunched bounds the ranks of an operator that is launched: its plan is made and verified by the launcher and
// made again by every rank, which takes seconds beyond this.
const maxLaunched = 512

// defaultChunks is the number of pieces a shard travels in where the configuration is silent: enough for the
// product to start before the whole shard has come, but none smaller than a tile of rows.
func defaultChunks(m int64, ranks int) int {
	const most, tileRows = 4, 64
	return int(min(most, max(1, m/(tileRows*int64(ranks)))))
}

// Resolve completes the request, and refuses what this host has no memory for.
func (r Request) Resolve() (*Resolved, error) {
	if size := r.World.Size(); size > maxLaunched {
		return nil, fmt.Errorf("%d ranks: at most %d ranks of an operator are launched; 'mkrun plan' makes and verifies plans for more", size, maxLaunched)
	}
	out, err := r.ResolvePlan()
	if err != nil {
		return nil, err
	}
	ranks := make([]int, r.World.Size()) // pretended nodes share this host
	for i := range ranks {
		ranks[i] = i
	}
	if err := operator.CheckMemory(cpu.New(), out.Run, out.Plan, ranks); err != nil {
		return nil, err
	}
	return out, nil
}

// algorithm is the operator's algorithm for a result of this shape: what its flag says, else what is configured; auto
// chooses by the size of the result.
func (r Request) algorithm(s plan.Shape, d engine.DType, use *settings, configured config.Settings) (string, error) {
	known := operator.Algorithms(r.Operator)
	if r.Algorithm != "" && r.Algorithm != "auto" && !slices.Contains(known, r.Algorithm) {
		return "", fmt.Errorf("--algorithm %s: %s knows auto, %s", r.Algorithm, r.Operator, strings.Join(known, ", "))
	}
	if known == nil {
		return "", nil
	}
	switch choice := use.pickWord("--algorithm", r.Algorithm, configured.Algorithm); {
	case choice != "" && choice != "auto":
		return choice, nil
	case slices.Contains(known, plan.OneShot) && s.M <= configured.OneShotBytes/d.Size()/max(1, s.N):
		return plan.OneShot, nil
	}
	return known[0], nil
}

// configured is what the configuration says.
func (r Request) configured(q config.Query) (config.Choice, error) {
	if r.Bare {
		return config.Choice{Source: "defaults", Why: "no configuration was asked for"}, nil
	}
	entries, err := config.LoadOperator(r.Operator, r.Config)
	if err != nil {
		return config.Choice{}, err
	}
	return entries.Lookup(q), nil
}

// ResolvePlan is Resolve for those who only want to look at the plan: it may be for a larger machine.
func (r Request) ResolvePlan() (*Resolved, error) {
	if err := r.World.Validate(); err != nil {
		return nil, err
	}
	var out Resolved
	var err error
	if out.Engine, out.EngineWhy, err = ChooseEngine(r.Engine); err != nil {
		return nil, err
	}
	out.Net = "none"
	fabric := ""
	if r.World.Nodes() > 1 {
		out.Net, fabric = "tcp", "tcp"
	}
	q, layer, err := r.Query(out.Engine, fabric)
	if err != nil {
		return nil, err
	}
	out.Layer = layer
	dtype, err := engine.ParseDType(q.DType)
	if err != nil {
		return nil, fmt.Errorf("--dtype: %w", err)
	}
	shape := plan.Shape{M: q.M, N: q.N, K: q.K}
	choice, err := r.configured(q)
	if err != nil {
		return nil, err
	}
	var use settings
	algorithm, err := r.algorithm(shape, dtype, &use, choice.Settings)
	if err != nil {
		return nil, err
	}
	out.Run = operator.RunSpec{
		Operator: r.Operator, Shape: shape, DType: dtype, World: r.World,
		Chunks:    use.pick("--chunks", r.Chunks, choice.Settings.Chunks, defaultChunks(shape.M, r.World.Size())),
		Algorithm: algorithm, Partials: r.Partials,
		Tile: use.pick("--tile", r.Tile, choice.Settings.TileM, 0),
		Net:  r.Net, Check: r.Check, Warmup: r.Warmup, Iters: r.Iters, Seed: r.Seed, WaitTimeout: r.WaitTimeout,
	}
	out.Run.Workers[plan.RoleIntra] = use.pick("--intra-workers", r.Workers[plan.RoleIntra], choice.Settings.Intra, 1)
	out.Run.Workers[plan.RoleSend] = use.pick("--send-workers", r.Workers[plan.RoleSend], choice.Settings.Send, 1)
	out.Run.Workers[plan.RoleReduce] = use.pick("--reduce-workers", r.Workers[plan.RoleReduce], choice.Settings.Reduce, 1)
	// Ranks that share this host share its cores.
	out.Run.Workers[plan.RoleCompute] = use.pick("--compute-workers", r.Workers[plan.RoleCompute], choice.Settings.Compute, max(1, runtime.NumCPU()/r.World.Size()))
	out.Source, out.SourceWhy = choice.Source+use.overrides(), choice.Why
	if err := out.Run.Validate(); err != nil {
		return nil, err
	}
	if out.Plan, err = out.Run.Plan(); err != nil {
		return nil, err
	}
	return &out, nil
}
