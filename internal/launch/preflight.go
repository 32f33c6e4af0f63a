package launch

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/count"
	"github.com/mkrun/mkrun/internal/doctor"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
)

// Check is one thing that was looked at before any rank was started.
type Check struct {
	Node     int             // -1: all of them
	Host     string          // "" for all
	Code     string          // stable, for machines
	Severity doctor.Severity // Fail ends the job
	Text     string
	Action   string // what to do about it; "" if nothing is amiss
}

// CheckLines writes checks for people, one line each; what was found alike on several nodes stands in one. Checks of other
// severities than the wanted ones are left out.
func CheckLines(checks []Check, nodes int, wanted ...doctor.Severity) []string {
	type finding struct {
		code, text, action string
		severity           doctor.Severity
	}
	on := map[finding][]string{}
	var order []finding
	for _, c := range checks {
		if !slices.Contains(wanted, c.Severity) {
			continue
		}
		f := finding{c.Code, c.Text, c.Action, c.Severity}
		if on[f] == nil {
			order = append(order, f)
		}
		on[f] = append(on[f], c.Host)
	}
	var lines []string
	for _, f := range order {
		where := shortList(on[f]) + ": "
		switch {
		case on[f][0] == "":
			where = ""
		case len(on[f]) == nodes && nodes > 1:
			where = fmt.Sprintf("all %d nodes: ", nodes)
		}
		line := fmt.Sprintf("%-4s  %s%s: %s", f.severity, where, f.code, f.text)
		if f.action != "" {
			line += " -> " + f.action
		}
		lines = append(lines, line)
	}
	return lines
}

// shortList names the first of many.
func shortList(names []string) string {
	const most = 5
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// preflight is the head's part in the checks: every node looks at itself, then each sends packets to others.
type preflight struct {
	reports []*checkReport // by node, of the looks
	waiting int
	echoing bool
	done    bool
	checks  []Check
}

const (
	// clockFar is an offset at which logs of different nodes cannot be compared any more.
	clockFar = time.Second
	// echoAll is the number of nodes up to which all send to all; of more, each sends to its next ones on both sides.
	echoAll, echoSides = 16, 4
)

// lookOrders ask all nodes to look at themselves.
func (m *machine) lookOrders() []order {
	m.preflight = &preflight{reports: make([]*checkReport, len(m.nodes)), waiting: len(m.nodes)}
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce) // never fails
	orders := make([]order, 0, len(m.nodes))
	for node := range m.nodes {
		env := m.job.rankEnv(m.job.World.RankAt(node, 0), Attempt{})
		look := checkLook{Dir: text(m.job.Dir), Output: text(m.job.OutputDir), Address: m.job.Hosts[node].Address, Ports: m.job.Ports, Nonce: nonce,
			Ranks: m.job.World.PPN[node], Visible: lookupEnv(env, visibleDevices), Session: m.job.Session}
		if !m.job.Session {
			look.Argv, look.Env = convert[text](m.job.Argv), convert[text](env)
		}
		orders = append(orders, checkOrder(node, checkRequest{Look: &look}))
	}
	return orders
}

// checkOrder is a request to a node; the time of its sending is added when it is sent.
func checkOrder(node int, q checkRequest) order {
	text, err := json.Marshal(q)
	if err != nil {
		panic(err) // strings, numbers and bytes can be encoded
	}
	return order{node, &pb.ToAgent{Kind: &pb.ToAgent_Preflight{Preflight: &pb.Preflight{Json: text}}}}
}

// checked takes in a node's answer, which came at a time of the head's clock.
func (m *machine) checked(node int, k *pb.PreflightDone, now time.Time) []order {
	p := m.preflight
	if p == nil || p.done || m.cause != nil {
		return nil
	}
	var r checkReport
	if err := json.Unmarshal(k.GetJson(), &r); err != nil {
		return m.fail(m.nodeCause(pb.Cause_LAUNCHER, node, fmt.Sprintf("sent checks that cannot be read: %v", err)))
	}
	p.waiting--
	if p.echoing {
		m.echoed(node, &r)
		p.checks = append(p.checks, m.clockCheck(node, k, now))
	} else {
		p.reports[node] = &r
		for _, f := range r.Findings {
			p.checks = append(p.checks, m.checkOf(node, f.Code, f.Severity, f.Text, f.Action))
		}
	}
	if p.waiting > 0 {
		return nil
	}
	if !p.echoing {
		p.echoing, p.waiting = true, len(m.nodes)
		p.checks = append(p.checks, m.topologyChecks()...)
		return m.echoOrders()
	}
	p.done = true
	p.checks = append(p.checks, m.sameChecks()...)
	slices.SortStableFunc(p.checks, func(a, b Check) int { return a.Node - b.Node })
	failed := CheckLines(p.checks, len(m.nodes), doctor.Fail)
	switch {
	case failed != nil:
		return m.fail(noPlace(pb.Cause_LAUNCHER, "a check failed, and nothing was started:\n  "+strings.Join(failed, "\n  "), stdio.StatusLauncher))
	case m.job.ConnectOnly:
		for node := range m.nodes {
			m.nodes[node].over = true
		}
		return nil
	}
	return m.startOrders()
}

