package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/watchdog"
)

// runThroughFirst runs a job whose head is on its first host.
func runThroughFirst(ctx context.Context, job *Job, opts Options) (*Outcome, error) {
	events := opts.newEvents(job)
	outcome, err := startThroughFirst(ctx, job, opts, events)
	_ = opts.Output.end(ending{must: true}) // where it has not ended yet
	if err != nil {
		_ = events.end(stdio.StatusLauncher, LauncherFailure(err))
		return nil, err
	}
	outcome.keep(events)
	return outcome, nil
}

func startThroughFirst(ctx context.Context, job *Job, opts Options, events *eventLog) (*Outcome, error) {
	first := job.Hosts[0]
	if first.By != ReachSSH {
		return nil, fmt.Errorf("--head first: %s is reached by %s; only over ssh can the head be there", first.Name, first.By)
	}
	o := headOrder{Job: job, Verbose: opts.Verbose, Events: opts.Events != nil, Elapsed: time.Since(opts.Begin), Forward: opts.Forward, Progress: opts.Output.show != nil}
	o.Argv, o.Env, o.Dir, o.Output = convert[text](job.Argv), convert[text](job.Env), text(job.Dir), text(job.OutputDir)
	for _, h := range job.Hosts {
		o.Users = append(o.Users, h.User)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encoding the job: %w", err)
	}
	starter := newSSHStarter(job.SSH, map[int]string{0: first.Target}, nil, func(int, string) {})
	args := job.SSH.command(first.Target, HeadCommand)
	var log io.Writer
	if opts.Verbose {
		log = opts.Output.Notices()
	}
	limit, cancel := context.WithCancel(ctx)
	if job.StartTimeout > 0 {
		limit, cancel = context.WithTimeout(ctx, job.StartTimeout)
	}
	defer cancel()
	a, stdout, err := throughPipesTo(limit, exec.Command(args[0], args[1:]...), log, starter.explain, nil)
	if err != nil {
		if a != nil {
			err = starter.failure(a, err)
		}
		return &Outcome{Cause: (&machine{job: job}).nodeCause(pb.Cause_LAUNCHER, 0, err.Error()), Ended: make([]bool, job.World.Size()), Reports: make([][]byte, job.World.Size())}, nil
	}
	defer func() { _ = stdout.Close() }()
	l := &remoteLauncher{job: job, opts: opts, ssh: a, pipe: headPipe{w: a.stdin, r: bufio.NewReader(stdout)}, events: events, timeout: timerOf(job.Timeout, opts.Begin), endings: endings{within: sameWish}}
	return l.run(ctx, text)
}

// remoteLauncher is the launcher of a job whose head is elsewhere.
type remoteLauncher struct {
	job  *Job
	opts Options
	ssh  *agentProcess
	pipe headPipe

	stdin    *stdinSource // nil: not read
	inputErr error        // of reading it; only pass sets it
	endings  endings      // only pass knows them
	events   *eventLog    // the head's, but for the last
	timeout  <-chan time.Time
}

func (l *remoteLauncher) run(ctx context.Context, order []byte) (*Outcome, error) {
	output := l.opts.Output
	ctx, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	kill := context.AfterFunc(ctx, l.ssh.kill)
	err := l.pipe.sendTo(&pb.ToHead{Kind: &pb.ToHead_Job{Job: order}})
	if err == nil {
		err = l.readStdin()
	}
	output.acknowledge(func(_ int, _ uint32, bytes uint64) {
		// A head that is gone is seen where it is listened to.
		_ = l.pipe.sendTo(&pb.ToHead{Kind: &pb.ToHead_OutputTaken{OutputTaken: &pb.OutputTaken{Bytes: bytes}}})
	})
	work.Go(func() { l.pass(ctx) })
	work.Go(func() {
		beat(ctx, func() error { return l.pipe.sendTo(&pb.ToHead{Kind: &pb.ToHead_Heartbeat{Heartbeat: &pb.Heartbeat{}}}) })
	})
	var ended *headOutcome
	if err == nil {
		ended, err = l.listen()
	}
	l.stdin.close()
	kill()
	stop()
	closing, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	l.ssh.end(closing)
	work.Wait()
	outcome := &Outcome{Ended: make([]bool, l.job.World.Size()), Reports: make([][]byte, l.job.World.Size())}
	switch {
	case l.inputErr != nil:
		outcome.Cause = noPlace(pb.Cause_LAUNCHER, l.inputErr.Error(), stdio.StatusLauncher)
	case ended == nil:
		outcome.Cause = (&machine{job: l.job}).nodeCause(pb.Cause_AGENT_LOST, 0, fmt.Sprintf("the job's head, which is there, is gone: %v (%s)", err, l.ssh.gone()))
	case ended.Error != "":
		return nil, fmt.Errorf("the head on %s: %s", l.job.Hosts[0].Name, ended.Error)
	default:
		outcome = ended.Outcome
	}
	outcome.show(l.opts, ending{
		signals: l.opts.Signals, ends: l.wishes, late: l.timeout,
		must: l.endings.count > 0 || ended == nil || outcome.Cause.GetKind() == pb.Cause_TIMEOUT,
	})
	return outcome, nil
}

