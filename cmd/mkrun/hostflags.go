package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mkrun/mkrun/internal/hosts"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/ports"
	"github.com/mkrun/mkrun/internal/session"
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
	copySelf       bool
	connectTimeout time.Duration
	iface          []string

	secret    string
	agentPort int
	radix     int
	head      string
	ports     string
	join      joinFlags

	flags  *pflag.FlagSet // all of them
	stderr func() io.Writer
}

func (f *hostFlags) add(cmd *cobra.Command) {
	f.addPool(cmd)
	fs := cmd.PersistentFlags()
	f.join.add(cmd)
	fs.IntVarP(&f.n, "ranks", "n", 0, "ranks in all (0: as many as the hosts have slots)")
	fs.StringVar(&f.mapBy, "map-by", "block", "deal ranks to hosts: block fills one before the next, cyclic gives each one in turn")
	changed := func(name string) func() bool { return func() bool { return fs.Changed(name) } }
	f.ppnGiven, f.nodesGiven = changed("ppn"), changed("nodes")
	_ = cmd.RegisterFlagCompletionFunc("map-by", cobra.FixedCompletions([]string{"block", "cyclic"}, cobra.ShellCompDirectiveNoFileComp))
}

// addPool adds the flags that name hosts and say how they are reached.
func (f *hostFlags) addPool(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	f.flags, f.stderr = fs, cmd.ErrOrStderr
	fs.StringVarP(&f.list, "host", "H", "", "hosts to run on, in rank order: a:8,me@b:8,node[01-16]:4,[fe80::1%eth0]:2")
	fs.StringVar(&f.file, "hostfile", "", "`FILE` with one host per line: host slots=N, or as in -H; # begins a comment")
	fs.BoolVar(&f.batch, "batch", false, "the hosts and slots that the batch system gave this job (Slurm, PBS or LSF)")
	fs.StringVar(&f.include, "include", "", "only these hosts, or these GPUs of them: a@b:0,2@node[1-4]")
	fs.StringVar(&f.exclude, "exclude", "", "all but these hosts, or these GPUs of them")
	fs.StringVar(&f.agent, "agent", "auto", "how agents are started: auto (srun for nodes of the Slurm job that this is in, else children on this host and ssh to others), ssh, local, srun, or standing (they run already: mkrun agent --listen)")
	fs.StringVar(&f.sshCmd, "ssh-cmd", "ssh", "the ssh to use, with words of its own; quotes keep blanks")
	fs.StringArrayVar(&f.sshOpts, "ssh-opts", nil, "further words for ssh before the host; may be repeated")
	fs.StringVar(&f.remoteMkrun, "remote-mkrun", launch.DefaultRemoteMkrun, "mkrun on the other hosts: a path, or a name in the PATH there")
	fs.BoolVar(&f.copySelf, "copy-self", false, "copy this mkrun to the other hosts over ssh, into a private folder below their TMPDIR or /tmp; it is removed again")
	fs.DurationVar(&f.connectTimeout, "connect-timeout", launch.DefaultConnectTimeout, "that ssh waits for a host")
	fs.StringSliceVar(&f.iface, "iface", nil, "network interfaces to use on all hosts, by exact names (default: those at which hosts reach each other)")
	fs.IntVar(&f.agentPort, "agent-port", launch.DefaultStandingPort, "where standing agents listen")
	fs.StringVar(&f.head, "head", "here", "where the job is ruled from: here, or first: the first host, where hosts cannot connect to this one (NAT, jump hosts)")
	fs.StringVar(&f.ports, "port-range", "", "ports to listen on, on all hosts, as in 20000-20100 (default: any that are free)")
	fs.IntVar(&f.radix, "radix", session.Radix, "agents that report to the launcher, and to each agent: more hosts than that make a tree")
	fs.StringVar(&f.secret, "secret", "", "file with the secret of your standing agents (default: mkrun/secret in your configuration folder)")
	_ = cmd.RegisterFlagCompletionFunc("agent", cobra.FixedCompletions(launch.Reaches, cobra.ShellCompDirectiveNoFileComp))
}

// counted reports whether the user said how many ranks there are to be.
func (f *hostFlags) counted() bool { return f.ppnGiven() || f.n > 0 }

