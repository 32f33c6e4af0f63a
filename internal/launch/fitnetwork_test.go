package launch

import (
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/ports"
)

func TestPortsNeeded(t *testing.T) {
	four := func(by Reach, addresses ...string) *Job {
		j := &Job{}
		for i := range 4 {
			j.Hosts = append(j.Hosts, Host{Name: string(rune('a' + i)), By: by, Address: addresses[i%len(addresses)]})
		}
		return j
	}
	loopback := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"}
	mixed := four(ReachSSH, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")
	mixed.Hosts[2].By = ReachLocal
	first := four(ReachSSH, "192.0.2.1")
	first.HeadFirst = true
	relays := four(ReachSSH, "192.0.2.1")
	relays.Radix = 2
	for name, test := range map[string]struct {
		job  *Job
		need int
		host string
	}{
		"other hosts: agent and MASTER_PORT on the first":     {four(ReachSSH, "192.0.2.1"), 2, "a"},
		"the launcher is on one of them":                      {mixed, 2, "a"},
		"the head is on the first":                            {first, 3, "a"},
		"others report to the first":                          {relays, 3, "a"},
		"pretended nodes: launcher, first agent, MASTER_PORT": {four("", loopback...), 3, "a"},
		"the same at one address":                             {four("", "192.0.2.1"), 6, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			if n, host := test.job.portsNeeded(); n != test.need || host != test.host {
				t.Errorf("%d on %s, want %d on %s", n, host, test.need, test.host)
			}
			test.job.Ports = ports.Range{First: 2000, Last: 2000 + test.need - 1}
			if err := test.job.FitNetwork(); err != nil {
				t.Error(err)
			}
			test.job.Ports.Last--
			if err := test.job.FitNetwork(); err == nil || !strings.Contains(err.Error(), "has too few ports") {
				t.Errorf("one port less: %v", err)
			}
		})
	}
}

func TestNodesOfThisHostUseTheInterface(t *testing.T) {
	j := &Job{Interfaces: []string{"lo"}}
	var err error
	if j.Hosts, err = Pretend(3); err != nil {
		t.Fatal(err)
	}
	if err := j.FitNetwork(); err != nil {
		t.Fatal(err)
	}
	for _, h := range j.Hosts {
		if h.Address != "127.0.0.1" {
			t.Errorf("%s is at %s", h.Name, h.Address)
		}
	}
	j.Interfaces = []string{"none0"}
	if err := j.FitNetwork(); err == nil || !strings.Contains(err.Error(), "--iface none0: no such interface") {
		t.Errorf("an interface that is not there: %v", err)
	}
}
