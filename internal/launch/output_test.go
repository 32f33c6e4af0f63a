package launch

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/stdio"
)

// stuckMux takes what ranks write only when told to.
type stuckMux struct {
	open chan struct{}
	mu   sync.Mutex
	text strings.Builder
}

func (m *stuckMux) Write(rank int, _ string, _ stdio.Stream, data []byte, _ time.Time) error {
	<-m.open
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(&m.text, "%d:%s", rank, data)
	return nil
}

func (m *stuckMux) Note(text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(&m.text, "note:%s\n", text)
	return nil
}

func (m *stuckMux) Finish() error { return nil }

func (m *stuckMux) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.String()
}

type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lockedBuilder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// Nobody who shows something waits for a terminal that takes nothing; notices overtake; nodes are told what was shown.
func TestOutputThatStandsStillHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, urgent := &stuckMux{open: make(chan struct{})}, &lockedBuilder{}
		o := NewOutput(mux, urgent, nil)
		taken := map[string]uint64{}
		o.acknowledge(func(node int, generation uint32, bytes uint64) { taken[fmt.Sprint(node, "/", generation)] = bytes })
		line := []byte("line\n")
		for range 3 {
			o.put(shown{node: 1, rank: 2, generation: 1, size: len(line), data: line})
		}
		o.put(shown{node: 1, rank: 3, generation: 1, size: 100}) // not wanted
		o.put(shown{node: 1, rank: 2, generation: 2, size: len(line), data: line})
		fmt.Fprintln(o.Notices(), "mkrun: interrupt")
		time.Sleep(overtakeAfter + time.Millisecond) // of the bubble's clock
		synctest.Wait()
		if urgent.b.String() != "mkrun: interrupt\n" {
			t.Errorf("urgent: %q", urgent.b.String())
		}
		if len(taken) > 0 {
			t.Errorf("nothing was shown, and nodes were told %v", taken)
		}
		close(mux.open)
		synctest.Wait()
		fmt.Fprintln(o.Notices(), "mkrun: later")
		if err := o.end(ending{}); err != nil {
			t.Error(err)
		}
		if got, want := mux.String(), "2:line\n2:line\n2:line\n2:line\nnote:mkrun: later\n"; got != want {
			t.Errorf("shown: %q, want %q", got, want)
		}
		if taken["1/2"] != 5 {
			t.Errorf("nodes were told %v", taken)
		}
	})
}

func TestOutputThatStandsStillAtTheEnd(t *testing.T) {
	ends := func(syscall.Signal) bool { return true }
	for name, tt := range map[string]struct {
		signal, late, must bool
		want               error
		after              time.Duration
	}{
		"the user leaves":        {signal: true, want: signalled(syscall.SIGINT)},
		"the job's time is up":   {late: true, want: errLate, after: 7 * time.Second},
		"a job that must end":    {must: true, after: 2 * outputPatience},
		"a reader comes at last": {after: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mux := &stuckMux{open: make(chan struct{})}
				o := NewOutput(mux, &lockedBuilder{}, nil)
				o.put(shown{size: 3, data: []byte("abc")})
				synctest.Wait()
				signals := make(chan os.Signal, 1)
				var late <-chan time.Time
				if tt.signal {
					signals <- syscall.SIGINT
				}
				if tt.late {
					late = time.After(tt.after)
				}
				begun := time.Now()
				if !tt.signal && !tt.late && !tt.must {
					go func() { time.Sleep(tt.after); close(mux.open) }()
				}
				said := &lockedBuilder{}
				o.urgent = said
				err := o.end(ending{signals, ends, late, tt.must, func() string { return "cause\n" }})
				synctest.Wait()
				if want := "cause\nmkrun: all ranks have ended; 3 bytes of their output wait for a reader, a signal drops them\n"; !tt.signal && !tt.must && said.b.String() != want {
					t.Errorf("said %q", said.b.String())
				}
				var unshown *unshownError
				switch waiting := tt.signal || tt.late || tt.must; {
				case !waiting && err != nil:
					t.Error(err)
				case waiting && (!errors.As(err, &unshown) || unshown.bytes != 3 || tt.want != nil && !errors.Is(unshown.why, tt.want)):
					t.Errorf("%v", err)
				}
				if took := time.Since(begun); took > tt.after {
					t.Errorf("took %v, want at most %v", took, tt.after)
				}
				begun = time.Now()
				if again := o.end(ending{must: true}); again != err || time.Since(begun) > 0 {
					t.Errorf("the next one who waits for the end hears %v after %v, want the same at once", again, time.Since(begun))
				}
				if tt.signal || tt.late || tt.must {
					close(mux.open)
				}
				<-o.done
			})
		})
	}
}

