package cpu

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/enginetest"
	"github.com/mkrun/mkrun/internal/plan"
)

var small = plan.Shape{M: 16, N: 4, K: 16}

func TestWaitTimeoutSaysWhoOwes(t *testing.T) {
	for _, mapped := range []bool{false, true} {
		j := openJob(t, agGemm(t, 1, 1, 1), small, options{mapped: mapped})
		j.patience(0, 100*time.Millisecond)
		_, err := j.ranks[0].Run(t.Context()) // rank 1 does not run
		var w *engine.WaitError
		if !errors.As(err, &w) {
			t.Fatalf("got %v, want a WaitError", err)
		}
		if w.Rank != 0 || w.Role != "compute" || w.Flag != "landed shard 1 chunk 0" || w.Seen != 0 || w.Wanted != 1 || w.After <= 0 {
			t.Errorf("wrong facts: %+v", w)
		}
		if !strings.Contains(w.Signals, "rank 1 send task 0") || !strings.Contains(w.Task, "compute c[") {
			t.Errorf("who owes: %q, task: %q", w.Signals, w.Task)
		}
		if _, again := j.ranks[0].Run(t.Context()); again == nil || again.Error() != err.Error() {
			t.Errorf("a later Run gave %v, want the same reason", again)
		}
	}
}

// patience sets the bound of a rank's waits from here on. (While ranks open they wait for each other, which may take long
// on a busy machine.)
func (j *job) patience(rank int, bound time.Duration) {
	j.ranks[rank].(*instance).cfg.WaitTimeout = bound
}

// Rank 2 does not come to a barrier. Rank 0 gives up, on one node after rank 1 has come and is patient.
func TestSyncTimeoutNamesTheMissing(t *testing.T) {
	for _, c := range []struct {
		ppn  []int
		want []string // what the error says
	}{
		{[]int{3}, []string{"arrivals at the barrier", "seen 2, wanted 3"}},
		{[]int{1, 1, 1}, []string{"barrier round 0", "rank 2 should have raised it"}},
	} {
		j := openJob(t, agGemm(t, 1, c.ppn...), small, options{})
		j.patience(0, 100*time.Millisecond)
		var patient sync.WaitGroup
		if len(c.ppn) == 1 {
			patient.Go(func() {
				if err := j.ranks[1].Sync(t.Context()); err == nil {
					t.Error("rank 1 passed a barrier to which rank 2 did not come")
				}
			})
			for arrived := j.ranks[0].(*instance).heap().cell(offArrive); arrived.value.Load() == 0; {
				time.Sleep(time.Millisecond)
			}
		}
		err := j.ranks[0].Sync(t.Context())
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("ppn %v: %v does not say %q", c.ppn, err, want)
			}
		}
		j.ranks[1].Abort(errors.New("the end of the test"))
		patient.Wait()
	}
}

func someoneSleeps(h *heap) bool {
	for off := int64(offCells); off < h.lay.cells; off += cellSize {
		if h.cell(off).waiters.Load() > 0 {
			return true
		}
	}
	return false
}

func TestAbortAndContextWakeWaiters(t *testing.T) {
	reason := errors.New("rank 7 is on fire")
	for _, mapped := range []bool{false, true} {
		for _, how := range []string{"abort", "context"} {
			j := openJob(t, agGemm(t, 1, 2, 1), small, options{mapped: mapped})
			in := j.ranks[0].(*instance)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			done := make(chan error)
			go func() {
				_, err := in.Run(ctx)
				done <- err
			}()
			for !someoneSleeps(in.heap()) { // until a worker sleeps
				select {
				case err := <-done:
					t.Fatalf("Run ended without its peers: %v", err)
				case <-time.After(time.Millisecond):
				}
			}
			if how == "abort" {
				in.Abort(reason)
			} else {
				cancel(reason)
			}
			if err := <-done; !errors.Is(err, reason) {
				t.Errorf("%s: Run gave %v", how, err)
			}
			if err := in.Sync(t.Context()); !errors.Is(err, reason) {
				t.Errorf("%s: Sync gave %v", how, err)
			}
			in.Abort(errors.New("later")) // must change nothing
			if err := in.aborted(); !errors.Is(err, reason) {
				t.Errorf("%s: the reason became %v", how, err)
			}
			if err := in.Close(); err != nil {
				t.Error(err)
			}
			in.Abort(errors.New("after the end")) // must not touch unmapped memory
		}
	}
}

// untilAborted waits for the instance to abort, without a time of its own.
func untilAborted(t *testing.T, in engine.Instance) error {
	t.Helper()
	select {
	case <-in.(*instance).life.Done():
		return in.(*instance).aborted()
	case <-time.After(time.Minute):
		t.Fatal("the instance was not aborted")
		return nil
	}
}

