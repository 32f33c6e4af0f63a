package launch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// The first restart comes at once, the next ones ever later; ranks that ran for long have had what they lacked.
func TestPausesBetweenRestarts(t *testing.T) {
	var r restarts
	now := time.Unix(1000, 0)
	const s = time.Second
	for i, step := range []struct {
		ran, want time.Duration // 0: not all of them started
	}{{0, 0}, {10 * s, s}, {0, 2 * s}, {steady - 1, 4 * s}, {0, 8 * s}, {0, 16 * s}, {0, 30 * s}, {0, 30 * s}, {steady, 0}, {0, s}} {
		if step.ran > 0 {
			r.running = now
			now = now.Add(step.ran)
		}
		if got := r.pause(now); got != step.want {
			t.Errorf("failure %d: a pause of %v, want %v", i, got, step.want)
		}
	}
}

// pausing is a job whose ranks have failed for the fourth time in a row, so that they are to be started again in 4 s.
type pausing struct {
	*launcher
	signals chan os.Signal
	late    chan time.Time // --timeout
	cancel  context.CancelCauseFunc
	said    strings.Builder
	ended   chan struct{} // closed when it is not followed any more
}

func newPausing(t *testing.T) *pausing {
	t.Helper()
	m := testMachine(t, 1, 1)
	m.job.MaxRestarts = 9
	join(t, m)
	m.exited(1, &pb.RankExited{Rank: 1, ExitCode: 3})
	m.nodeDone(0)
	m.nodeDone(1)
	p := &pausing{signals: make(chan os.Signal, 1), late: make(chan time.Time, 1), ended: make(chan struct{})}
	log := slog.New(slog.DiscardHandler)
	output := NewOutput(&stuckMux{}, io.Discard, nil)
	p.launcher = newLauncher(m.job, m, Options{Output: output, Signals: p.signals, Log: log, Begin: time.Now()})
	p.notices, p.timeout, p.restarts.inARow = &p.said, p.late, 3
	var err error
	if p.head, err = session.NewHead(session.HeadConfig{Job: "job", Generation: firstGeneration, Secret: p.secret, Nodes: 2, Log: log}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	p.cancel = cancel
	go func() {
		defer close(p.ended)
		p.follow(ctx)
	}()
	t.Cleanup(func() {
		cancel(nil)
		<-p.ended
		_ = output.end(ending{})
	})
	synctest.Wait()
	return p
}

func TestRanksAreStartedAgainAfterThePause(t *testing.T) {
	for after, want := range map[time.Duration]uint32{4*time.Second - 1: firstGeneration, 4 * time.Second: firstGeneration + 1} {
		synctest.Test(t, func(t *testing.T) {
			p := newPausing(t)
			time.Sleep(after)
			synctest.Wait()
			p.cancel(errors.New("enough"))
			<-p.ended // what it did is looked at behind it
			if got, want := p.said.String(), "starting all ranks again in 4s (restart 1 of 9)\n"; !strings.Contains(got, want) {
				t.Errorf("it says %q, want %q", got, want)
			}
			if got := p.machine.generation; got != want {
				t.Errorf("generation %d after %v, want %d", got, after, want)
			}
		})
	}
}

func TestWhatEndsAPauseEndsItAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		happen func(p *pausing)
		kind   pb.Cause_Kind
		status int32
	}{
		"user":    {func(p *pausing) { p.signals <- os.Interrupt }, pb.Cause_USER_SIGNAL, 130},
		"timeout": {func(p *pausing) { p.late <- time.Now() }, pb.Cause_TIMEOUT, 124},
		"caller":  {func(p *pausing) { p.cancel(errors.New("enough")) }, pb.Cause_LAUNCHER, 125},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPausing(t)
				time.Sleep(time.Second)
				tt.happen(p)
				synctest.Wait()
				select {
				case <-p.ended:
				default:
					t.Fatal("the job goes on")
				}
				p.machine.conclude()
				if c := p.machine.cause; c.GetKind() != tt.kind || c.GetExitStatus() != tt.status {
					t.Errorf("cause %v", c)
				}
			})
		})
	}
}

// A node that is lost in a pause is missed by its restart; whatever else ends the wait leaves the failure as the cause.
func TestLostInAPause(t *testing.T) {
	failed := func() *machine {
		m := testMachine(t, 1, 1)
		m.job.MaxRestarts = 5
		join(t, m)
		m.exited(0, &pb.RankExited{Rank: 0, ExitCode: 3})
		m.nodeDone(0)
		m.nodeDone(1)
		m.pause()
		return m
	}
	m := failed()
	m.lost(1, "cut off")
	if c := m.cause; c.GetKind() != pb.Cause_AGENT_LOST || c.GetNode() != 1 {
		t.Errorf("a node was lost: cause %v", c)
	}
	m = failed()
	m.conclude()
	if c := m.cause; c.GetKind() != pb.Cause_RANK_EXIT || c.GetExitStatus() != 3 {
		t.Errorf("nothing more was heard: cause %v", c)
	}
}