func (l *remoteLauncher) wishes(s syscall.Signal) bool {
	return l.endsPrograms(s) && l.endings.add(s, time.Now())
}

func (l *remoteLauncher) endsPrograms(s syscall.Signal) bool { return endsPrograms(s, l.opts.Forward) }

// readStdin begins to read for ranks that want that; the head takes it when they are there.
func (l *remoteLauncher) readStdin() (err error) {
	if l.opts.Stdin == nil || l.job.Stdin == (Stdin{}) {
		return nil
	}
	const head = 0
	notices := l.opts.Output.Notices()
	say := func(text string) { fmt.Fprintf(notices, "mkrun: %s\n", text) }
	l.stdin, err = startStdin(l.opts.Stdin, []int{head}, say, func(_ int, m *pb.ToAgent) error {
		return l.pipe.sendTo(&pb.ToHead{Kind: &pb.ToHead_Stdin{Stdin: m.GetStdin()}})
	})
	return err
}

// listen shows what the head says, until it says how the job ended.
func (l *remoteLauncher) listen() (*headOutcome, error) {
	var silent atomic.Bool
	watch := watchdog.New(headSilence, headBeat, func() {
		silent.Store(true)
		l.ssh.kill()
	})
	defer watch.Stop()
	for {
		var m pb.FromHead
		if err := (protodelim.UnmarshalOptions{MaxSize: maxHeadWord}).UnmarshalFrom(l.pipe.r, &m); err != nil {
			if silent.Load() {
				err = fmt.Errorf("it said nothing for %v", headSilence)
			}
			return nil, err
		}
		watch.Pause() // this side may take long, too
		ended, err := l.take(&m)
		if ended != nil || err != nil {
			return ended, err
		}
		watch.Resume()
	}
}

// take acts on one message of the head; the last is how the job ended.
func (l *remoteLauncher) take(m *pb.FromHead) (*headOutcome, error) {
	switch k := m.Kind.(type) {
	case *pb.FromHead_Output:
		o := k.Output
		out := shown{rank: int(o.GetRank()), host: m.Host, stream: stdio.Stream(o.GetStream()), size: len(o.GetData()), at: time.Unix(0, o.GetUnixNs())}
		if l.opts.OnlyRanks == nil || l.opts.OnlyRanks(int(o.GetRank())) {
			out.data = o.GetData()
		}
		l.opts.Output.put(out)
	case *pb.FromHead_StdinTaken:
		l.stdin.acknowledge(0, k.StdinTaken)
	case *pb.FromHead_Notice:
		_, _ = l.opts.Output.Notices().Write(k.Notice) // cannot fail
	case *pb.FromHead_GenerationEnd:
		l.opts.Output.generationEnded()
	case *pb.FromHead_Progress:
		l.opts.Output.progress(k.Progress)
	case *pb.FromHead_Event:
		l.events.pass(k.Event)
	case *pb.FromHead_Outcome:
		var ended headOutcome
		err := json.Unmarshal(k.Outcome, &ended)
		return &ended, err
	}
	return nil, nil
}

// pass passes the user's signals on. Ctrl-Z stops this process too; the third wish to end the job ends it here.
func (l *remoteLauncher) pass(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-l.opts.Output.failed: // nobody reads the output any more
			l.opts.Log.Debug("showing output", "error", err)
			l.ssh.kill()
			return
		case err := <-l.stdin.failures():
			l.inputErr = err
			l.ssh.kill()
			return
		case sig := <-l.opts.Signals:
			if l.passOn(sig, time.Now()) {
				l.ssh.kill()
				return
			}
		}
	}
}

// passOn passes a signal on that came at a time, and reports whether nothing is left but to end the job from here.
func (l *remoteLauncher) passOn(sig os.Signal, at time.Time) (end bool) {
	s, ok := sig.(syscall.Signal)
	if !ok || l.endsPrograms(s) && !l.endings.add(s, at) {
		return false
	}
	if err := l.pipe.sendTo(&pb.ToHead{Kind: &pb.ToHead_Signal{Signal: int32(s)}}); err != nil {
		return true
	}
	if s == syscall.SIGTSTP {
		time.Sleep(stopDelay) // the ranks', to stop
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
	return l.endings.count == 3
}
