// Package operator runs one operator on one rank, on any engine: it makes the data, checks the result
// against a reference that owes nothing to the communication, times the calls, and merges what the
// ranks report.
package operator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cuda"
	"github.com/mkrun/mkrun/internal/mknet"
	"github.com/mkrun/mkrun/internal/plan"
)

// NetAuto asks for the first backend between nodes that all ranks have; Nets are all that can be asked for.
const NetAuto = "auto"

// Nets are the values of --net; "" is tcp.
var Nets = []string{"", NetAuto, "efa", "ibverbs", "ofi", "emu", "tcp"}

// rdmaNets are the backends whose queue pairs can be set up as asked.
var rdmaNets = []string{NetAuto, "efa", "ibverbs"}

// ofConnections reports whether something is asked for that only queue pairs with a connection have.
func ofConnections(n engine.Net) bool {
	r := n.RDMA
	r.QueuePairs, r.ServiceLevel, r.RNRRetries = 0, 0, 0
	return r != engine.RDMA{} || n.GID != 0
}

// repeated is a name that stands in a list more than once; "" if none does.
func repeated(names []string) string {
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return name
		}
	}
	return ""
}

// notOneName reports whether a word cannot be the name of a NIC.
func notOneName(word string) bool {
	return word == "" || strings.ContainsFunc(word, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })
}

// RunSpec is one run of an operator, the same on all ranks. The launcher sends it; each rank makes the
// plan from it. (That all ranks have the same plan is checked when their engines open.)
type RunSpec struct {
	Operator string       `json:"operator"`
	Engine   string       `json:"engine"` // "cpu" or "cuda"
	Shape    plan.Shape   `json:"shape"`
	DType    engine.DType `json:"dtype"`
	World    plan.World   `json:"world"`
	Chunks   int          `json:"chunks"` // pieces each shard travels in
	// Algorithm is one of the operator's, where it has several; else "".
	Algorithm string             `json:"algorithm,omitempty"`
	Partials  plan.Elem          `json:"partials"` // type in which partial sums travel, where there are any
	Workers   [plan.NumRoles]int `json:"workers"`  // per role; >= 1 each on the CPU engine, 0 elsewhere is the engine's choice
	Tile      int                `json:"tile"`     // 0: the engine's default
	CUDA      engine.CUDA        `json:"cuda,omitzero"`
	Devices   []int              `json:"devices,omitempty"` // of each rank: its GPU among those it sees; nil: the first
	Library   string             `json:"library,omitempty"` // file of the CUDA data plane; "": the one that each rank finds
	Net       engine.Net         `json:"net"`

	Check  bool   `json:"check"`
	Warmup int    `json:"warmup"` // calls before the timed ones
	Iters  int    `json:"iters"`  // timed calls
	Seed   uint64 `json:"seed"`   // of the data

	Timeline string `json:"timeline,omitempty"` // folder on each rank's host for what happens inside a call; "": none

	WaitTimeout time.Duration `json:"wait_timeout"` // bound of every wait for a flag or a peer
}

// Encode writes the spec for the other ranks.
func (s RunSpec) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding the run: %w", err)
	}
	return b, nil
}

// Decode reads what Encode wrote, and validates it.
func Decode(b []byte) (RunSpec, error) {
	var s RunSpec
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields() // of another build, which means something we do not know
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("decoding the run: %w", err)
	}
	return s, s.Validate()
}

// What emulated bandwidths may be, in GB/s: one kilobyte a second to more than any memory has.
const (
	minBandwidth = 1e-6
	maxBandwidth = 1e5
)

// maxIters bounds the calls of a run, and with them the times that ranks report.
const maxIters = 1_000_000