func (m *machine) checkOf(node int, code string, severity doctor.Severity, text, action string) Check {
	return Check{Node: node, Host: m.job.Hosts[node].Name, Code: code, Severity: severity, Text: text, Action: action}
}

// echoOrders tell each node to whose ports it sends.
func (m *machine) echoOrders() []order {
	n := len(m.nodes)
	orders := make([]order, 0, n)
	for node := range m.nodes {
		var targets []echoTarget
		for other, r := range m.preflight.reports {
			apart := (other - node + n) % n
			if other == node || r.Echo == "" || n > echoAll && min(apart, n-apart) > echoSides {
				continue
			}
			targets = append(targets, echoTarget{other, r.Echo})
		}
		orders = append(orders, checkOrder(node, checkRequest{Echo: targets}))
	}
	return orders
}

// echoed notes how a node's packets fared.
func (m *machine) echoed(node int, r *checkReport) {
	var lost []string
	slowest := 0.0
	for _, e := range r.Echoes {
		if e.Why != "" {
			lost = append(lost, fmt.Sprintf("%s (%s)", m.job.Hosts[e.Node].Name, e.Why))
		}
		slowest = max(slowest, e.MS)
	}
	switch {
	case lost != nil:
		m.preflight.checks = append(m.preflight.checks, m.checkOf(node, "udp", doctor.Warn,
			"UDP does not reach "+strings.Join(lost, ", "), "let UDP pass between the nodes; without it the heartbeat alone watches them"))
	case len(r.Echoes) > 0:
		m.preflight.checks = append(m.preflight.checks, m.checkOf(node, "udp", doctor.OK,
			fmt.Sprintf("UDP to %s and back in %.1f ms at most", count.Of(len(r.Echoes), "node"), slowest), ""))
	}
}

// clockCheck compares a node's clock with the head's: the answer came half of the way's time after it was sent.
func (m *machine) clockCheck(node int, k *pb.PreflightDone, now time.Time) Check {
	sent, received, answered := k.GetSentNs(), k.GetReceivedNs(), k.GetAnsweredNs()
	offset := time.Duration(((received - sent) + (answered - now.UnixNano())) / 2)
	way := time.Duration((now.UnixNano() - sent) - (answered - received))
	text := fmt.Sprintf("its clock is %v ahead of the launcher's, give or take %v", offset.Round(time.Microsecond), (way / 2).Round(time.Microsecond))
	if offset < 0 {
		text = fmt.Sprintf("its clock is %v behind the launcher's, give or take %v", (-offset).Round(time.Microsecond), (way / 2).Round(time.Microsecond))
	}
	if offset.Abs() > clockFar+way/2 {
		return m.checkOf(node, "clock", doctor.Warn, text, "set the clocks by NTP (chronyd); --timestamps and logs of different nodes cannot be compared")
	}
	return m.checkOf(node, "clock", doctor.OK, text, "")
}

// sameChecks compare the nodes with each other.
func (m *machine) sameChecks() []Check {
	var checks []Check
	compare := func(code, what, action string, of func(*checkReport) string) {
		values := map[string][]string{}
		var order []string
		for node, r := range m.preflight.reports {
			v := of(r)
			if values[v] == nil {
				order = append(order, v)
			}
			values[v] = append(values[v], m.job.Hosts[node].Name)
		}
		if len(order) < 2 {
			return
		}
		var parts []string
		for _, v := range order {
			parts = append(parts, v+" on "+shortList(values[v]))
		}
		checks = append(checks, Check{Node: -1, Code: code, Severity: doctor.Warn, Text: what + " differ: " + strings.Join(parts, "; "), Action: action})
	}
	compare("driver-same", "the nodes' NVIDIA drivers", "install one version everywhere", func(r *checkReport) string {
		if r.Driver == "" {
			return "none"
		}
		return r.Driver
	})
	compare("gpu-same", "the nodes' GPUs", "a GPU may have fallen off the bus: compare nvidia-smi -L", func(r *checkReport) string {
		counts := map[string]int{}
		for _, name := range r.GPUs {
			counts[name]++
		}
		var words []string
		for name, n := range counts {
			words = append(words, fmt.Sprintf("%d x %s", n, name))
		}
		slices.Sort(words)
		if words == nil {
			return "none"
		}
		return strings.Join(words, " and ")
	})
	return checks
}