func TestBadFramesAbort(t *testing.T) {
	send := uint8(plan.RoleSend)
	size := uint32(small.M / 2 * small.K * 2)
	for name, c := range map[string]struct {
		raw  []byte // instead of frame
		f    frame
		want string
	}{
		"no frame":        {raw: make([]byte, frameSize), want: "a frame begins with 0x0"},
		"unknown kind":    {f: frame{kind: 9}, want: "unknown kind 9"},
		"unknown role":    {f: frame{kind: frameTask, role: 77, epoch: 1}, want: "role 77, task 0 of rank 0 does not send to rank 1"},
		"unknown task":    {f: frame{kind: frameTask, role: send, task: 1 << 31, epoch: 1}, want: "does not send to rank 1"},
		"not for us":      {f: frame{kind: frameTask, role: uint8(plan.RoleCompute), epoch: 1}, want: "does not send to rank 1"},
		"epoch skipped":   {f: frame{kind: frameTask, role: send, epoch: 2, length: size}, want: "epoch 2 after epoch 0"},
		"epoch zero":      {f: frame{kind: frameTask, role: send, epoch: 0, length: size}, want: "epoch 0 after epoch 0"},
		"too long":        {f: frame{kind: frameTask, role: send, epoch: 1, length: size + 2}, want: "bytes at 0; expected one at 0 of at most"},
		"empty piece":     {f: frame{kind: frameTask, role: send, epoch: 1}, want: "a piece of 0 bytes"},
		"wrong offset":    {f: frame{kind: frameTask, role: send, epoch: 1, offset: 1 << 63, length: 2}, want: "a piece of 2 bytes at 9223372036854775808"},
		"barrier round":   {f: frame{kind: frameBarrier, task: 5, epoch: 1}, want: "barrier round 5 of 1"},
		"barrier skipped": {f: frame{kind: frameBarrier, epoch: 3}, want: "barrier 3 after 0"},
		"barrier data":    {f: frame{kind: frameBarrier, epoch: 1, length: 1 << 30}, want: "bad frame"},
	} {
		t.Run(name, func(t *testing.T) {
			j := openJob(t, agGemm(t, 1, 1, 1), small, options{})
			raw := c.raw
			if raw == nil {
				var b [frameSize]byte
				c.f.encode(&b)
				raw = b[:]
			}
			if _, err := j.ranks[0].(*instance).net.out[1].conn.Write(raw); err != nil {
				t.Fatal(err)
			}
			err := untilAborted(t, j.ranks[1])
			var p *engine.PeerError
			if !errors.As(err, &p) || p.Rank != 1 || p.Peer != 0 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a PeerError about rank 0 with %q", err, c.want)
			}
			for _, w := range j.ranks[1].(*instance).heap().elements(j.ranks[1].(*instance).lay.landing[3], small.M*small.K) {
				if w != 0 {
					t.Fatal("a bad frame reached the landing buffer")
				}
			}
		})
	}
}

func TestBrokenConnectionNamesThePeer(t *testing.T) {
	j := openJob(t, agGemm(t, 1, 1, 1), small, options{})
	if err := j.ranks[0].(*instance).net.out[1].conn.Close(); err != nil {
		t.Fatal(err)
	}
	err := untilAborted(t, j.ranks[1])
	if want := "rank 1 lost its connection to rank 0: it closed the connection in the middle of the job"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	// Rank 0 notices too, by the connection on which it receives nothing.
	if err := j.ranks[1].Close(); err != nil {
		t.Fatal(err)
	}
	var p *engine.PeerError
	if err := untilAborted(t, j.ranks[0]); !errors.As(err, &p) || p.Peer != 1 {
		t.Errorf("rank 0 got %v", err)
	}
}

func TestClosingInOrderAbortsNobody(t *testing.T) {
	j := openJob(t, agGemm(t, 1, 1, 1, 1), small, options{})
	j.gather(t, small, randomOperands(1, small, 3, engine.BF16))
	if err := j.ranks[0].Close(); err != nil {
		t.Fatal(err)
	}
	for _, rank := range []int{1, 2} {
		in := j.ranks[rank].(*instance)
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(in.aborted(), errClosed) {
			t.Errorf("rank %d ended with %v", rank, in.aborted())
		}
	}
}

// intruder is a bootstrap that, before it tells the peer's address, lets a stranger try it.
type intruder struct {
	engine.Bootstrap
	try func(address string)
}

func (i intruder) Get(ctx context.Context, from int) ([]byte, []byte, error) {
	common, private, err := i.Bootstrap.Get(ctx, from)
	if at := strings.Index(string(common), "127.0.0.2:"); at >= 0 {
		address, _, _ := strings.Cut(string(common[at:]), `"`)
		i.try(address)
	}
	return common, private, err
}

