package operator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/ports"
)

// Status is how a rank's run ended.
type Status string

const (
	Pass  Status = "pass"  // the check (if asked for) held, and every call gave the same bits
	Fail  Status = "fail"  // it ran, but the result is wrong
	Error Status = "error" // it did not run to its end
)

// RankResult is what one rank reports.
type RankResult struct {
	Rank   int    `json:"rank"`
	Status Status `json:"status"`
	Reason string `json:"reason,omitempty"` // of a failure or error
	// LostPeer is the rank whose connection broke, if that was the error: its own report, if there is one,
	// is nearer to the cause.
	LostPeer *int `json:"lost_peer,omitempty"`

	Engine  string  `json:"engine"`
	Net     string  `json:"net,omitempty"`     // what carried bytes between nodes, where the engine says so
	NetWhy  string  `json:"net_why,omitempty"` // and why
	TimesNS []int64 `json:"times_ns"`          // of the timed calls, in order
	Flops   int64   `json:"flops"`             // of one call
	// Of one call, written by this rank to others.
	IntraBytes int64 `json:"intra_bytes"`
	InterBytes int64 `json:"inter_bytes"`
	// WaitedNS is the mean time per timed call that a worker of a role waited for flags.
	WaitedNS [plan.NumRoles]int64 `json:"waited_ns"`
	// HostNS is the mean time per timed call of the thread that starts it, Launches the kernels and copies that it
	// starts; 0 where no device does the work.
	HostNS   int64 `json:"host_ns,omitempty"`
	Launches int   `json:"launches,omitempty"`
	// Settings are those that the engine used, where it says so.
	Settings map[string]any `json:"settings,omitempty"`

	Checked        bool    `json:"checked"` // the output was compared with the reference
	RelError       float64 `json:"rel_error"`
	WorstTileError float64 `json:"worst_tile_error"`
	WorstRowError  float64 `json:"worst_row_error"`
	Tolerance      float64 `json:"tolerance"`
	OutputHash     string  `json:"output_hash"` // SHA-256 of the output's bits on the last data, however many calls were timed
}

// Rank is the place a run takes in a job.
type Rank struct {
	Rank       int
	Ports      ports.Range // to take them on
	NICs       engine.NICs // near it
	ListenAddr string      // IP address where the rank takes connections of other nodes; "" = loopback
	Bootstrap  engine.Bootstrap
	Failed     func(RankResult, error) // if not nil: told of a failed run before what it used is closed, which may take long
}

// generations is the number of calls on data of their own that are checked.
const generations = 2

// Run runs the operator on one rank: two checked calls on different data, so that what is left of the
// first in some buffer cannot pass for the second; then warm-up and timed calls. With a check, the timed calls take
// turns with the two data and each must give the bits of its checked call; without one, the last must. All ranks of the job take the same steps, also when a
// check fails. A cancelled ctx aborts the engine, with its cause as the reason.
//
// The result is filled in as far as the run came; the error is nil unless its status is Error.
func Run(ctx context.Context, eng engine.Engine, spec RunSpec, at Rank) (RankResult, error) {
	result := RankResult{Rank: at.Rank, Status: Error, Engine: eng.Name()}
	err := run(ctx, eng, spec, at, &result)
	if err != nil {
		result.fail(err)
	}
	return result, err
}

func (r *RankResult) fail(err error) {
	r.Status, r.Reason = Error, err.Error()
	if lost := (*engine.PeerError)(nil); errors.As(err, &lost) {
		r.LostPeer = &lost.Peer
	}
}

// session is a run in progress.
type session struct {
	spec     RunSpec
	rank     int
	boot     engine.Bootstrap
	kind     kind
	instance engine.Instance
	result   *RankResult
	inputs   [generations][][]uint16 // the operands, in the order of kind.inputs
}