// named reports whether hosts were named.
func (f *hostFlags) named() bool { return f.list != "" || f.file != "" || f.batch || f.join.file != "" }

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
			pool, err = hosts.FromBatch(os.LookupEnv, f.counted())
		}
	}
	if f.join.file != "" {
		given++
		if err == nil {
			pool, err = f.join.hosts()
		}
	}
	if given > 1 {
		return nil, errors.New("-H, --hostfile, --batch and --join exclude each other")
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
	if err := refuseUseless(f.flags, f.modes(reach)); err != nil {
		return err
	}
	if f.join.file == "" && pool != nil && f.nodesGiven() {
		return errors.New("--nodes pretends nodes on this host; with named hosts leave it out")
	}
	if err := f.network(job); err != nil {
		return err
	}
	if f.head != "here" && f.head != "first" {
		return fmt.Errorf("--head %q: known are here and first", f.head)
	}
	pretend := pool == nil
	if pretend {
		f.tellUnused()
		if f.head == "first" {
			return errors.New("--head first is for hosts named with -H or --hostfile, and reached over ssh")
		}
		w, err := world.world(" on one host")
		if err != nil {
			return err
		}
		if f.n == 0 && mapBy == hosts.Block {
			job.World = w
			if job.Hosts, err = launch.Pretend(w.Nodes()); err != nil {
				return err
			}
			return job.FitNetwork()
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
		if job.Hosts, err = launch.Pretend(len(placed.Hosts)); err != nil {
			return err
		}
		return job.FitNetwork()
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
	job.SSH.Mkrun, job.SSH.ConnectTimeout = f.remoteMkrun, f.connectTimeout
	job.SSH.CopySelf = f.copySelf
	if err := job.SSH.Check(); err != nil {
		return fmt.Errorf("--remote-mkrun: %w", err)
	}
	if err := f.ways(&reach, placed.Hosts, job); err != nil {
		return err
	}
	if err := refuseUseless(f.flags, f.modes(reach)); err != nil {
		return err
	}
	job.Hosts, err = launch.Resolve(ctx, placed.Hosts, reach)
	if f.join.file != "" {
		job.Hosts[0].By = launch.ReachLocal
	}
	if err == nil && reach == launch.ReachAuto {
		f.tellStrangers(placed.Hosts, job.Hosts)
	}
	if err == nil {
		err = f.placeHead(reach, job)
	}
	if err == nil {
		err = job.FitNetwork()
	}
	return err
}

// network fills in how processes reach each other, on this host and on others.
func (f *hostFlags) network(job *launch.Job) (err error) {
	if f.connectTimeout < 0 {
		return fmt.Errorf("--connect-timeout %v is negative", f.connectTimeout)
	}
	if f.radix < 1 {
		return fmt.Errorf("--radix %d: at least one agent has to report to another process", f.radix)
	}
	if f.ports != "" {
		if job.Ports, err = ports.Parse(f.ports); err != nil {
			return fmt.Errorf("--port-range: %w", err)
		}
	}
	job.Radix, job.Interfaces = f.radix, f.iface
	return nil
}

// placeHead says where the head runs.
func (f *hostFlags) placeHead(reach launch.Reach, job *launch.Job) error {
	switch {
	case f.head != "first":
		return nil
	case reach != launch.ReachAuto && reach != launch.ReachSSH:
		return fmt.Errorf("--head first is for hosts reached over ssh, not by --agent %s", reach)
	case job.Hosts[0].By != launch.ReachSSH:
		return fmt.Errorf("--head first: %s is this host", job.Hosts[0].Name)
	}
	job.HeadFirst = true
	return nil
}

// ways fills in what the way needs by which agents are started.
func (f *hostFlags) ways(reach *launch.Reach, list []hosts.Host, job *launch.Job) (err error) {
	if f.join.file != "" {
		*reach = launch.ReachJoin
		job.Join, err = f.join.joining()
		return err
	}
	switch *reach {
	case launch.ReachAuto:
		strangers, known := f.slurms(list)
		if _, slurm := os.LookupEnv("SLURM_JOB_ID"); slurm && f.batch || known && len(strangers) == 0 {
			*reach = launch.ReachSrun
		}
	case launch.ReachSrun:
		if _, slurm := os.LookupEnv("SLURM_JOB_ID"); !slurm {
			return errors.New("--agent srun: this is not in a Slurm job (SLURM_JOB_ID is not set); inside salloc or sbatch use --batch")
		}
	case launch.ReachStanding:
		if f.agentPort < 1 || f.agentPort > 65535 {
			return fmt.Errorf("--agent-port %d is not a port", f.agentPort)
		}
		path, err := secretFile(f.secret)
		if err != nil {
			return err
		}
		job.Standing.Port = f.agentPort
		if job.Standing.Secret, err = session.ReadSecretFile(path); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("--agent standing: %w; mkrun agent --listen makes it, the same file is needed here and on all hosts", err)
		} else if err != nil {
			return fmt.Errorf("--agent standing: %w", err)
		}
	}
	return nil
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
