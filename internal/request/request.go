// Package request turns what a user asked an operator for (a named layer or three sizes, an engine,
// a few overrides) into a complete run, or into an error before anything starts.
package request

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cpu"
	"github.com/mkrun/mkrun/internal/engine/cuda"
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
	Engine   string   // auto, cpu or cuda
	Remote   bool     // the ranks run on another host
	GPUs     []string // that ranks take, in order: numbers, UUIDs; nil: all
	CUDA     engine.CUDA
	Config   string // file with settings, instead of the built-in ones
	Bare     bool   // nothing is configured: what is not given is the engine's own choice

	Check  bool
	Iters  int
	Warmup int
	Seed   uint64

	Timeline string // folder for what happens inside a call, on GPUs; "": none

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
	Engine    string     // "cpu" or "cuda"
	EngineWhy string
	GPUs      []string // what CUDA_VISIBLE_DEVICES is for each rank; nil on the CPU engine
	Net       string   // what carries bytes between nodes
	Source    string   // where the settings came from
	SourceWhy string   // why those: that they match, or by how far they do not
	Layer     string   // what the layer is, with its source; "" if sizes were given

	chosen chosen
}

// maxLaunched bounds the ranks of an operator that is launched: its plan is made and verified by the launcher and
// made again by every rank, which takes seconds beyond this.
const maxLaunched = 512