// Validate says what is wrong with a run, before anything starts.
func (s RunSpec) Validate() error {
	k, err := lookup(s.Operator)
	if err != nil {
		return err
	}
	if !slices.Contains(k.algorithms, s.Algorithm) && (k.algorithms != nil || s.Algorithm != "") {
		return fmt.Errorf("%s has no algorithm %q; known: %s", s.Operator, s.Algorithm, strings.Join(k.algorithms, ", "))
	}
	if _, err := s.Partials.MarshalText(); err != nil {
		return err
	}
	if s.Partials != plan.ElemOperand && !k.sums {
		return fmt.Errorf("%s has no partial sums that could travel as %v", s.Operator, s.Partials)
	}
	if err := s.World.Validate(); err != nil {
		return err
	}
	if _, err := s.DType.MarshalText(); err != nil {
		return err
	}
	switch {
	case s.Shape.M < 1 || s.Shape.N < 1 || s.Shape.K < 1:
		return fmt.Errorf("shape M=%d N=%d K=%d: every size must be at least 1", s.Shape.M, s.Shape.N, s.Shape.K)
	case s.Shape.K%8 != 0:
		return fmt.Errorf("the depth K=%d is not a multiple of 8", s.Shape.K)
	case k.sums && (overflows(s.Shape.M, int64(s.World.Size())) || overflows(s.Shape.N, int64(s.World.Size()))):
		return fmt.Errorf("shape M=%d N=%d on %d ranks: the ranks' operands have more rows than 64-bit sizes can count", s.Shape.M, s.Shape.N, s.World.Size())
	case overflows(s.Shape.M, s.Shape.K) || overflows(s.Shape.N, s.Shape.K) || overflows(s.Shape.M, s.Shape.N):
		return fmt.Errorf("shape M=%d N=%d K=%d: a matrix of it has more bytes than 64-bit sizes can count", s.Shape.M, s.Shape.N, s.Shape.K)
	case s.Chunks < 1 || s.Chunks > config.MaxChunks:
		return fmt.Errorf("a shard cannot travel in %d chunks; give a number from 1 to %d", s.Chunks, config.MaxChunks)
	case s.Tile < 0:
		return fmt.Errorf("a tile cannot have %d rows", s.Tile)
	case s.Warmup < 0 || s.Warmup > maxIters:
		return fmt.Errorf("%d warm-up calls; give a number from 0 to %d", s.Warmup, maxIters)
	case s.Iters < 1 || s.Iters > maxIters:
		return fmt.Errorf("%d timed calls; give a number from 1 to %d", s.Iters, maxIters)
	case s.Net.BandwidthGBs != 0 && !(s.Net.BandwidthGBs >= minBandwidth && s.Net.BandwidthGBs <= maxBandwidth):
		return fmt.Errorf("a bandwidth of %v GB/s cannot be emulated; give 0 (no limit) or %v to %v", s.Net.BandwidthGBs, minBandwidth, float64(maxBandwidth))
	case !slices.Contains(Nets, s.Net.Backend):
		return fmt.Errorf("--net %s: there are %s", s.Net.Backend, strings.Join(Nets[1:], ", "))
	case slices.Contains([]string{"efa", "ibverbs", "ofi"}, s.Net.Backend) && s.Net.Emulates():
		return fmt.Errorf("--net %s is a real network; bandwidth, latency and order are emulated with emu and tcp", s.Net.Backend)
	case s.Net.Provider != "" && s.Net.Backend != "ofi":
		return fmt.Errorf("--net-provider %s names a provider of libfabric, which --net ofi uses", s.Net.Provider)
	case s.Net.GID < 0 || s.Net.GID > 256:
		return fmt.Errorf("there is no GID %d", s.Net.GID-1)
	case (s.Net.RDMA != (engine.RDMA{}) || s.Net.GID != 0) && !slices.Contains(rdmaNets, s.Net.Backend):
		return fmt.Errorf("--net %s has no queue pairs; --net-qps, -mtu, -gid, -traffic-class, -service-level, -dead-peer, -retries, -rnr-retries and -relaxed are for %s",
			cmp.Or(s.Net.Backend, "tcp"), strings.Join(rdmaNets, ", "))
	case s.Net.Devices != "" && slices.Contains([]string{"", "emu", "tcp"}, s.Net.Backend):
		return fmt.Errorf("--net %s uses no NICs that --net-devices could name; auto, efa, ibverbs and ofi do", cmp.Or(s.Net.Backend, "tcp"))
	case s.Net.Devices != "" && s.Net.Emulates():
		return fmt.Errorf("--net-devices %s names NICs, and a link that is emulated has none of them", s.Net.Devices)
	case s.Net.Devices != "" && slices.ContainsFunc(strings.Split(s.Net.Devices, ","), notOneName):
		return fmt.Errorf("--net-devices %q: names of NICs, with commas between them", s.Net.Devices)
	case s.Net.Devices != "" && repeated(strings.Split(s.Net.Devices, ",")) != "":
		return fmt.Errorf("--net-devices %s names %s twice; a NIC is one rail", s.Net.Devices, repeated(strings.Split(s.Net.Devices, ",")))
	case s.Net.Backend == "efa" && ofConnections(s.Net):
		return errors.New("--net efa has no connections: of the settings of queue pairs it takes --net-qps, -service-level and -rnr-retries")
	case s.WaitTimeout <= 0:
		return fmt.Errorf("--wait-timeout %v: it must be positive, since every wait is bounded", s.WaitTimeout)
	}
	const longest = time.Duration(math.MaxInt64 / 2) // so that two of them do not wrap around
	if err := s.linkTakes(min(s.Net.Latency, longest)+min(s.Net.Jitter, longest), "messages would be"); err != nil {
		return err
	}
	if err := mknet.CheckLink(s.Net); err != nil {
		return err
	}
	for role, n := range s.Workers {
		if n > config.MaxWorkers {
			return fmt.Errorf("%d workers in role %v; at most %d help", n, plan.Role(role), config.MaxWorkers)
		}
		if n < 0 || n < 1 && s.Engine == EngineCPU {
			return fmt.Errorf("%d workers in role %v; each role needs at least one", n, plan.Role(role))
		}
	}
	if err := mknet.CheckRDMA(s.Net.RDMA); err != nil {
		return err
	}
	return s.validateEngine()
}