func run(ctx context.Context, eng engine.Engine, spec RunSpec, at Rank, result *RankResult) (err error) {
	if err := spec.Validate(); err != nil {
		return err
	}
	k, err := lookup(spec.Operator)
	if err != nil {
		return err
	}
	p, err := spec.Plan()
	if err != nil {
		return err
	}
	if at.Rank < 0 || at.Rank >= spec.World.Size() {
		return fmt.Errorf("rank %d is not in a world of %d ranks", at.Rank, spec.World.Size())
	}
	result.Flops = flops(p, spec.Shape, at.Rank)
	if err := at.Bootstrap.Barrier(ctx); err != nil {
		return fmt.Errorf("waiting for all ranks to start: %w", err)
	}
	device := 0
	if spec.Devices != nil {
		device = spec.Devices[at.Rank]
	}
	in, err := eng.Open(ctx, engine.Config{
		Rank: at.Rank, Plan: p, Shape: spec.Shape, DType: spec.DType, Workers: spec.Workers, Tile: spec.Tile, CUDA: spec.CUDA, Device: device, Net: spec.Net, NICs: at.NICs,
		ListenAddr: at.ListenAddr, Ports: at.Ports, WaitTimeout: spec.WaitTimeout, Bootstrap: at.Bootstrap,
	})
	if err != nil {
		return err
	}
	defer func() {
		// A NIC that fails may hold up its own closing.
		if err != nil && at.Failed != nil {
			result.fail(err)
			at.Failed(*result, err)
		}
		err = errors.Join(err, in.Close())
	}()

	if networked, ok := in.(engine.Networked); ok {
		result.Net, result.NetWhy = networked.Network()
	}
	if chooser, ok := in.(engine.Chooser); ok {
		result.Settings = chooser.Settings()
	}
	s := session{spec: spec, rank: at.Rank, boot: at.Bootstrap, kind: k, instance: in, result: result}
	if err := s.calls(ctx); err != nil {
		return err
	}
	// Peers may still wait for bytes of the last call that are on their way.
	if err := at.Bootstrap.Barrier(ctx); err != nil {
		return fmt.Errorf("waiting for all ranks to end: %w", err)
	}
	return nil
}

func (s *session) calls(ctx context.Context) error {
	var hashes [generations]string // of the output of each data
	for g := range hashes {
		if err := s.checkedCall(ctx, g, &hashes[g]); err != nil {
			return err
		}
	}
	s.result.OutputHash = hashes[generations-1]
	if err := s.boot.Barrier(ctx); err != nil {
		return fmt.Errorf("waiting for the check of all ranks: %w", err)
	}
	if !s.spec.Check {
		s.inputs = [generations][][]uint16{} // what is loaded stays
	}
	queuer, queued := s.instance.(engine.Queuer)
	if s.spec.Check || !queued {
		if err := s.lookedAt(ctx, hashes, !queued); err != nil {
			return err
		}
	}
	if queued {
		if err := s.queued(ctx, queuer, hashes[generations-1]); err != nil {
			return err
		}
	}
	if s.spec.Timeline != "" {
		if err := s.record(ctx); err != nil {
			return err
		}
	}
	for role := range s.result.WaitedNS {
		s.result.WaitedNS[role] /= int64(s.spec.Iters)
	}
	s.result.HostNS /= int64(s.spec.Iters)
	if s.result.Status = Pass; s.result.Reason != "" {
		s.result.Status = Fail
	}
	return nil
}

// lookedAt runs the timed calls one by one: with a check, the output of each is looked at, else that of the last. Their
// times count if timed is set.
func (s *session) lookedAt(ctx context.Context, hashes [generations]string, timed bool) error {
	for range s.spec.Warmup {
		if _, _, err := s.call(ctx, false); err != nil {
			return err
		}
	}
	g := generations - 1 // what is loaded
	for i := range s.spec.Iters {
		look := i == s.spec.Iters-1
		if s.spec.Check {
			// Data other than in the call before, so that what is left of that one cannot pass for this one's.
			g, look = i%generations, true
			if err := s.load(g); err != nil {
				return err
			}
		}
		out, stats, err := s.call(ctx, look)
		if err != nil {
			return err
		}
		if timed {
			s.count(stats)
		}
		if look {
			s.compare(out, g, hashes[g], i)
		}
	}
	return nil
}

// queued times the calls where they follow one another on the device; the output of the last is looked at.
func (s *session) queued(ctx context.Context, q engine.Queuer, want string) error {
	if s.spec.Check {
		if err := s.load(generations - 1); err != nil { // lookedAt may have ended with others
			return err
		}
	}
	if err := s.instance.Poison(s.kind.output); err != nil {
		return err
	}
	// Loading takes the ranks different times.
	if err := s.boot.Barrier(ctx); err != nil {
		return fmt.Errorf("waiting for all ranks before the timed calls: %w", err)
	}
	all, err := q.Queue(ctx, s.spec.Warmup+s.spec.Iters)
	if err != nil {
		return err
	}
	for _, stats := range all[s.spec.Warmup:] {
		s.count(stats)
	}
	out, err := s.instance.Output(s.kind.output)
	if err != nil {
		return err
	}
	s.compare(out, generations-1, want, s.spec.Iters-1)
	return nil
}