// defaultChunks is the number of pieces a shard travels in where the configuration is silent: enough for the
// product to start before the whole shard has come, but none smaller than a tile of rows.
//
// On the CUDA engine products follow transfers inside a node block by block within a chunk, so one is enough; what comes
// from another node is announced chunk by chunk.
func defaultChunks(engineName string, m int64, w plan.World) int {
	most, tileRows := int64(4), int64(64)
	if engineName == operator.EngineCUDA {
		if w.Nodes() == 1 {
			return 1
		}
		most, tileRows = 8, 128
	}
	return int(min(most, max(1, m/(tileRows*int64(w.Size())))))
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
	var host engine.Engine = cpu.New()
	if out.Engine == operator.EngineCUDA {
		if err := cuda.CheckWorkers(out.Run.Workers, out.SMs()); err != nil {
			return nil, err
		}
		if err := out.chosen.checkDeviceMemory(out.Run, out.Plan); err != nil {
			return nil, err
		}
		host = hostOfCUDA{}
	}
	if r.Remote {
		return out, nil
	}
	if err := operator.CheckMemory(host, out.Run, out.Plan, ranks); err != nil {
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
	if r.World.Nodes() == 1 && r.Net.Emulates() {
		return nil, errors.New("the link that is emulated (--net-bandwidth, --net-latency, --net-reorder, --net-jitter, --net-drop-after, --net-mode) is between nodes, and there is one node: pretend more with --nodes, or leave these flags out")
	}
	var out Resolved
	var err error
	if out.chosen, err = r.choose(); err != nil {
		return nil, err
	}
	out.Engine, out.EngineWhy = out.chosen.name, out.chosen.why
	out.Net = "none"
	fabric := ""
	if r.World.Nodes() > 1 {
		out.Net, fabric = "tcp", "tcp"
		if slices.Contains([]string{"efa", "ibverbs", "ofi", "emu"}, r.Net.Backend) {
			out.Net, fabric = r.Net.Backend, r.Net.Backend
		}
		if out.Engine == operator.EngineCUDA && out.Net == "tcp" && (r.Net.Backend == "" || r.Net.Backend == operator.NetAuto) {
			r.Net.Backend = cuda.NetEmu
			out.Net, fabric = cuda.NetEmu, cuda.NetEmu
		}
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
	if out.Engine == operator.EngineCUDA {
		fitCUDA(&choice, shape.M, r.World.Size())
	}
	var use settings
	algorithm, err := r.algorithm(shape, dtype, &use, choice.Settings)
	if err != nil {
		return nil, err
	}
	out.Run = operator.RunSpec{
		Operator: r.Operator, Engine: out.Engine, Shape: shape, DType: dtype, World: r.World,
		Chunks:    use.pick("--chunks", r.Chunks, choice.Settings.Chunks, defaultChunks(out.Engine, shape.M, r.World)),
		Algorithm: algorithm, Partials: r.Partials,
		Tile: use.pick("--tile", r.Tile, tileOf(out.Engine, choice.Settings), 0),
		Net:  r.Net, Check: r.Check, Warmup: r.Warmup, Iters: r.Iters, Seed: r.Seed, WaitTimeout: r.WaitTimeout,
		Timeline: r.Timeline,
	}
	if r.Timeline != "" && (out.Engine != operator.EngineCUDA || dtype != engine.BF16) {
		return nil, fmt.Errorf("--timeline: it is the kernels for bf16 on GPUs that record what they do; this is %v by the engine %s (%s)", dtype, out.Engine, out.EngineWhy)
	}
	r.pickWorkers(&use, &out.Run, choice.Settings)
	if out.Engine == operator.EngineCUDA {
		out.Run.CUDA = r.settingsOfCUDA(&use, choice.Settings)
		out.GPUs, out.Run.Devices = cuda.Visible(out.chosen.seats)
		if out.chosen.library != nil {
			out.Run.Library = out.chosen.library.Path
		}
	}
	if err := out.Run.Validate(); err != nil {
		return nil, err
	}
	if out.Engine == operator.EngineCUDA {
		if err := fitChunks(&out.Run, &choice, r.Chunks != 0); err != nil {
			return nil, err
		}
	}
	out.Source, out.SourceWhy = choice.Source+use.overrides(), choice.Why
	if out.Plan, err = out.Run.Plan(); err != nil {
		return nil, err
	}
	return &out, nil
}

// tileOf is the configured tile as the engine counts it: the side of a square, or the columns where the rows are fixed.
func tileOf(engineName string, s config.Settings) int {
	if engineName == operator.EngineCUDA {
		return s.TileN
	}
	return s.TileM
}

// fitCUDA leaves out of an entry that was made for other sizes what the kernels may refuse at these: columns of tiles that have too
// few rows here, and parts of K, which must not be more than the CTAs.
func fitCUDA(choice *config.Choice, m int64, ranks int) {
	s := &choice.Settings
	if rows := cuda.TileRows(s.TileN, m, ranks); s.TileN != 0 && (rows == 0 || s.TileM != 0 && s.TileM != rows) {
		choice.Why += fmt.Sprintf("; without its tile of %d columns, made for other numbers of rows", s.TileN)
		s.TileM, s.TileN = 0, 0
	}
	if s.CUDA.SplitK > 1 && !choice.Exact {
		choice.Why += fmt.Sprintf("; without its split of K by %d, made for other sizes", s.CUDA.SplitK)
		s.CUDA.SplitK = 0
	}
}

// fitChunks sees that the plan fits into the kernels' tables: chunks that nobody asked for are halved until it does, others are
// refused.
func fitChunks(run *operator.RunSpec, choice *config.Choice, asked bool) error {
	smCopies := run.CUDA.Mover == "sm" || run.CUDA.ShareGPUs || run.CUDA.Mover == "" && !asked // else the library may take the other
	fits := func(chunks int) error {
		p, err := plan.AGGemm(run.World, chunks)
		if err != nil {
			return err
		}
		return cuda.CheckTables(p, run.Shape, smCopies)
	}
	why := fits(run.Chunks)
	if why == nil {
		return nil
	}
	most := run.Chunks
	var tooLarge *plan.SizeError
	if errors.As(why, &tooLarge) {
		why = errors.New(tooLarge.Reason) // what it advises is too much for the tables, as a rule
		if asked {
			most = tooLarge.Chunks + 1 // the first to try is one less
		}
	}
	for err := why; err != nil && most > 1; err = fits(most) {
		if asked {
			most--
		} else {
			most /= 2
		}
	}
	if asked {
		return fmt.Errorf("--chunks %d: %w: take at most %d", run.Chunks, why, most)
	}
	choice.Why += fmt.Sprintf("; %d chunks instead of %d: %v", most, run.Chunks, why)
	run.Chunks = most
	return nil
}

// pickWorkers fills in the workers of each role. What is left open there is one, and for compute the cores that the ranks
// of this host share; on the CUDA engine the data plane's choice, by shape.
func (r Request) pickWorkers(use *settings, run *operator.RunSpec, s config.Settings) {
	one, compute := 1, max(1, runtime.NumCPU()/r.World.Size())
	if run.Engine == operator.EngineCUDA {
		one, compute = 0, 0
	}
	run.Workers[plan.RoleIntra] = use.pick("--intra-workers", r.Workers[plan.RoleIntra], s.Intra, one)
	run.Workers[plan.RoleSend] = use.pick("--send-workers", r.Workers[plan.RoleSend], s.Send, one)
	run.Workers[plan.RoleReduce] = use.pick("--reduce-workers", r.Workers[plan.RoleReduce], s.Reduce, one)
	run.Workers[plan.RoleCompute] = use.pick("--compute-workers", r.Workers[plan.RoleCompute], s.Compute, compute)
}

// settingsOfCUDA are those that only the CUDA engine knows: what was asked for, else what is configured.
func (r Request) settingsOfCUDA(use *settings, s config.Settings) engine.CUDA {
	either := func(asked, configured int) int {
		if asked != 0 {
			return asked
		}
		return configured
	}
	if s.Mover == "ce" && r.CUDA.ShareGPUs {
		s.Mover = "" // it cannot serve ranks of one GPU, and nobody asked for it
	}
	return engine.CUDA{
		Mover:       use.pickWord("--mover", r.CUDA.Mover, s.Mover),
		Cluster:     either(r.CUDA.Cluster, s.CUDA.Cluster),
		RasterGroup: either(r.CUDA.RasterGroup, s.CUDA.RasterGroup),
		PushGroup:   either(r.CUDA.PushGroup, s.CUDA.PushGroup),
		RowBlock:    either(r.CUDA.RowBlock, s.CUDA.RowBlock),
		KBlock:      either(r.CUDA.KBlock, s.CUDA.KBlock),
		SplitK:      either(r.CUDA.SplitK, s.CUDA.SplitK),
		ShareGPUs:   r.CUDA.ShareGPUs,
	}
}

// hostOfCUDA is the CUDA engine as the host's memory sees it.
type hostOfCUDA struct{ engine.Engine }

// HostMemory implements engine.MemoryEstimator: the buffers are on the GPU.
func (hostOfCUDA) HostMemory(engine.Config) (int64, error) { return 0, nil }
