package launch

import (
	"fmt"
	"slices"
)

// FitNetwork brings the interfaces and ports that the user wants together with the hosts, and refuses what cannot work.
func (j *Job) FitNetwork() error {
	if len(j.Interfaces) > 0 && !j.spread() {
		if err := j.bindHere(); err != nil {
			return err
		}
	}
	return j.checkPorts()
}

// bindHere puts nodes that are all this host at the address of the interfaces that were asked for. Other hosts' agents
// look for themselves.
func (j *Job) bindHere() error {
	own, err := ownAddresses()
	if err != nil {
		return err
	}
	addr, err := chooser{own: own}.ofDevices(j.Interfaces)
	if err != nil {
		return err
	}
	for i := range j.Hosts {
		j.Hosts[i].Address = addr.String()
	}
	return nil
}

// checkPorts refuses a range with fewer ports than mkrun itself takes at any address.
func (j *Job) checkPorts() error {
	if j.Ports.Any() {
		return nil
	}
	has := j.Ports.Last - j.Ports.First + 1
	need, host := j.portsNeeded()
	if has >= need {
		return nil
	}
	return fmt.Errorf("--port-range %v has too few ports: %d, and %s needs %d at least: one for each agent there, one for each agent to which "+
		"others report, one where the launcher listens, one for MASTER_PORT on the first node; ranks may need more of their own", j.Ports, has, host, need)
}

// portsNeeded is how many ports mkrun takes where it takes the most, and on which host that is.
func (j *Job) portsNeeded() (most int, host string) {
	spread := j.spread()
	at := func(node int) string {
		if spread {
			return fmt.Sprint(node) // each is a host of its own
		}
		return j.Hosts[node].Address
	}
	need := map[string]int{}
	for node := range j.Hosts {
		need[at(node)]++
		if first, end := j.tree().Children(node); first < end {
			need[at(node)]++
		}
	}
	if here := slices.IndexFunc(j.Hosts, func(h Host) bool { return !spread || j.HeadFirst || !h.remote() }); here >= 0 {
		need[at(here)]++
	}
	if spread {
		need[at(0)]++
	}
	for node, h := range j.Hosts {
		if n := need[at(node)]; n > most {
			most, host = n, h.Name
		}
	}
	if !spread {
		most++ // nobody may listen at MASTER_PORT at any address of this host
	}
	return most, host
}
