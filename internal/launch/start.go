package launch

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
)

// startAgents begins to start the agents; what becomes of each is an arrival.
func (l *launcher) startAgents(ctx context.Context, parents []string) error {
	ctx, l.starts = context.WithCancel(ctx)
	l.parents = parents
	l.agents = make([]*agentProcess, len(l.job.Hosts))
	if err := l.openWays(ctx); err != nil {
		return err
	}
	for node, host := range l.job.Hosts {
		if l.job.below(node) {
			continue
		}
		l.pending++
		by, cfg := l.by[host.By], l.agentConfig(node)
		go func() {
			agent, err := by.start(ctx, cfg, l.secret)
			l.came <- arrival{node, agent, err}
		}()
	}
	return nil
}

// agentConfig is what one agent is told.
func (l *launcher) agentConfig(node int) AgentConfig {
	cfg := AgentConfig{
		Job: l.job.ID, Generation: firstGeneration, Nodes: len(l.job.Hosts), InheritEnv: l.job.Remote(), Here: !l.job.Remote(),
		Look:    l.job.Bind != "" && l.job.Bind != BindNone || l.job.GPUs != "" || l.job.GPUIsolate,
		Parents: l.parents, Verbose: l.opts.Verbose, Window: nodeWindow(len(l.job.Hosts)), Radix: l.job.Radix, Ports: l.job.Ports, Hold: l.job.Hold, AgentPart: l.part(node),
	}
	if l.job.spread() {
		cfg.Interfaces = l.job.Interfaces
	}
	return cfg
}

// part is what one agent is told that differs from the others'.
func (l *launcher) part(node int) AgentPart {
	host := l.job.Hosts[node]
	p := AgentPart{Node: node, Name: host.Name, Output: l.outputFiles(node)}
	if l.job.spread() {
		p.Candidates = host.Candidates
	} else {
		p.Address = host.Address
	}
	return p
}

// openWays makes the starters that the job's hosts need.
func (l *launcher) openWays(ctx context.Context) error {
	job := l.job
	var log io.Writer
	if l.opts.Verbose {
		log = l.notices
	}
	local := localStarter{log}
	l.by = map[Reach]starter{"": local, ReachLocal: local}
	maps.Copy(l.by, l.opts.starters)
	for node, host := range job.Hosts {
		if l.by[host.By] != nil {
			continue
		}
		switch host.By {
		case ReachSSH:
			targets := map[int]string{}
			for n, h := range job.Hosts {
				targets[n] = h.Target
			}
			l.by[ReachSSH] = newSSHStarter(job.SSH, targets, log, l.notice)
		case ReachSrun:
			parts := map[string]AgentPart{}
			for n, h := range job.Hosts {
				parts[h.Name] = l.part(n)
			}
			args, err := job.srunCommand()
			if err != nil {
				return err
			}
			l.by[ReachSrun] = &srunStarter{args: args, log: log, parts: parts}
		case ReachStanding:
			l.by[ReachStanding] = &standingStarter{hosts: job.Hosts, standing: job.Standing, log: log}
		case ReachJoin:
			addresses := func(port int) ([]string, error) {
				choose, err := newChooser(ctx)
				if err != nil {
					return nil, err
				}
				return choose.reachable(job.Interfaces, job.Hosts, port)
			}
			joins, err := awaitJoins(ctx, *job.Join, job.Ports, addresses, log, l.opts.Log, l.notice)
			if err != nil {
				return err
			}
			l.by[ReachJoin] = joins
		default:
			return fmt.Errorf("%s (node %d): agents cannot be started by %q", host.Name, node, host.By)
		}
	}
	return nil
}

// closeWays ends what startAgents opened.
func (l *launcher) closeWays() {
	if joins, ok := l.by[ReachJoin].(*joinStarter); ok {
		joins.close()
	}
}

// srunCommand is the command line that starts the agents of a Slurm job.
func (j *Job) srunCommand() ([]string, error) {
	mkrun := j.SSH.Mkrun
	if mkrun == "" || mkrun == DefaultRemoteMkrun {
		self, err := os.Executable() // the nodes of a Slurm job see the same files, as a rule
		if err != nil {
			return nil, fmt.Errorf("finding the mkrun binary: %w", err)
		}
		mkrun = self
	}
	return srunArgs(j.Hosts, mkrun), nil
}

// startFailures says why agents have not come, where that is known.
func (l *launcher) startFailures() string {
	text := ""
	for node, a := range l.agents {
		if a != nil && l.job.Hosts[node].remote() && !l.machine.nodes[node].joined && l.job.tree().Parent(node) < 0 {
			text += fmt.Sprintf("\n  %s (node %d): its agent runs, but has not reached this host at %s; if no connection can be made to here, try --head first",
				l.job.Hosts[node].Name, node, strings.Join(l.parents, ", "))
		}
		tries, ok := l.by[l.job.Hosts[node].By].(interface{ lastFailure(node int) error })
		if !ok || a != nil {
			continue
		}
		if err := tries.lastFailure(node); err != nil {
			text += fmt.Sprintf("\n  %s (node %d): %v", l.job.Hosts[node].Name, node, err)
		}
	}
	return text
}
