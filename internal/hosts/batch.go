package hosts

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// FromBatch reads what the batch system in whose job this process runs has given it. lookup is os.LookupEnv; counted says
// that the user has said how many ranks there are to be, so that slots may stay open.
func FromBatch(lookup func(string) (string, bool), counted bool) ([]Host, error) {
	if nodes, ok := lookup("SLURM_JOB_NODELIST"); ok {
		return fromSlurmJob(nodes, lookup, counted)
	}
	for _, name := range []string{"PBS_NODEFILE", "LSB_DJOB_HOSTFILE"} {
		if path, ok := lookup(name); ok {
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			return FromNodeFile(path, data)
		}
	}
	return nil, errors.New("no batch job found: none of SLURM_JOB_NODELIST, PBS_NODEFILE and LSB_DJOB_HOSTFILE is set")
}

// fromSlurmJob reads the hosts of a Slurm job, also inside one of its steps. There SLURM_TASKS_PER_NODE is the step's, unless
// the step is an interactive one, or as large as the job.
func fromSlurmJob(nodes string, lookup func(string) (string, bool), counted bool) ([]Host, error) {
	if n, ok := lookup("SLURM_STEP_NUM_TASKS"); ok && n != "1" {
		return nil, fmt.Errorf("this is one of %s processes that srun started (SLURM_STEP_NUM_TASKS), and each would launch the whole job: "+
			"start mkrun launch --batch once, outside of srun or with srun -N1 -n1 --overlap; or once on each node with --join FILE", n)
	}
	tasks, _ := lookup("SLURM_TASKS_PER_NODE")
	list, err := FromSlurm(nodes, tasks)
	step, inStep := lookup("SLURM_STEP_NODELIST")
	if err == nil || !inStep || step == nodes {
		return list, err
	}
	list, openErr := FromSlurm(nodes, "")
	if openErr != nil {
		return nil, openErr
	}
	if !counted {
		return nil, fmt.Errorf("this is in a step of the Slurm job (on %s of %s), in which Slurm does not say how many tasks the job has on each host "+
			"(SLURM_TASKS_PER_NODE=%s is the step's): give --ppn or -n, or start mkrun launch --batch outside of srun", step, nodes, tasks)
	}
	return list, nil
}

// FromSlurm reads the hosts of a Slurm allocation: SLURM_JOB_NODELIST, as in node[01-03],gpu7, and
// SLURM_TASKS_PER_NODE, as in 2(x3),1. An empty second argument leaves the slots open.
func FromSlurm(nodelist, tasks string) ([]Host, error) {
	list, err := ParseList("SLURM_JOB_NODELIST", nodelist)
	if err != nil {
		return nil, err
	}
	if tasks == "" {
		return list, nil
	}
	bad := func(item string) error {
		return fmt.Errorf("SLURM_TASKS_PER_NODE=%s: %q is not understood; expected a form such as 2(x3),1", tasks, item)
	}
	node := 0
	for item := range strings.SplitSeq(tasks, ",") {
		number, rest, repeated := strings.Cut(item, "(x")
		times := 1
		if repeated {
			text, ok := strings.CutSuffix(rest, ")")
			n, err := strconv.ParseUint(text, 10, 31)
			if !ok || err != nil || n < 1 {
				return nil, bad(item)
			}
			times = int(n)
		}
		slots, err := parseSlots(number)
		if err != nil {
			return nil, bad(item)
		}
		if times > len(list)-node {
			return nil, fmt.Errorf("SLURM_TASKS_PER_NODE=%s speaks of more hosts than the %d of SLURM_JOB_NODELIST", tasks, len(list))
		}
		for range times {
			list[node].Slots = slots
			node++
		}
	}
	if node != len(list) {
		return nil, fmt.Errorf("SLURM_TASKS_PER_NODE=%s speaks of %d hosts, SLURM_JOB_NODELIST of %d", tasks, node, len(list))
	}
	return list, nil
}

// FromNodeFile reads the file of a batch system that names a host once for each slot, as PBS_NODEFILE and
// LSB_DJOB_HOSTFILE do.
func FromNodeFile(source string, data []byte) ([]Host, error) {
	var list []Host
	index := map[string]int{}
	line := 0
	for raw := range strings.SplitSeq(string(data), "\n") {
		line++
		text := strings.TrimSpace(raw)
		if text == "" {
			continue
		}
		h := Host{Name: text, Slots: 1}
		if err := checkWord(text, "host", "._-"); err != nil {
			return nil, &Error{source, line, column(text, err.offset), strings.ToValidUTF8(text, "?"), err.msg}
		}
		i, seen := index[h.key()]
		switch {
		case !seen && len(list) == MaxHosts:
			return nil, fmt.Errorf("%s names more than %d hosts", source, MaxHosts)
		case !seen:
			index[h.key()] = len(list)
			list = append(list, h)
		case list[i].Slots == MaxSlots:
			return nil, fmt.Errorf("%s names %s more than %d times", source, text, MaxSlots)
		default:
			list[i].Slots++
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s names no host", source)
	}
	return list, nil
}
