package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/hosts"
	"github.com/mkrun/mkrun/internal/launch"
)

// joinFlags are for a mkrun launch that something else starts once per node: srun, a Kubernetes Job.
type joinFlags struct {
	file, at string
	rank     int
	nodes    *int // --nodes
	given    func(name string) bool
}

func (f *joinFlags) add(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.file, "join", "", "this command was started once per node, by srun for instance: the first launches, the others are its agents. `FILE` is where they meet, in a folder that all hosts see; with --join-at a file with a secret")
	fs.StringVar(&f.at, "join-at", "", "HOST:PORT at which the first node is reached, where hosts share no folder")
	fs.IntVar(&f.rank, "node-rank", -1, "which node this is, from 0 (default: SLURM_PROCID or JOB_COMPLETION_INDEX)")
	f.given = func(name string) bool { return cmd.PersistentFlags().Changed(name) }
}

// joining is this process's part.
func (f *joinFlags) joining() (*launch.Joining, error) {
	j := &launch.Joining{File: f.file, At: f.at, Node: f.rank}
	var err error
	if f.given("node-rank") {
		if f.rank < 0 {
			return nil, fmt.Errorf("--node-rank %d is negative", f.rank)
		}
	} else if j.Node, err = numberIn("SLURM_PROCID", "JOB_COMPLETION_INDEX"); err != nil {
		return nil, fmt.Errorf("--join: which node is this? %w; give --node-rank", err)
	}
	if f.given("nodes") {
		j.Nodes = *f.nodes
	} else if j.Nodes, err = numberIn("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"); err != nil {
		return nil, fmt.Errorf("--join: how many nodes are there? %w; give --nodes", err)
	}
	if j.Node >= j.Nodes {
		return nil, fmt.Errorf("--join: node %d of %d nodes: they are numbered from 0", j.Node, j.Nodes)
	}
	if f.at == "" {
		j.Start = os.Getenv("SLURM_JOB_ID") + "." + os.Getenv("SLURM_STEP_ID")
		_, j.Sealed = os.LookupEnv("SLURM_JOB_ID")
	}
	return j, nil
}

// numberIn reads the first of some variables that is set.
func numberIn(names ...string) (int, error) {
	for _, name := range names {
		if text, ok := os.LookupEnv(name); ok {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				return 0, fmt.Errorf("%s=%q is not a number", name, text)
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("none of %q is set", names)
}

// hosts are the nodes, by the names that Slurm has for them if there is one for each.
func (f *joinFlags) hosts() ([]hosts.Host, error) {
	j, err := f.joining()
	if err != nil {
		return nil, err
	}
	if list, ok := os.LookupEnv("SLURM_STEP_NODELIST"); ok {
		if named, err := hosts.FromSlurm(list, ""); err == nil && len(named) == j.Nodes {
			return named, nil
		}
	}
	if j.Nodes > hosts.MaxHosts {
		return nil, fmt.Errorf("--join: %d nodes; the most is %d", j.Nodes, hosts.MaxHosts)
	}
	list := make([]hosts.Host, j.Nodes)
	for i := range list {
		list[i].Name = fmt.Sprintf("node%d", i)
	}
	return list, nil
}

// run is the whole of a launch on a node other than the first; false if this is the first.
func (f *joinFlags) run(ctx context.Context, cmd *cobra.Command, limit time.Duration) (bool, error) {
	if f.file == "" {
		return false, nil
	}
	j, err := f.joining()
	if err != nil {
		return true, &usageError{cmd.CommandPath(), err}
	}
	if j.Node == 0 {
		return false, nil
	}
	status, err := launch.Join(ctx, *j, limit, cmd.ErrOrStderr())
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: %v\n", err)
	}
	if status != 0 {
		return true, exitStatus(status)
	}
	return true, nil
}
