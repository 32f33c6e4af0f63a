package launch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/internal/ports"
)

// stale are the prefixes of variables that another launcher sets for its own ranks. Passed on,
// they make MPI libraries believe that launcher still speaks to them.
var stale = []string{
	"SLURM_", "OMPI_", "PMI_", "PMIX_", "PRTE_", "HYDRA_", "MPI_LOCAL", "MKRUN_", "TORCHELASTIC_", "PET_",
	"MV2_COMM_WORLD_", "PALS_", "JSM_NAMESPACE_", "FLUX_JOB_", "FLUX_TASK_", "HOROVOD_CROSS_", "ALPS_APP_",
}

// ranked are single variables that say which rank a process is; only this job may say so.
var ranked = []string{
	"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE",
	"GROUP_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
	"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
}

// BaseEnv is an environment without what an outer launcher left in it.
func BaseEnv(environ []string) []string {
	base := make([]string, 0, len(environ))
	for _, kv := range environ {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || slices.Contains(ranked, name) ||
			slices.ContainsFunc(stale, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		base = append(base, kv)
	}
	return base
}

// Variable is one variable a rank is given, with the reason for --dry-run and the documentation.
type Variable struct{ Name, Value, Meaning string }

// Attempt is what differs between the generations of a job's ranks.
type Attempt struct {
	MasterPort int // free on rank 0's node
	Restarts   int // how often the ranks were started again
}

// RankVariables are the variables added to one rank's environment: mkrun's own, and those that
// torch.distributed's "env://" reads, so that a training script runs unchanged.
func (j *Job) RankVariables(rank int, attempt Attempt) []Variable {
	node, local := j.World.Place(rank)
	n := strconv.Itoa
	root := j.Hosts[0].Address
	number := n(j.Number(rank))
	list := []Variable{
		{"MKRUN_JOB_ID", j.ID, "names the job; not a secret"},
		{"MKRUN_RANK", number, "0 .. size-1"},
		{"MKRUN_SIZE", n(j.World.Size()), "ranks of the job"},
		{"MKRUN_LOCAL_RANK", n(local), "0 .. local size-1"},
		{"MKRUN_LOCAL_SIZE", n(j.World.PPN[node]), "ranks of this node"},
		{"MKRUN_NODE_RANK", n(node), "0 .. nodes-1"},
		{"MKRUN_NNODES", n(j.World.Nodes()), "nodes of the job"},
		{"MKRUN_NODE_ADDR", j.Hosts[node].Address, "address this node's ranks listen on"},
		{"MKRUN_ROOT_ADDR", root, "address of rank 0's node"},
		{"MKRUN_RESTART_COUNT", n(attempt.Restarts), "how often the job's ranks were started again"},
		{"RANK", number, "torch: as MKRUN_RANK"},
		{"WORLD_SIZE", n(j.World.Size()), "torch: as MKRUN_SIZE"},
		{"LOCAL_RANK", n(local), "torch: as MKRUN_LOCAL_RANK"},
		{"LOCAL_WORLD_SIZE", n(j.World.PPN[node]), "torch: as MKRUN_LOCAL_SIZE"},
		{"GROUP_RANK", n(node), "torch: as MKRUN_NODE_RANK"},
		{"GROUP_WORLD_SIZE", n(j.World.Nodes()), "torch: as MKRUN_NNODES"},
		{"ROLE_NAME", "default", "torch: all ranks have one role"},
		{"ROLE_RANK", number, "torch: as MKRUN_RANK"},
		{"ROLE_WORLD_SIZE", n(j.World.Size()), "torch: as MKRUN_SIZE"},
		{"MASTER_ADDR", root, "torch: where rank 0 listens"},
		{"MASTER_PORT", n(attempt.MasterPort), "torch: a port that is free on rank 0's node, and no other job's"},
		{"TORCHELASTIC_RUN_ID", j.ID, "torch: as MKRUN_JOB_ID"},
		{"TORCHELASTIC_RESTART_COUNT", n(attempt.Restarts), "torch: as MKRUN_RESTART_COUNT"},
		{"TORCHELASTIC_MAX_RESTARTS", n(j.MaxRestarts), "torch: --max-restarts"},
		{"TORCHELASTIC_USE_AGENT_STORE", "False", "torch: rank 0 itself opens the store at MASTER_PORT"},
	}
	if !j.Ports.Any() {
		list = append(list, Variable{ports.Env, j.Ports.String(), "ports to listen on: --port-range"})
	}
	list = append(list, j.pmiVariables(rank)...)
	list = append(list, j.compatVariables(rank)...)
	if j.RankGPUs != nil {
		list = append(list, Variable{visibleDevices, j.RankGPUs[rank], "the GPUs of this operator's ranks here, in their order"})
	} else if gpus := j.HostGPUs(node); gpus != "" {
		list = append(list, Variable{visibleDevices, gpus, "what --gpus, --include or --exclude left of this node's GPUs"})
	}
	return list
}

// rankEnv is the whole environment of one rank.
func (j *Job) rankEnv(rank int, attempt Attempt) []string {
	return slices.Concat(j.Env, j.ownEnv(rank, attempt))
}

// ownEnv is what a rank's environment has beyond that of all ranks.
func (j *Job) ownEnv(rank int, attempt Attempt) []string {
	var env []string
	for _, v := range j.RankVariables(rank, attempt) {
		env = append(env, fmt.Sprintf("%s=%s", v.Name, v.Value))
	}
	return env
}

// SharedVariables are those that all ranks of a node have and this environment has not: yours, and defaults.
func (j *Job) SharedVariables(node int, environ []string) []Variable {
	var list []Variable
	for _, kv := range j.Env {
		if !slices.Contains(environ, kv) {
			name, value, _ := strings.Cut(kv, "=")
			list = append(list, Variable{name, value, "yours: -x or --env-file"})
		}
	}
	defaults := withDefaults(j.Env, j.envDefaults(node))[len(j.Env):]
	for _, kv := range defaults {
		name, value, _ := strings.Cut(kv, "=")
		meaning := "with several ranks on a node"
		if j.Hosts[node].remote() {
			meaning += ", unless it is set there"
		}
		list = append(list, Variable{name, value, meaning})
	}
	return list
}

// envDefaults are set where neither the user nor a rank's host says otherwise. Like torchrun's: several ranks on a node
// with a thread for each of its CPUs would get in each other's way.
func (j *Job) envDefaults(node int) []string {
	if j.Session || j.World.PPN[node] < 2 {
		return nil
	}
	return []string{"OMP_NUM_THREADS=1"}
}

// withDefaults is an environment with settings added that it lacks.
func withDefaults(env, defaults []string) []string {
	for _, kv := range defaults {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") }) {
			env = append(env, kv)
		}
	}
	return env
}