// The engines.
const (
	EngineCPU  = "cpu"
	EngineCUDA = "cuda"
)

func (s RunSpec) validateEngine() error {
	switch s.Engine {
	case EngineCPU:
		if s.CUDA != (engine.CUDA{}) || s.Devices != nil || s.Library != "" {
			return errors.New("settings of the CUDA engine mean nothing to the CPU engine")
		}
		return nil
	case EngineCUDA:
		if err := cuda.Supports(s.Operator); err != nil {
			return err
		}
		if s.Devices != nil && len(s.Devices) != s.World.Size() {
			return fmt.Errorf("GPUs for %d of %d ranks", len(s.Devices), s.World.Size())
		}
		if err := cuda.CheckNet(s.Net.Backend); err != nil {
			return err
		}
		if err := cuda.CheckSettings(s.CUDA, s.Tile); err != nil {
			return err
		}
		return cuda.CheckTile(s.Tile, s.Shape.M, s.World.Size())
	}
	return fmt.Errorf("there is no engine %q", s.Engine)
}

// overflows reports whether rows*cols fp32 elements and some slack exceed 62 bits.
func overflows(rows, cols int64) bool {
	hi, lo := bits.Mul64(uint64(rows), uint64(cols))
	return hi != 0 || lo >= 1<<58
}

// Plan makes the run's plan, and verifies that it does what the operator is to do.
func (s RunSpec) Plan() (*plan.Plan, error) {
	op, err := lookup(s.Operator)
	if err != nil {
		return nil, err
	}
	p, err := op.verified(s)
	if err != nil {
		return nil, err
	}
	return p, s.checkBandwidth(p)
}

// linkTakes says that something which takes so long on the emulated link cannot come before waits for it end.
func (s RunSpec) linkTakes(long time.Duration, what string) error {
	bound := s.WaitTimeout
	if s.Net.Backend == cuda.NetEmu || s.Engine == EngineCUDA {
		bound = mknet.CommandTime(s.WaitTimeout)
	}
	switch {
	case long < bound:
		return nil
	case bound < s.WaitTimeout:
		return fmt.Errorf("%s %v under way, and --net %s gives a message up after %v, three quarters of --wait-timeout %v", what, long, cuda.NetEmu, bound, s.WaitTimeout)
	}
	return fmt.Errorf("%s %v under way, and waits end after %v (--wait-timeout)", what, long, s.WaitTimeout)
}

// checkBandwidth refuses a plan with a message that the emulated bandwidth lets nobody wait for.
func (s RunSpec) checkBandwidth(p *plan.Plan) error {
	if s.Net.BandwidthGBs == 0 {
		return nil
	}
	most := 0.0 // bytes
	for rank := range p.Ranks {
		queue := p.Ranks[rank].Queues[plan.RoleSend]
		for i := range queue {
			if t := &queue[i]; t.Kind == plan.Send {
				elem := p.Buffers[t.Src.Buffer].Elem.Size(s.DType.Size())
				most = max(most, float64(t.Src.Rows.Len(s.Shape))*float64(t.Src.Cols.Len(s.Shape))*float64(elem))
			}
		}
	}
	// Longer than a Duration holds is as good as a day.
	long := s.Net.Latency + time.Duration(min(most/s.Net.BandwidthGBs, float64(24*time.Hour))).Round(time.Millisecond)
	return s.linkTakes(long, fmt.Sprintf("at --net-bandwidth %v a chunk of %.0f bytes would be", s.Net.BandwidthGBs, most))
}

// verified makes the run's plan and proves that it does what the operator is to do, whoever made it.
func (k kind) verified(s RunSpec) (*plan.Plan, error) {
	p, err := k.plan(s)
	if err != nil {
		return nil, err
	}
	contract, err := k.contract(s)
	if err != nil {
		return nil, err
	}
	if err := plan.VerifyFor(p, contract); err != nil {
		return nil, fmt.Errorf("the plan of %s for this world is wrong: %w", s.Operator, err)
	}
	return p, nil
}
