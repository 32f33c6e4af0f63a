package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/version"
)

// Options are what the launcher needs besides the job.
type Options struct {
	Output  *Output      // where all goes that is shown; ended by Run
	Log     *slog.Logger // for people who debug mkrun; must not wait, as Output.Notices does not
	Verbose bool         // agents log too

	OnlyRanks func(rank int) bool // whose output is shown; nil: all
	Events    io.Writer           // gets what happens, as lines of JSON; nil: nobody wants that
	Signals   <-chan os.Signal    // the user's
	Forward   []syscall.Signal    // of them, those that are passed on and end nothing
	Stdin     *os.File            // what ranks read, if the job wants that
	Begin     time.Time           // when the command was given

	stays    bool              // the launcher is elsewhere: it stops when the user stops the job, and says how that ended
	ended    func()            // told when no rank is left whose output could be held back; may be nil
	starters map[Reach]starter // tests start agents in their own way
}

// Outcome is how a job ended.
type Outcome struct {
	Cause   *pb.Cause     // nil: every rank ended with status 0
	Reports [][]byte      // of the ranks, by rank; nil where a rank did not report
	Ended   []bool        // by rank: it ended with status 0
	Places  []RankPlace   // by rank
	Checks  []Check       // of the nodes, if there were any
	Told    bool          // the user was told of the cause, and that output waited to be shown
	Stuck   bool          // nobody took the rest of the output
	Unshown string        // and what that means, where it is not the cause
	Lacking string        // why not all events were written; "" if they were
	Started time.Duration // from the command to the first barrier that all ranks passed, or to their start; 0 if never

	events *eventLog // lacks its last one, which End writes
}

// NICText says which NICs the rank takes and why; "" if it takes none.
func (p *RankPlace) NICText() string { return nicText(p.NICs, p.NICRule, p.ProxyCPUs) }

// RankPlace is where a rank was put on its node; "" where nothing was bound, or no GPU is known.
type RankPlace struct {
	CPUs string   // as 0-15,64
	GPU  string   // as CUDA names it
	NICs []string // as the node calls them

	NICRule   string // why these
	ProxyCPUs string // where the thread that drives them runs
}

// ExitStatus is what mkrun launch ends with.
func (o *Outcome) ExitStatus() int {
	if o.Cause == nil {
		return 0
	}
	return int(o.Cause.GetExitStatus())
}

// endLimit bounds the time between the order to end and the end, beyond the ranks' own grace.
const endLimit = 5 * time.Second

// killLimit is the same for ranks that get no grace.
const killLimit = time.Second

// stopDelay is how long word of it has to come to all agents, and ranks have to stop, before the launcher stops itself. An agent
// that has not heard of it takes the launcher's silence for its end.
const stopDelay = time.Second

// Run runs a job to its end. The error is for a launcher that could not even begin; whatever happens
// later is the Outcome's cause. When it returns, nothing of the job is left on this host.
func Run(ctx context.Context, job *Job, opts Options) (*Outcome, error) {
	if job.HeadFirst {
		return runThroughFirst(ctx, job, opts)
	}
	events := opts.newEvents(job)
	events.write(Event{Event: "job_start", Nodes: job.World.Nodes(), Ranks: job.World.Size(), Argv: job.Argv, Build: version.Get().BuildID()})
	l, err := run(ctx, job, opts, events)
	if err != nil {
		if opts.stays {
			_ = events.close()
		} else {
			_ = events.end(stdio.StatusLauncher, LauncherFailure(err))
		}
		_ = opts.Output.end(ending{must: true})
		return nil, err
	}
	return l.outcome(), nil
}

// newEvents is a log of what happens in a job; nil if nobody wants that.
func (o *Options) newEvents(job *Job) *eventLog {
	return newEventLog(o.Events, job, o.Begin, func(err error) { fmt.Fprintf(o.Output.Notices(), "mkrun: %v\n", err) })
}

