package launch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// stale are the prefixes of variables that another launcher sets for its own ranks. Passed on,
// they make MPI libraries believe that launcher still speaks to them.
var stale = []string{"SLURM_", "OMPI_", "PMI_", "PMIX_", "PRTE_", "HYDRA_", "MPI_LOCAL", "MKRUN_", "TORCHELASTIC_"}

// ranked are single variables that say which rank a process is; only this job may say so.
var ranked = []string{
	"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE",
	"MASTER_ADDR", "MASTER_PORT",
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

// RankVariables are the variables added to one rank's environment: mkrun's own, and those that
// torch.distributed's "env://" reads, so that a training script runs unchanged.
func (j *Job) RankVariables(rank, masterPort int) []Variable {
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
		{"RANK", number, "torch: as MKRUN_RANK"},
		{"WORLD_SIZE", n(j.World.Size()), "torch: as MKRUN_SIZE"},
		{"LOCAL_RANK", n(local), "torch: as MKRUN_LOCAL_RANK"},
		{"LOCAL_WORLD_SIZE", n(j.World.PPN[node]), "torch: as MKRUN_LOCAL_SIZE"},
		{"GROUP_RANK", n(node), "torch: as MKRUN_NODE_RANK"},
		{"MASTER_ADDR", root, "torch: where rank 0 listens"},
		{"MASTER_PORT", n(masterPort), "torch: a port that was free on rank 0's node"},
	}
	if devices := j.Hosts[node].Devices; devices != nil {
		words := make([]string, 0, len(devices))
		for _, d := range devices {
			words = append(words, n(d))
		}
		list = append(list, Variable{"CUDA_VISIBLE_DEVICES", strings.Join(words, ","), "what --include or --exclude left of this node's GPUs"})
	}
	return list
}

// rankEnv is the whole environment of one rank.
func (j *Job) rankEnv(rank, masterPort int) []string {
	env := slices.Clone(j.Env)
	for _, v := range j.RankVariables(rank, masterPort) {
		env = append(env, fmt.Sprintf("%s=%s", v.Name, v.Value))
	}
	return env
}
