package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/hosts"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/stdio"
)

// hostFlags say on which hosts ranks run, and how those are reached.
type hostFlags struct {
	list, file       string
	batch            bool
	include, exclude string
	n                int
	mapBy            string
	ppnGiven         func() bool
	nodesGiven       func() bool

	agent          string
	sshCmd         string
	sshOpts        []string
	remoteMkrun    string
	connectTimeout time.Duration
	iface          []string
}

func (f *hostFlags) add(cmd *cobra.Command) {
	f.addPool(cmd)
	fs := cmd.PersistentFlags()
	fs.IntVarP(&f.n, "ranks", "n", 0, "ranks in all (0: as many as the hosts have slots)")
	fs.StringVar(&f.mapBy, "map-by", "block", "deal ranks to hosts: block fills one before the next, cyclic gives each one in turn")
	changed := func(name string) func() bool { return func() bool { return fs.Changed(name) } }
	f.ppnGiven, f.nodesGiven = changed("ppn"), changed("nodes")
	_ = cmd.RegisterFlagCompletionFunc("map-by", cobra.FixedCompletions([]string{"block", "cyclic"}, cobra.ShellCompDirectiveNoFileComp))
}

// addPool adds the flags that name hosts and say how they are reached.
func (f *hostFlags) addPool(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	fs.StringVarP(&f.list, "host", "H", "", "hosts to run on, in rank order: a:8,me@b:8,node[01-16]:4,[fe80::1%eth0]:2")
	fs.StringVar(&f.file, "hostfile", "", "file with one host per line: `host slots=N`, or as in -H; # begins a comment")
	fs.BoolVar(&f.batch, "batch", false, "the hosts and slots that the batch system gave this job (Slurm, PBS or LSF)")
	fs.StringVar(&f.include, "include", "", "only these hosts, or these GPUs of them: a@b:0,2@node[1-4]")
	fs.StringVar(&f.exclude, "exclude", "", "all but these hosts, or these GPUs of them")
	fs.StringVar(&f.agent, "agent", "auto", "how agents are started: auto (children on this host, ssh to others), ssh or local")
	fs.StringVar(&f.sshCmd, "ssh-cmd", "ssh", "the ssh to use, with words of its own; quotes keep blanks")
	fs.StringArrayVar(&f.sshOpts, "ssh-opts", nil, "further words for ssh before the host; may be repeated")
	fs.StringVar(&f.remoteMkrun, "remote-mkrun", launch.DefaultRemoteMkrun, "mkrun on the other hosts: a path, or a name in the PATH there")
	fs.DurationVar(&f.connectTimeout, "connect-timeout", launch.DefaultConnectTimeout, "that ssh waits for a host")
	fs.StringSliceVar(&f.iface, "iface", nil, "network interfaces to use on all hosts, by exact names (default: those at which hosts reach each other)")
	_ = cmd.RegisterFlagCompletionFunc("agent", cobra.FixedCompletions([]string{"auto", "ssh", "local"}, cobra.ShellCompDirectiveNoFileComp))
}

// pool reads the hosts that were named; nil if none were.
func (f *hostFlags) pool() ([]hosts.Host, error) {
	var pool []hosts.Host
	var err error
	given := 0
	if f.list != "" {
		given++
		pool, err = hosts.ParseList("-H", f.list)
	}
	if f.file != "" {
		given++
		if err == nil {
			pool, err = hosts.ParseFile(f.file)
		}
	}
	if f.batch {
		given++
		if err == nil {
			pool, err = hosts.FromBatch(os.LookupEnv)
		}
	}
	if given > 1 {
		return nil, errors.New("-H, --hostfile and --batch exclude each other")
	}
	return pool, err
}

// place fills in where the job's ranks run.
func (f *hostFlags) place(ctx context.Context, world *worldFlags, job *launch.Job) error {
	pool, err := f.pool()
	if err != nil {
		return err
	}
	mapBy, err := hosts.ParseMapBy(f.mapBy)
	if err != nil {
		return err
	}
	reach, err := launch.ParseReach(f.agent)
	if err != nil {
		return err
	}
	if pool != nil && f.nodesGiven() {
		return errors.New("--nodes pretends nodes on this host; with named hosts leave it out")
	}
	pretend := pool == nil
	if pretend {
		if f.include != "" || f.exclude != "" {
			return errors.New("--include and --exclude choose among hosts named with -H or --hostfile")
		}
		w, err := world.world()
		if err != nil {
			return err
		}
		if f.n == 0 && mapBy == hosts.Block {
			job.World = w
			job.Hosts, err = launch.Pretend(w.Nodes())
			return err
		}
		for node := range w.Nodes() {
			pool = append(pool, hosts.Host{Name: fmt.Sprintf("node%d", node)})
		}
	}
	if f.include != "" {
		if pool, err = hosts.Include(pool, f.include); err != nil {
			return err
		}
	}
	if f.exclude != "" {
		if pool, err = hosts.Exclude(pool, f.exclude); err != nil {
			return err
		}
	}
	counts := hosts.Counts{N: f.n, MapBy: mapBy}
	if f.ppnGiven() {
		if counts.PPN, err = hosts.ParsePPN(world.ppn); err != nil {
			return err
		}
	}
	placed, err := hosts.Place(pool, counts)
	if err != nil {
		return err
	}
	job.World = plan.World{PPN: placed.PPN()}
	if mapBy == hosts.Cyclic && len(placed.Hosts) > 1 {
		for _, ranks := range placed.Ranks {
			job.Numbers = append(job.Numbers, ranks...)
		}
	}
	if pretend {
		job.Hosts, err = launch.Pretend(len(placed.Hosts))
		return err
	}
	if job.SSH.Command, err = launch.Words(f.sshCmd); err != nil {
		return fmt.Errorf("--ssh-cmd: %w", err)
	}
	for _, o := range f.sshOpts {
		words, err := launch.Words(o)
		if err != nil {
			return fmt.Errorf("--ssh-opts: %w", err)
		}
		job.SSH.Options = append(job.SSH.Options, words...)
	}
	if f.connectTimeout < 0 {
		return fmt.Errorf("--connect-timeout %v is negative", f.connectTimeout)
	}
	job.SSH.Mkrun, job.SSH.ConnectTimeout, job.Interfaces = f.remoteMkrun, f.connectTimeout, f.iface
	if err := job.SSH.Check(); err != nil {
		return fmt.Errorf("--remote-mkrun: %w", err)
	}
	job.Hosts, err = launch.Resolve(ctx, placed.Hosts, reach)
	return err
}

// refuse ends a launch before anything was started: with 125 if the hosts have no room for it, else as a command
// line that cannot be understood.
func (f *launchFlags) refuse(cmd *cobra.Command, err error) error {
	var full *hosts.CapacityError
	if errors.As(err, &full) {
		fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: %v\n", err)
		return exitStatus(stdio.StatusLauncher)
	}
	return &usageError{cmd.CommandPath(), err}
}
