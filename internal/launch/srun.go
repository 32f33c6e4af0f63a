package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/mkrun/mkrun/internal/session"
)

// srunInputs are variables of a Slurm job that srun takes for options of its own. The job's owner set them for the
// program; the one agent per node must see all that the job has there.
var srunInputs = []string{
	"SLURM_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_", "SLURM_NNODES", "SLURM_JOB_NUM_NODES",
	"SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_GPU_BIND", "SLURM_GPUS_PER_", "SLURM_TRES_", "SLURM_MEM_PER_", "SLURM_DISTRIBUTION", "SLURM_HINT",
	"SLURM_EXACT", "SLURM_OVERLAP", "SLURM_THREADS_PER_CORE", "SLURM_CORE_SPEC", "SLURM_EXPORT_ENV", "SLURM_LABELIO", "SLURM_STD", "SLURM_UNBUFFEREDIO",
	"SLURM_WAIT", "SLURM_KILL_BAD_EXIT", "SLURM_MPI_TYPE", "SLURM_TIMELIMIT", "SLURM_IMMEDIATE", "SLURM_OPEN_MODE", "SLURM_HOSTFILE", "SRUN_",
}

// srunEnv is an environment without what srun takes for options.
func srunEnv(environ []string) []string {
	var env []string
	for _, kv := range environ {
		keep := true
		for _, p := range srunInputs {
			keep = keep && !strings.HasPrefix(kv, p)
		}
		if keep {
			env = append(env, kv)
		}
	}
	return env
}

// srunArgs is the command line by which Slurm starts one agent on each host. They all read the same stdin.
func srunArgs(hosts []Host, mkrun string) []string {
	names := make([]string, 0, len(hosts))
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	n := fmt.Sprint(len(hosts))
	return []string{
		"srun", "--nodes=" + n, "--ntasks=" + n, "--ntasks-per-node=1", "--nodelist=" + strings.Join(names, ","),
		"--overlap", "--cpu-bind=none", "--mem-bind=none", "--mem=0", "--mpi=none", // all of the job's part of a node
		"--kill-on-bad-exit=0", "--wait=0", "--export=ALL", "--input=all", "--unbuffered", "--quiet",
		mkrun, AgentCommand,
	}
}

// srunStarter starts the agents of all nodes with one srun.
type srunStarter struct {
	args  []string
	log   io.Writer
	parts map[string]AgentPart // by the name Slurm has for the node

	once sync.Once
	srun *agentProcess
	err  error
}

func (s *srunStarter) start(ctx context.Context, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	s.once.Do(func() {
		cfg.AgentPart, cfg.Parts = AgentPart{}, s.parts
		s.srun, s.err = s.launch(ctx, cfg, secret)
	})
	if s.err != nil {
		return nil, s.err
	}
	// The same process for each node: its end is the end of all.
	return &agentProcess{
		kill: s.srun.kill, stdin: s.srun.stdin, words: s.srun.words, exited: s.srun.exited, done: s.srun.done,
		explain: func(error, string) string { return s.srun.gone() },
	}, nil
}

func (s *srunStarter) launch(ctx context.Context, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	cmd := exec.Command(s.args[0], s.args[1:]...)
	cmd.Env = srunEnv(os.Environ())
	a, err := throughPipes(ctx, cmd, s.log, explainSrun, nil, cfg, secret)
	if err != nil && a != nil {
		return nil, errors.New(withoutEOF(a.gone(), err))
	}
	return a, err
}

func explainSrun(end error, said string) string {
	text := "the srun that started it ended: " + endText(end)
	if said != "" {
		text += "; it said: " + said
	}
	return text
}
