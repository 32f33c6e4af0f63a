package topology

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Expectation is what nodes should be: a machine of the table, or another node.
type Expectation struct {
	machine *Machine
	node    *Eval
	from    string
}

// ParseExpectation reads what --expect takes: a machine's name or a file.
func ParseExpectation(s string) (*Expectation, error) {
	for i := range Machines {
		if Machines[i].Name == strings.ToLower(s) {
			return &Expectation{machine: &Machines[i], from: s}, nil
		}
	}
	if _, err := os.Stat(s); err != nil {
		return nil, fmt.Errorf("--expect %s is neither a file nor a known machine; machines: %s", s, strings.Join(MachineNames(), ", "))
	}
	nodes, err := Load(s)
	if err != nil {
		return nil, err
	}
	return &Expectation{node: NewEval(nodes[0]), from: s}, nil
}

// Check compares a node with the expectation.
func (x *Expectation) Check(e *Eval) []Finding {
	c := &checkup{e: e}
	if x.node != nil {
		for _, d := range Diff(x.node, e) {
			sev := Degraded
			if d.Class == "added" || d.Class == "role" || d.Class == "faster" {
				sev = Warning
			}
			c.add(sev, "differs-"+d.Class, d.Where, "compare with "+x.from, "%s", d.What)
		}
		return c.list
	}
	x.machine.check(c)
	return c.list
}

func (m *Machine) check(c *checkup) {
	e, n := c.e, c.e.Node
	do := "expected is " + m.What
	if len(n.GPUs) != m.GPUs {
		c.add(Degraded, "gpu-count", n.Host, do+"; look for GPUs that fell off the bus (Xid 79)", "%d GPUs, %d are expected", len(n.GPUs), m.GPUs)
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		where := fmt.Sprintf("GPU%d", g.Index)
		p := productOf(g)
		switch {
		case p != nil && !slices.Contains(m.Products, p.name):
			c.add(Degraded, "gpu-kind", where, do, "is a %s", p.name)
		case p == nil && g.Device != 0:
			c.add(Degraded, "gpu-kind", where, do, "is a %04x:%04x, not a %s", g.Vendor, g.Device, strings.Join(m.Products, " or "))
		}
		if links, ok := e.NVLinks(i); ok && links < m.Links {
			c.add(Degraded, "nvlink-count", where, do, "%d NVLinks active, %d are expected", links, m.Links)
		}
	}
	cpus := 0
	for _, node := range n.NUMA {
		if node.HasCPU {
			cpus++
		}
	}
	if m.Sockets > 0 && cpus > 0 && cpus < m.Sockets {
		c.add(Warning, "numa-count", n.Host, do, "%d NUMA nodes with CPUs, at least %d are expected", cpus, m.Sockets)
	}
	if m.NICs > 0 && n.Details.NICs {
		m.checkNICs(c, do)
	}
}

func (m *Machine) checkNICs(c *checkup, do string) {
	e, n := c.e, c.e.Node
	rails := 0
	for i := range n.NICs {
		x := &n.NICs[i]
		if e.roles[i].Role != RoleRail {
			continue
		}
		rails++
		if m.EFA && x.Vendor != 0 && !isEFA(x.Vendor, x.Device) {
			c.add(Degraded, "nic-kind", x.Name, do, "is no EFA")
		}
	}
	if rails != m.NICs {
		c.add(Degraded, "nic-count", n.Host, do, "%d rails, %d are expected", rails, m.NICs)
		return
	}
	for i, u := range e.Uses() {
		where := fmt.Sprintf("GPU%d", n.GPUs[i].Index)
		if len(u.NICs) != m.PerGPU {
			c.add(Degraded, "nic-per-gpu", where, do, "uses %d rails, %d are expected", len(u.NICs), m.PerGPU)
		}
		if len(m.Nearest) > 0 && u.Near.Level != LevelUnknown && !slices.Contains(m.Nearest, u.Near.Level) {
			c.add(Degraded, "nic-distance", where, do, "its nearest rail is at %s", u.Near.Level)
		}
	}
}

// CheckNodes checks nodes each by itself, against the expectation (if any), and against each other:
// the odd one out is named, and rails must be alike.
func CheckNodes(evals []*Eval, x *Expectation) []Finding {
	list := []Finding{}
	counts := map[string]int{}
	keys := make([]string, len(evals))
	for i, e := range evals {
		list = append(list, e.Health()...)
		if x != nil {
			list = append(list, x.Check(e)...)
		}
		keys[i] = strings.Join(e.canonical(), "\n")
		counts[keys[i]]++
	}
	usual := 0
	for i := range evals {
		if counts[keys[i]] > counts[keys[usual]] {
			usual = i
		}
	}
	for i, e := range evals {
		if keys[i] == keys[usual] {
			continue
		}
		c := &checkup{e: e}
		diffs := Diff(evals[usual], e)
		for k, d := range diffs {
			if k == 8 {
				c.add(Degraded, "odd-node", e.Node.Host, "see --json", "and %d more differences", len(diffs)-k)
				break
			}
			c.add(Degraded, "odd-node", d.Where, "compare it with "+evals[usual].Node.Host, "differs from %d of %d nodes: %s", counts[keys[usual]], len(evals), d.What)
		}
		list = append(list, c.list...)
	}
	if len(evals) > 1 {
		for _, r := range Rails(evals) {
			for _, p := range r.Problems {
				list = append(list, Finding{"rail", Degraded, "", fmt.Sprintf("rail %d", r.Rail), p, "rails are matched by position: check the cabling, or the NIC list of that node"})
			}
		}
	}
	return list
}

// Healthy says whether none of the findings is a degradation.
func Healthy(list []Finding) bool {
	return !slices.ContainsFunc(list, func(f Finding) bool { return f.Severity == Degraded })
}

// WriteFindings writes findings, degradations first.
func WriteFindings(b *strings.Builder, list []Finding, s Style) {
	for _, sev := range []Severity{Degraded, Warning} {
		for _, f := range list {
			if f.Severity != sev {
				continue
			}
			color := colRed
			if sev == Warning {
				color = colYellow
			}
			where := f.Where
			if f.Node != "" && f.Node != f.Where {
				where = f.Node + " " + f.Where
			}
			b.WriteString(s.paint(color, string(sev)) + " " + f.Code + "  " + where + ": " + f.What + "\n    " + s.paint(colDim, f.Do) + "\n")
		}
	}
	if Healthy(list) {
		b.WriteString(s.paint(colGreen, "healthy") + "\n")
	}
}