func TestStrangersAreDropped(t *testing.T) {
	tries := 0
	try := func(address string) {
		for _, talk := range []func(net.Conn) error{
			func(c net.Conn) error { _, err := c.Write(make([]byte, helloSize)); return err },
			func(c net.Conn) error { return greet(c, 0, &linkKey{}) },     // planned sender, wrong key
			func(c net.Conn) error { return greet(c, 1, &linkKey{}) },     // the receiver itself
			func(c net.Conn) error { return greet(c, 1<<30, &linkKey{}) }, // nobody
		} {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			talked := talk(c)
			if n, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) || n > 0 {
				t.Errorf("a stranger was kept: %d bytes, %v, %v", n, err, talked)
			}
			_ = c.Close()
			tries++
		}
	}
	p := agGemm(t, 1, 1, 1)
	j := openJob(t, p, small, options{edit: func(rank int, cfg *engine.Config) {
		if rank == 0 {
			cfg.Bootstrap = intruder{cfg.Bootstrap, try}
		}
	}})
	o := randomOperands(1, small, 2, engine.BF16)
	out, _ := j.gather(t, small, o)
	checkProducts(t, small, engine.BF16, o, out)
	if tries != 4 {
		t.Errorf("%d strangers tried, want 4", tries)
	}
}

// A sender does not trust whoever answers at the address either.
func TestHandshakeIsMutual(t *testing.T) {
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	go func() {
		_, _ = io.ReadFull(b, make([]byte, helloSize))
		_, _ = b.Write(make([]byte, nonceSize))
		_, _ = io.ReadFull(b, make([]byte, 32))
		_, _ = b.Write(make([]byte, 32))
	}()
	if err := greet(a, 0, &linkKey{1}); !errors.Is(err, errHandshake) {
		t.Errorf("an impostor got %v", err)
	}
}

