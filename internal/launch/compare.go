package launch

import (
	"fmt"

	"github.com/mkrun/mkrun/internal/count"
	"github.com/mkrun/mkrun/internal/doctor"
	"github.com/mkrun/mkrun/internal/topology"
)

// topologyChecks compare what the nodes are made of: a node that differs from the others, rails that do not match, and
// what is broken by itself makes jobs slow that no single node's check explains.
func (m *machine) topologyChecks() []Check {
	var names []string
	var packed [][]byte
	var nodes []int // that told
	for node, r := range m.preflight.reports {
		if len(r.Machine) > 0 {
			names, packed, nodes = append(names, m.job.Hosts[node].Name), append(packed, r.Machine), append(nodes, node)
		}
	}
	all := func(severity doctor.Severity, text, action string) []Check {
		return []Check{{Node: -1, Code: "topology", Severity: severity, Text: text, Action: action}}
	}
	if len(packed) == 0 {
		return nil
	}
	machines, err := topology.Unpack(names, packed)
	if err != nil {
		return all(doctor.Warn, fmt.Sprintf("the nodes were not compared: %v", err), "")
	}
	at := map[string]int{}
	evals := make([]*topology.Eval, len(machines))
	for i, n := range machines {
		at[n.Host], evals[i] = nodes[i], topology.NewEval(n)
	}
	var checks []Check
	for _, f := range topology.CheckNodes(evals, nil) {
		if f.Severity != topology.Degraded {
			continue
		}
		text := f.Where + ": " + f.What
		if node, known := at[f.Node]; known {
			checks = append(checks, m.checkOf(node, "topology-"+f.Code, doctor.Warn, text, f.Do))
		} else {
			checks = append(checks, Check{Node: -1, Code: "topology-" + f.Code, Severity: doctor.Warn, Text: text, Action: f.Do})
		}
	}
	if checks == nil && len(machines) > 1 {
		rails := "no rails"
		if n := len(topology.Rails(evals)); n > 0 {
			rails = count.Of(n, "rail") + " that match"
		}
		return all(doctor.OK, fmt.Sprintf("%d machines alike, %s", len(machines), rails), "")
	}
	return checks
}