// run runs a job until nothing of it is left.
func run(ctx context.Context, job *Job, opts Options, events *eventLog) (*launcher, error) {
	if err := job.checkOpenFiles(); err != nil {
		return nil, err
	}
	tell := func(what string) { fmt.Fprintf(opts.Output.Notices(), "mkrun: %s\n", what) }
	if err := job.checkHere(tell); err != nil { // of the first node that is here
		node := slices.IndexFunc(job.Hosts, func(h Host) bool { return !h.remote() })
		return nil, &nodeError{node, job.Hosts[node].Name, err}
	}
	// An agent that is killed leaves its keeper to this process.
	if err := keeper.BecomeSubreaper(); err != nil {
		return nil, err
	}
	m, err := newMachine(job, time.Now())
	if err != nil {
		return nil, err
	}
	l := newLauncher(job, m, opts)
	l.events = events
	l.notices, l.timeout = opts.Output.Notices(), l.timerOf(job.Timeout)
	l.head, err = session.NewHead(session.HeadConfig{
		Job: job.ID, Generation: firstGeneration, Secret: l.secret, Nodes: job.World.Nodes(), Radix: job.Radix, Silence: job.silence(), Excuse: job.excuse(), Build: version.Get().BuildID(), Log: opts.Log,
	})
	if err != nil {
		return nil, err
	}
	listener, parents, err := listen(ctx, job)
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- l.head.Serve(context.WithoutCancel(ctx), listener) }()

	opts.Output.acknowledge(func(node int, generation uint32, bytes uint64) {
		// A node that is lost is an event of its own.
		_ = l.head.Send(node, &pb.ToAgent{Generation: generation, Kind: &pb.ToAgent_OutputTaken{OutputTaken: &pb.OutputTaken{Bytes: bytes}}})
	})
	if err := l.startAgents(ctx, parents); err != nil {
		l.machine.fail(noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher))
	}
	l.follow(ctx)
	l.machine.conclude()
	l.end()
	if err := <-served; err != nil {
		opts.Log.Warn("serving agents", "error", err)
	}
	return l, nil
}

// outcome shows the rest of the output and says how the job ended.
func (l *launcher) outcome() *Outcome {
	out := &Outcome{Started: l.started}
	if out.Cause = l.machine.cause; out.Cause != nil {
		out.Cause.Rank = int32(l.job.Number(int(out.Cause.GetRank())))
	}
	if l.opts.ended != nil {
		l.opts.ended()
	}
	out.show(l.opts, ending{
		signals: l.opts.Signals, ends: l.wishes, late: l.timeout,
		must: l.endings.count > 0 || out.Cause.GetKind() == pb.Cause_TIMEOUT,
	})
	if l.machine.preflight != nil {
		out.Checks = l.machine.preflight.checks
	}
	for _, r := range l.machine.ranks {
		out.Reports = append(out.Reports, r.report)
		out.Places = append(out.Places, RankPlace{CPUs: r.place.GetCpus(), GPU: r.place.GetGpu(), NICs: r.place.GetNics(),
			NICRule: r.place.GetNicRule(), ProxyCPUs: r.place.GetProxyCpus()})
		out.Ended = append(out.Ended, r.exit != nil && r.exit.GetExitCode() == 0 && r.exit.GetSignal() == 0 && r.exit.GetExecError() == "")
	}
	out.keep(l.events)
	if l.opts.stays {
		_ = l.events.close() // the launcher writes the last one
	}
	return out
}

// keep takes note of what of the events so far could not be written, and that the last one is still to come.
func (o *Outcome) keep(events *eventLog) {
	o.events = events
	if err := events.flush(); err != nil {
		o.Lacking = err.Error()
	}
}

// show waits until all output is shown, and takes note of what of it never is. Whoever leaves the output standing still is
// told meanwhile why the job ended.
func (o *Outcome) show(opts Options, e ending) {
	if !o.Told {
		e.waits = func() string {
			o.Told = true
			if o.Cause == nil {
				return ""
			}
			return CauseText(o.Cause) + "\n"
		}
	}
	err := opts.Output.end(e)
	var lost *unshownError
	o.Stuck = errors.As(err, &lost)
	switch {
	case err == nil:
	case o.Cause == nil:
		o.Cause = outputCause(err)
	case o.Stuck && lost.bytes > 0:
		o.Unshown = err.Error()
	}
}

// outputCause ends a job whose output has nowhere to go: quietly, like any program, when the reader has left.
func outputCause(err error) *pb.Cause {
	if errors.Is(err, syscall.EPIPE) {
		return noPlace(pb.Cause_LAUNCHER, "nobody reads the ranks' output any more", stdio.StatusOfSignal(syscall.SIGPIPE))
	}
	var unshown *unshownError
	var signal signalled
	switch {
	case !errors.As(err, &unshown):
	case errors.As(unshown.why, &signal):
		return noPlace(pb.Cause_USER_SIGNAL, "all ranks had ended; "+err.Error(), stdio.StatusOfSignal(syscall.Signal(signal)))
	default:
		return noPlace(pb.Cause_TIMEOUT, "all ranks had ended; "+err.Error(), stdio.StatusTimeout)
	}
	return noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher)
}

func noPlace(kind pb.Cause_Kind, reason string, status int) *pb.Cause {
	return &pb.Cause{Kind: kind, Node: -1, Rank: -1, Reason: reason, ExitStatus: int32(status)}
}
