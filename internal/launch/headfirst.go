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
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/mkrun/mkrun/internal/hosts"
	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/watchdog"
)

// Where hosts cannot connect to the launcher (it is behind NAT, or they behind a jump host), the head runs on the first
// host. Launcher and head speak over ssh's stdin and stdout, in messages with their length before them.

// HeadCommand is the hidden subcommand of mkrun whose body is Head.
const HeadCommand = "head"

const (
	headBeat    = session.DefaultHeartbeat       // how often launcher and head say that they are there
	headSilence = session.DefaultSilence * 3 / 2 // after which the other one is gone: as an agent bears its parent's
	maxHeadWord = 128 << 20                      // bytes of one message: a job with its environment, or all reports
)

// headOrder is what the head is told.
type headOrder struct {
	Job      *Job             `json:"job"`
	Argv     []text           `json:"argv"` // the job's, byte for byte; so are the next three
	Env      []text           `json:"env"`
	Dir      text             `json:"dir"`
	Output   text             `json:"output"`
	Users    []string         `json:"users"` // to log in as, by node; "": whoever ssh takes
	Verbose  bool             `json:"verbose"`
	Events   bool             `json:"events"`   // are wanted
	Progress bool             `json:"progress"` // is shown
	Elapsed  time.Duration    `json:"elapsed"`  // since the command was given
	Forward  []syscall.Signal `json:"forward"`
}

// headOutcome is how the job ended there.
type headOutcome struct {
	Outcome *Outcome `json:"outcome"`
	Error   string   `json:"error"` // of a head that could not begin
}

// headPipe is one side's end of the way between launcher and head.
type headPipe struct {
	mu sync.Mutex
	w  io.Writer
	r  *bufio.Reader
}

func (p *headPipe) sendTo(m *pb.ToHead) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := protodelim.MarshalTo(p.w, m)
	return err
}

func (p *headPipe) sendFrom(m *pb.FromHead) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := protodelim.MarshalTo(p.w, m)
	return err
}

// beat says now and then that this side is there, until ctx is done.
func beat(ctx context.Context, say func() error) {
	ticker := time.NewTicker(headBeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if say() != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// runThroughFirst runs a job whose head is on its first host.
func runThroughFirst(ctx context.Context, job *Job, opts Options) (*Outcome, error) {
	defer func() { _ = opts.Output.end(ending{must: true}) }() // where it has not ended yet
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
	a, stdout, err := throughPipesTo(limit, exec.Command(args[0], args[1:]...), log, starter.explain)
	if err != nil {
		if a != nil {
			err = starter.failure(a, err)
		}
		return &Outcome{Cause: (&machine{job: job}).nodeCause(pb.Cause_LAUNCHER, 0, err.Error()), Ended: make([]bool, job.World.Size()), Reports: make([][]byte, job.World.Size())}, nil
	}
	defer func() { _ = stdout.Close() }()
	l := &remoteLauncher{job: job, opts: opts, ssh: a, pipe: headPipe{w: a.stdin, r: bufio.NewReader(stdout)}, timeout: timerOf(job.Timeout, opts.Begin), endings: endings{within: sameWish}}
	if opts.Events != nil {
		l.events = newLaterWriter(opts.Events)
	}
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
	events   *laterWriter // nil: nobody wants them
	lacking  error        // why not all events were written
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
	if l.events != nil && l.lacking == nil {
		l.lacking = l.events.close(outputPatience)
	}
	if l.lacking != nil {
		outcome.Lacking = l.lacking.Error()
	}
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
	l.stdin, err = startStdin(l.opts.Stdin, []int{head}, func(_ int, m *pb.ToAgent) error {
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
		l.writeEvent(k.Event)
	case *pb.FromHead_Outcome:
		var ended headOutcome
		err := json.Unmarshal(k.Outcome, &ended)
		return &ended, err
	}
	return nil, nil
}

// writeEvent writes an event, until one could not be written.
func (l *remoteLauncher) writeEvent(event []byte) {
	if l.events == nil || l.lacking != nil {
		return
	}
	if _, l.lacking = l.events.Write(event); l.lacking != nil {
		fmt.Fprintf(l.opts.Output.Notices(), "mkrun: writing events: %v; from here on they are lacking\n", l.lacking)
	}
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
