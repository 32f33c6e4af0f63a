package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/mkrun/mkrun/internal/hosts"
	"github.com/mkrun/mkrun/internal/keeper"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/watchdog"
)

// Head is the body of a head on the job's first host. It returns the exit status.
func Head(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) int {
	stdio.ReportBrokenPipes()
	if _, err := io.WriteString(stdout, agentReady); err != nil {
		fmt.Fprintf(stderr, "mkrun head: saying that it is there: %v\n", err)
		return stdio.StatusLauncher
	}
	signal.Ignore(syscall.SIGHUP) // the end of the way to the launcher says the same, and after it ranks must be ended
	pipe := &headPipe{w: stdout, r: bufio.NewReader(stdin)}
	var first pb.ToHead
	var o headOrder
	err := (protodelim.UnmarshalOptions{MaxSize: maxHeadWord}).UnmarshalFrom(pipe.r, &first)
	if err == nil {
		err = json.Unmarshal(first.GetJob(), &o)
	}
	if err != nil || o.Job == nil {
		fmt.Fprintf(stderr, "mkrun head: reading the job: %v\n", err)
		return stdio.StatusLauncher
	}
	ended := pipe.serve(ctx, o, stderr)
	text, err := json.Marshal(ended)
	if err == nil {
		err = pipe.sendFrom(&pb.FromHead{Kind: &pb.FromHead_Outcome{Outcome: text}})
	}
	if err != nil {
		fmt.Fprintf(stderr, "mkrun head: telling how the job ended: %v\n", err)
		return stdio.StatusLauncher
	}
	return 0
}

// serve runs the job for the launcher at the other end.
func (p *headPipe) serve(ctx context.Context, o headOrder, stderr io.Writer) headOutcome {
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	level := slog.LevelWarn
	if o.Verbose {
		level = slog.LevelDebug
	}
	signals := make(chan os.Signal, 8)
	here := make(chan os.Signal, 16) // from whoever signals all processes of a host
	keeper.Withstand(here)
	defer signal.Stop(here)
	go passFirst(ctx, here, signals, o.Forward)
	var input *os.File
	var feed *stdinFeed
	if o.Job.Stdin != (Stdin{}) {
		feed = newStdinFeed(func(taken uint64, closed bool) {
			_ = p.sendFrom(&pb.FromHead{Kind: &pb.FromHead_StdinTaken{StdinTaken: &pb.StdinTaken{Bytes: taken, Closed: closed}}}) // a launcher that is gone is seen elsewhere
		})
		var err error
		if input, err = feed.add(); err != nil {
			return headOutcome{Error: fmt.Sprintf("making a pipe for the ranks' input: %v", err)}
		}
		feed.start()
		defer feed.close()
	}
	window := newOutputWindow(maxNodeWindow)
	defer window.close()
	context.AfterFunc(ctx, window.close)
	go p.obey(signals, feed, window, gone)
	go beat(ctx, func() error {
		return p.sendFrom(&pb.FromHead{Kind: &pb.FromHead_Heartbeat{Heartbeat: &pb.Heartbeat{}}})
	})
	job := o.Job
	job.Argv, job.Env, job.Dir, job.OutputDir = convert[string](o.Argv), convert[string](o.Env), string(o.Dir), string(o.Output)
	var progress func(string)
	if o.Progress {
		progress = func(text string) { _ = p.sendFrom(&pb.FromHead{Kind: &pb.FromHead_Progress{Progress: text}}) } // as above
	}
	opts := Options{
		Output: NewOutput(headMux{p, window}, urgentWriter{p}, progress), Log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})),
		Verbose: o.Verbose, Signals: signals, Forward: o.Forward, Begin: time.Now().Add(-o.Elapsed), stays: true,
		Stdin: input,
		ended: window.close, // what the nodes' windows let through is all there will be, and the launcher's to wait with
	}
	if o.Events {
		opts.Events = eventWriter{p}
	}
	list := make([]hosts.Host, len(job.Hosts))
	for i, h := range job.Hosts {
		list[i] = hosts.Host{Name: h.Name, User: o.Users[i], Devices: h.Devices}
	}
	seen, err := Resolve(ctx, list, ReachAuto) // as hosts know each other, which may not be as the launcher does
	if err == nil {
		job.Hosts = seen
		job.Hosts[0].By, job.Hosts[0].Target = ReachLocal, ""
		job.HeadFirst = false
		var out *Outcome
		if out, err = Run(ctx, job, opts); err == nil {
			return headOutcome{Outcome: out}
		}
	}
	return headOutcome{Error: err.Error()}
}

// passFirst passes the first signal on that is to end programs, until ctx is done.
func passFirst(ctx context.Context, from <-chan os.Signal, to chan<- os.Signal, forwarded []syscall.Signal) {
	for {
		select {
		case sig := <-from:
			if s, ok := sig.(syscall.Signal); ok && endsPrograms(s, slices.Concat(forwarded, keeper.Passing)) {
				select {
				case to <- s:
				case <-ctx.Done():
				}
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// obey takes in the launcher's words until it is gone.
func (p *headPipe) obey(signals chan<- os.Signal, feed *stdinFeed, window *outputWindow, gone context.CancelCauseFunc) {
	watch := watchdog.New(headSilence, headBeat, func() { gone(fmt.Errorf("the launcher said nothing for %v", headSilence)) })
	defer watch.Stop()
	for {
		var m pb.ToHead
		if err := (protodelim.UnmarshalOptions{MaxSize: maxHeadWord}).UnmarshalFrom(p.r, &m); err != nil {
			gone(errors.New("the launcher is gone"))
			return
		}
		watch.Alive()
		switch k := m.Kind.(type) {
		case *pb.ToHead_Stdin:
			if err := feed.feed(k.Stdin); err != nil {
				gone(err)
				return
			}
		case *pb.ToHead_OutputTaken:
			window.taken(k.OutputTaken.GetBytes())
		case *pb.ToHead_Signal:
			s := syscall.Signal(k.Signal)
			switch s {
			case syscall.SIGTSTP: // the launcher stops in a moment, and will be silent
				watch.Pause()
			case syscall.SIGCONT:
				watch.Resume()
			}
			signals <- s
		}
	}
}

// headMux, urgentWriter and eventWriter send to the launcher what it shows.
type (
	urgentWriter struct{ pipe *headPipe }
	headMux      struct {
		pipe   *headPipe
		window *outputWindow
	}
	eventWriter struct{ pipe *headPipe }
)

func (m headMux) Write(rank int, host string, stream stdio.Stream, data []byte, at time.Time) error {
	m.window.enter(rank, len(data))
	return m.pipe.sendFrom(&pb.FromHead{Host: host, Kind: &pb.FromHead_Output{Output: &pb.Output{
		Rank: int32(rank), Stream: int32(stream), Data: data, UnixNs: at.UnixNano()}}})
}

func (m headMux) Note(text string) error {
	return m.pipe.sendFrom(&pb.FromHead{Kind: &pb.FromHead_Notice{Notice: []byte(text + "\n")}})
}

func (m headMux) Finish() error {
	return m.pipe.sendFrom(&pb.FromHead{Kind: &pb.FromHead_GenerationEnd{GenerationEnd: true}})
}

func (w urgentWriter) Write(b []byte) (int, error) {
	return len(b), w.pipe.sendFrom(&pb.FromHead{Kind: &pb.FromHead_Notice{Notice: b}})
}

func (w eventWriter) Write(b []byte) (int, error) {
	return len(b), w.pipe.sendFrom(&pb.FromHead{Kind: &pb.FromHead_Event{Event: b}})
}
