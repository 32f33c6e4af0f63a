package launch

import (
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/doctor"
	"github.com/mkrun/mkrun/internal/topology"
)

// withMachines gives each node's report a machine.
func withMachines(t *testing.T, machine func(node int) *topology.Node) func(int, bool) (checkReport, time.Duration) {
	return func(node int, echo bool) (checkReport, time.Duration) {
		r, ahead := good(node, echo)
		if n := machine(node); !echo && n != nil {
			packed, err := n.Pack()
			if err != nil {
				t.Fatal(err)
			}
			r.Machine = packed
		}
		return r, ahead
	}
}

func topologyLines(m *machine) string {
	var list []Check
	for _, c := range m.preflight.checks {
		if strings.HasPrefix(c.Code, "topology") {
			list = append(list, c)
		}
	}
	return strings.Join(CheckLines(list, len(m.nodes), doctor.OK, doctor.Warn, doctor.Fail), "\n")
}

func TestNodesAreComparedBeforeAJob(t *testing.T) {
	alike := func(int) *topology.Node { return withNICs(eightGPUs()) }
	m, orders := checkedJob(t, func(*Job) {}, withMachines(t, alike))
	if text := topologyLines(m); text != "ok    topology: 3 machines alike, 4 rails that match" {
		t.Errorf("%q", text)
	}
	if m.cause != nil || len(orders) == 0 {
		t.Errorf("the job did not start: %v", m.cause)
	}

	slow := func(node int) *topology.Node {
		n := alike(node)
		if node == 1 {
			for i := range n.NICs {
				n.NICs[i].Ports[0].Rate = 200000
			}
		}
		return n
	}
	m, orders = checkedJob(t, func(*Job) {}, withMachines(t, slow))
	text := topologyLines(m)
	for _, want := range []string{"topology-rail: rail 0: rate differs from 400 Gb/s on " + m.job.Hosts[1].Name + " (200 Gb/s)", m.job.Hosts[1].Name + ": topology-odd-node:"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %q", text, want)
		}
	}
	if m.cause != nil || len(orders) == 0 {
		t.Errorf("a warning kept the job from starting: %v", m.cause)
	}
}

func TestNodesThatTellNothingAreNotCompared(t *testing.T) {
	m, _ := checkedJob(t, func(*Job) {}, withMachines(t, func(int) *topology.Node { return nil }))
	if text := topologyLines(m); text != "" {
		t.Errorf("%q", text)
	}
	m, orders := checkedJob(t, func(*Job) {}, func(node int, echo bool) (checkReport, time.Duration) {
		r, ahead := good(node, echo)
		r.Machine = []byte("no record")
		return r, ahead
	})
	if text := topologyLines(m); !strings.Contains(text, "the nodes were not compared: unpacking the record of") {
		t.Errorf("%q", text)
	}
	if m.cause != nil || len(orders) == 0 {
		t.Errorf("the job did not start: %v", m.cause)
	}
}