// count adds a timed call to the result.
func (s *session) count(stats engine.Stats) {
	s.result.TimesNS = append(s.result.TimesNS, stats.Time.Nanoseconds())
	s.result.IntraBytes, s.result.InterBytes = stats.IntraBytes, stats.InterBytes
	for role, waited := range stats.Waited {
		s.result.WaitedNS[role] += waited.Nanoseconds()
	}
	s.result.HostNS += stats.Host.Nanoseconds()
	s.result.Launches = stats.Launches
}

// compare holds the output of a timed call against that of the checked call on the same data.
func (s *session) compare(out []uint16, generation int, want string, call int) {
	sum := hash(out)
	if generation == generations-1 {
		s.result.OutputHash = sum
	}
	if sum != want {
		s.fail(fmt.Sprintf("timed call %d gave other bits than the first call on the same data", call+1))
	}
}

// checkedCall makes the data of a generation, runs the operator on it once, and compares the output with the reference.
func (s *session) checkedCall(ctx context.Context, generation int, sum *string) error {
	d := data{spec: s.spec, generation: uint64(generation)}
	for _, in := range s.kind.inputs {
		from, to := in.rows(s.spec, s.rank)
		cols := s.spec.Shape.Of(in.cols)
		bits := make([]uint16, (to-from)*cols)
		d.rows(bits, in.matrix, from, to, cols)
		s.inputs[generation] = append(s.inputs[generation], bits)
	}
	if err := s.load(generation); err != nil {
		return err
	}
	// Making and checking data may take any rank longer than a wait inside a call may last.
	if err := s.boot.Barrier(ctx); err != nil {
		return fmt.Errorf("waiting for the data of all ranks: %w", err)
	}
	out, _, err := s.call(ctx, true)
	if err != nil {
		return err
	}
	*sum = hash(out)
	if !s.spec.Check {
		return nil
	}
	m, n := s.kind.size(s.spec, s.rank)
	v := judge(s.spec.DType, out, m, n, s.kind.expected(s.spec), s.kind.reference(d, s.rank))
	s.result.Checked, s.result.Tolerance = true, v.tolerance
	s.result.RelError = max(s.result.RelError, v.relError)
	s.result.WorstTileError = max(s.result.WorstTileError, v.worstTile)
	s.result.WorstRowError = max(s.result.WorstRowError, v.worstRow)
	if why := v.failure(); why != "" {
		s.fail(fmt.Sprintf("wrong result in call %d: %s", generation+1, why))
	}
	return nil
}

// fail notes the first thing that was wrong with the results. The rank goes on: its peers count on it.
func (s *session) fail(why string) {
	if s.result.Reason == "" {
		s.result.Reason = why
	}
}

// load gives the engine the rank's operands of one generation.
func (s *session) load(generation int) error {
	for i, in := range s.kind.inputs {
		if err := s.instance.SetInput(in.buffer, s.inputs[generation][i]); err != nil {
			return err
		}
	}
	return nil
}

// call lines the ranks up and runs the operator once. With look, the output is filled with NaN before
// and returned.
func (s *session) call(ctx context.Context, look bool) (out []uint16, stats engine.Stats, err error) {
	if look {
		if err := s.instance.Poison(s.kind.output); err != nil {
			return nil, stats, err
		}
	}
	if err := s.instance.Sync(ctx); err != nil {
		return nil, stats, err
	}
	if stats, err = s.instance.Run(ctx); err != nil {
		return nil, stats, err
	}
	if look {
		out, err = s.instance.Output(s.kind.output)
	}
	return out, stats, err
}

// flops is the work of one rank in one call: 2 per product and sum.
func flops(p *plan.Plan, s plan.Shape, rank int) int64 {
	var sum int64
	for _, queue := range p.Ranks[rank].Queues {
		for _, t := range queue {
			if t.Kind == plan.Compute {
				sum += 2 * t.Dst.Elements(s) * t.Src.Cols.Len(s)
			}
		}
	}
	return sum
}

// hash is the SHA-256 of elements.
func hash(bits []uint16) string {
	h := sha256.New()
	var b [8192]byte
	for len(bits) > 0 {
		n := min(len(bits), len(b)/2)
		for i, e := range bits[:n] {
			b[2*i], b[2*i+1] = byte(e), byte(e>>8)
		}
		h.Write(b[:2*n])
		bits = bits[n:]
	}
	return hex.EncodeToString(h.Sum(nil))
}
