package launch

import (
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/internal/pmi"
)

// Compats are the values of --compat: other launchers whose variables ranks can be given besides mkrun's own, for programs
// that know only those. By default there are none: a library that sees them may try to speak to that launcher.
var Compats = []string{"none", "ompi", "slurm"}

// ParseCompat checks a value of --compat.
func ParseCompat(s string) (string, error) {
	if !slices.Contains(Compats, s) {
		return "", fmt.Errorf("--compat %s: known are %s", s, strings.Join(Compats, ", "))
	}
	return s, nil
}

// compatVariables are what another launcher would tell a rank.
func (j *Job) compatVariables(rank int) []Variable {
	node, local := j.World.Place(rank)
	n := strconv.Itoa
	number, size, localRank, localSize := n(j.Number(rank)), n(j.World.Size()), n(local), n(j.World.PPN[node])
	switch j.Compat {
	case "ompi":
		return []Variable{
			{"OMPI_COMM_WORLD_RANK", number, "Open MPI: as MKRUN_RANK"},
			{"OMPI_COMM_WORLD_SIZE", size, "Open MPI: as MKRUN_SIZE"},
			{"OMPI_COMM_WORLD_LOCAL_RANK", localRank, "Open MPI: as MKRUN_LOCAL_RANK"},
			{"OMPI_COMM_WORLD_LOCAL_SIZE", localSize, "Open MPI: as MKRUN_LOCAL_SIZE"},
			{"OMPI_COMM_WORLD_NODE_RANK", localRank, "Open MPI: as MKRUN_LOCAL_RANK"},
			{"OMPI_UNIVERSE_SIZE", size, "Open MPI: as MKRUN_SIZE"},
		}
	case "slurm":
		names := make([]string, 0, len(j.Hosts))
		for _, h := range j.Hosts {
			names = append(names, h.Name)
		}
		var numbers []string
		for l := range j.World.PPN[node] {
			numbers = append(numbers, n(j.Number(j.World.RankAt(node, l))))
		}
		nodes, list, tasks := n(j.World.Nodes()), strings.Join(names, ","), tasksPerNode(j.World.PPN)
		id := strconv.FormatUint(uint64(crc32.ChecksumIEEE([]byte(j.ID))), 10)
		return []Variable{
			{"SLURM_PROCID", number, "Slurm: as MKRUN_RANK"},
			{"SLURM_LOCALID", localRank, "Slurm: as MKRUN_LOCAL_RANK"},
			{"SLURM_NODEID", n(node), "Slurm: as MKRUN_NODE_RANK"},
			{"SLURM_NTASKS", size, "Slurm: as MKRUN_SIZE"},
			{"SLURM_NPROCS", size, "Slurm: as MKRUN_SIZE"},
			{"SLURM_STEP_NUM_TASKS", size, "Slurm: as MKRUN_SIZE"},
			{"SLURM_NNODES", nodes, "Slurm: as MKRUN_NNODES"},
			{"SLURM_JOB_NUM_NODES", nodes, "Slurm: as MKRUN_NNODES"},
			{"SLURM_JOB_ID", id, "Slurm: a number made from MKRUN_JOB_ID"},
			{"SLURM_STEP_ID", "0", "Slurm: always 0"},
			{"SLURM_NODELIST", list, "Slurm: the nodes' names"},
			{"SLURM_JOB_NODELIST", list, "Slurm: the nodes' names"},
			{"SLURM_STEP_NODELIST", list, "Slurm: the nodes' names"},
			{"SLURM_TASKS_PER_NODE", tasks, "Slurm: ranks of each node"},
			{"SLURM_STEP_TASKS_PER_NODE", tasks, "Slurm: ranks of each node"},
			{"SLURM_GTIDS", strings.Join(numbers, ","), "Slurm: the ranks of this node"},
			{"SLURM_LAUNCH_NODE_IPADDR", j.Hosts[0].Address, "Slurm: as MKRUN_ROOT_ADDR"},
		}
	}
	return nil
}

// tasksPerNode writes ranks per node as Slurm does: 2(x3),1.
func tasksPerNode(ppn []int) string {
	var parts []string
	for i := 0; i < len(ppn); {
		k := i
		for k < len(ppn) && ppn[k] == ppn[i] {
			k++
		}
		part := strconv.Itoa(ppn[i])
		if k-i > 1 {
			part += fmt.Sprintf("(x%d)", k-i)
		}
		parts = append(parts, part)
		i = k
	}
	return strings.Join(parts, ",")
}

// pmiVariables are what a program built with MPICH is told; the agent adds PMI_FD.
func (j *Job) pmiVariables(rank int) []Variable {
	if !j.PMI {
		return nil
	}
	node, local := j.World.Place(rank)
	return []Variable{
		{"PMI_RANK", strconv.Itoa(j.Number(rank)), "MPICH: as MKRUN_RANK; PMI_FD is the socket to ask at"},
		{"PMI_SIZE", strconv.Itoa(j.World.Size()), "MPICH: as MKRUN_SIZE"},
		{"MPI_LOCALRANKID", strconv.Itoa(local), "MPICH: as MKRUN_LOCAL_RANK"},
		{"MPI_LOCALNRANKS", strconv.Itoa(j.World.PPN[node]), "MPICH: as MKRUN_LOCAL_SIZE"},
	}
}

// pmiMapping says which rank is on which node, by the user's numbers.
func (j *Job) pmiMapping() string {
	nodes := make([]int, j.World.Size())
	for rank := range nodes {
		nodes[j.Number(rank)] = j.World.NodeOf(rank)
	}
	return pmi.Mapping(nodes)
}