// pipeOf is a pipe that takes nothing more, and its reader.
func pipeOf(t *testing.T) (full, reader *os.File) {
	t.Helper()
	reader, full, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close(); _ = full.Close() })
	return full, reader
}

// Events that nobody takes end nothing, and are told to lack.
func TestEventsThatNobodyTakes(t *testing.T) {
	full, _ := pipeOf(t)
	w := newLaterWriter(full)
	line := make([]byte, 1<<20)
	for range 2*maxLater/len(line) + 1 {
		if _, err := w.Write(line); err != nil {
			if !strings.Contains(err.Error(), "nobody takes them") {
				t.Error(err)
			}
			_ = full.Close()
			<-w.done
			return
		}
	}
	t.Error("there was no bound")
}

func TestEventsWhoseReaderLeaves(t *testing.T) {
	full, reader := pipeOf(t)
	w := newLaterWriter(full)
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	if err := w.close(time.Minute); !errors.Is(err, syscall.EPIPE) {
		t.Error(err)
	}
}

func TestEventsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := make(chan struct{})
		w := newLaterWriter(writerFunc(func(b []byte) (int, error) { <-mux; return len(b), nil }))
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := w.close(outputPatience); err == nil || !strings.Contains(err.Error(), "nobody took them") {
			t.Error(err)
		}
		close(mux)
		<-w.done
	})
}

// A writer that is flushed has written what it was given, and goes on; one that nobody reads is given up.
func TestEventsAreFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written strings.Builder
		w := newLaterWriter(writerFunc(func(b []byte) (int, error) { time.Sleep(time.Second); return written.Write(b) }))
		for range 2 {
			if _, err := w.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := w.flush(outputPatience); err != nil {
				t.Error(err)
			}
		}
		if written.String() != "xx" {
			t.Errorf("%q is written", written.String())
		}
		if err := w.close(outputPatience); err != nil {
			t.Error(err)
		}
		taken := make(chan struct{})
		w = newLaterWriter(writerFunc(func(b []byte) (int, error) { <-taken; return len(b), nil }))
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := w.flush(outputPatience); err == nil || !strings.Contains(err.Error(), "nobody took them") {
			t.Error(err)
		}
		close(taken)
		_ = w.close(outputPatience)
	})
}

// The last event has the status that mkrun ends with and what the failure is; after events that were lost there is none.
func TestLastEvent(t *testing.T) {
	for _, tt := range []struct {
		name    string
		fails   bool
		failure *report.Failure
		want    string
	}{
		{"ended well", false, nil, `"event":"job_end","exit_status":9}`},
		{"failed", false, &report.Failure{Kind: "check", Node: -1, Rank: 3, Reason: "why"}, `"event":"job_end","rank":3,"kind":"check","reason":"why","exit_status":9}`},
		{"lost", true, nil, ""},
	} {
		var b strings.Builder
		said := 0
		log := newEventLog(writerFunc(func(p []byte) (int, error) {
			if tt.fails {
				return 0, syscall.ENOSPC
			}
			return b.Write(p)
		}), &Job{ID: "j"}, time.Now(), func(error) { said++ })
		log.pass([]byte(`{"generation":4,"event":"notice"}` + "\n"))
		out := &Outcome{}
		out.keep(log)
		if (out.Lacking != "") != tt.fails {
			t.Errorf("%s: lacking %q", tt.name, out.Lacking)
		}
		if err := out.End(9, tt.failure); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		_ = log.close()
		_, last, _ := strings.Cut(b.String(), "\n")
		if tt.fails == strings.Contains(last, `"job":"j","generation":4,`) || !strings.HasSuffix(strings.TrimSpace(last), tt.want) {
			t.Errorf("%s: last is %q, want %q", tt.name, last, tt.want)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