// A peer that is busy for longer than strangers are borne is waited for as long as connections are made, and no longer.
func TestSenderWaitsForABusyPeer(t *testing.T) {
	for name, tt := range map[string]struct {
		busy time.Duration
		want error
	}{"busy": {10 * time.Second, nil}, "hanging": {time.Hour, os.ErrDeadlineExceeded}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				key := &linkKey{1}
				received := make(chan error, 1)
				go func() {
					time.Sleep(tt.busy)
					_, err := receive(b, func(int) *linkKey { return key })
					received <- err
				}()
				const limit = 20 * time.Second
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				begun := time.Now()
				if err := greetUntil(ctx, a, 0, key); !errors.Is(err, tt.want) || time.Since(begun) > limit {
					t.Errorf("after %v: %v, want %v", time.Since(begun), err, tt.want)
				}
				_ = a.Close()
				if err := <-received; (err == nil) != (tt.want == nil) {
					t.Errorf("the peer has %v", err)
				}
			})
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	p := agGemm(t, 1, 1)
	for name, c := range map[string]struct {
		edit func(*engine.Config)
		want string
	}{
		"rank":      {func(c *engine.Config) { c.Rank = 1 }, "rank 1 is not in a world of 1"},
		"workers":   {func(c *engine.Config) { c.Workers[plan.RoleIntra] = 0 }, "0 workers in role intra"},
		"time-out":  {func(c *engine.Config) { c.WaitTimeout = 0 }, "every wait is bounded"},
		"K":         {func(c *engine.Config) { c.Shape.K = 12 }, "multiple of 8"},
		"negative":  {func(c *engine.Config) { c.Shape.M = -1 }, "must not be negative"},
		"overflow":  {func(c *engine.Config) { c.Shape.M, c.Shape.K = 1<<40, 1<<40 }, "overflow 64-bit sizes"},
		"memory":    {func(c *engine.Config) { c.Shape.M = 1 << 36 }, "not enough memory: a rank needs"},
		"bandwidth": {func(c *engine.Config) { c.Net.BandwidthGBs = -1 }, "must not be negative"},
		"any":       {func(c *engine.Config) { c.ListenAddr = "0.0.0.0" }, "an IP address of this host is needed"},
		"address":   {func(c *engine.Config) { c.ListenAddr = "node1:80" }, "an IP address of this host is needed"},
		"no plan":   {func(c *engine.Config) { c.Plan = nil }, "a plan and a bootstrap are needed"},
		"no world":  {func(c *engine.Config) { c.Plan = &plan.Plan{} }, "at least one node"},
		"tile":      {func(c *engine.Config) { c.Tile = -1 }, "tile of -1"},
	} {
		cfg := engine.Config{Plan: p, Shape: small, Workers: [plan.NumRoles]int{1, 1, 1, 1}, WaitTimeout: time.Second,
			Bootstrap: enginetest.NewWorld(1).Rank(0)}
		c.edit(&cfg)
		in, err := New().Open(t.Context(), cfg)
		if err == nil {
			_ = in.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// openFails opens all ranks and returns the joined errors; it closes what was opened. With oneEndsAll the first failure
// ends the others, as the session of a job does; without it they end by themselves.
func openFails(t *testing.T, p *plan.Plan, oneEndsAll bool, edit func(rank int, cfg *engine.Config)) error {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	size := p.World.Size()
	boot := enginetest.NewWorld(size)
	defer func() {
		if err := boot.Close(); err != nil {
			t.Error(err)
		}
	}()
	j := &job{ranks: make([]engine.Instance, size)}
	return j.each(func(rank int) error {
		cfg := engine.Config{Rank: rank, Plan: p, Shape: small, Workers: [plan.NumRoles]int{1, 1, 1, 1},
			WaitTimeout: time.Minute, Bootstrap: boot.Rank(rank)}
		edit(rank, &cfg)
		in, err := New().Open(ctx, cfg)
		if err == nil {
			err = in.Close()
		}
		if err != nil && oneEndsAll {
			cancel(err)
		}
		return err
	})
}

func TestRanksWithDifferentPlansDoNotRun(t *testing.T) {
	other := agGemm(t, 2, 2)
	err := openFails(t, agGemm(t, 1, 2), false, func(rank int, cfg *engine.Config) {
		if rank == 1 {
			cfg.Plan = other
		}
	})
	if err == nil || !strings.Contains(err.Error(), "rank 1 runs another plan") || !strings.Contains(err.Error(), "rank 0 runs another plan") {
		t.Errorf("got %v", err)
	}
}

func TestOpenWithoutAPeerEnds(t *testing.T) {
	err := openFails(t, agGemm(t, 1, 1, 1), false, func(rank int, cfg *engine.Config) {
		cfg.WaitTimeout = 500 * time.Millisecond
		if rank == 1 {
			cfg.WaitTimeout = 0 // fails before it meets rank 0
		}
	})
	if err == nil || !strings.Contains(err.Error(), "waiting for the endpoints of all ranks: no answer for 500ms") {
		t.Errorf("got %v", err)
	}
}

func TestPlansThatCannotRunAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*plan.Plan)
		want string
	}{
		"copy to another node": {func(p *plan.Plan) { p.Ranks[0].Queues[plan.RoleSend][0].Kind = plan.Copy }, "copies to rank 1, which is on another node"},
		"rank":                 {func(p *plan.Plan) { p.Ranks[0].Queues[plan.RoleSend][0].Peer = 9 }, "there is no rank 9"},
		"flag":                 {func(p *plan.Plan) { p.Ranks[0].Queues[plan.RoleSend][0].Waits[0].Flag = 99 }, "waits for flag 99"},
		"signal":               {func(p *plan.Plan) { p.Ranks[0].Queues[plan.RoleSend][0].Signals[0].Flag = 99 }, "signals flag 99"},
		"region":               {func(p *plan.Plan) { p.Ranks[0].Queues[plan.RoleSend][0].Src.Rows = plan.All(plan.DimM) }, "not within rank 0's part of buffer a"},
		"kind":                 {func(p *plan.Plan) { p.Ranks[0].Queues[plan.RoleCompute][0].Kind = 9 }, "no task kind has the number 9"},
		"product":              {func(p *plan.Plan) { p.Ranks[0].Queues[plan.RoleCompute][0].B.Rows = plan.Part(plan.DimN, 0, 2) }, "does not have"},
	} {
		p := agGemm(t, 1, 1, 1)
		c.edit(p)
		err := openFails(t, p, true, func(int, *engine.Config) {})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// A write that fails aborts the instance, which interrupts all links, the one that failed included.
func TestFailedWriteAborts(t *testing.T) {
	j := openJob(t, agGemm(t, 1, 1, 1), small, options{})
	in := j.ranks[0].(*instance)
	l := in.net.out[1]
	if err := l.conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := l.writeFrame(frame{kind: frameTask}, nil); !errors.Is(err, errAborted) {
		t.Errorf("writing to a closed connection gave %v", err)
	}
	var lost *engine.PeerError
	if err := untilAborted(t, in); !errors.As(err, &lost) || lost.Peer != 1 {
		t.Errorf("the abort says %v, want that rank 1 is lost", err)
	}
}

// What is still under way to a peer that closed in good order is dropped, and nobody is lost.
func TestLateCreditsToAClosedPeerAreDropped(t *testing.T) {
	j := openJob(t, agGemm(t, 1, 1, 1), small, options{})
	in := j.ranks[0].(*instance)
	l := in.net.out[1]
	l.left.Store(true) // as when the peer said goodbye
	if err := l.conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := l.writeFrame(frame{kind: frameTask}, nil); err != nil {
		t.Errorf("a credit to a peer that has left gave %v", err)
	}
	if err := in.aborted(); err != nil {
		t.Errorf("aborted: %v", err)
	}
}
