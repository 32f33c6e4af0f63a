package launch

import (
	"fmt"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/doctor"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/version"
)

// take lets the machine act on what an agent said.
func (l *launcher) take(ev session.HeadEvent) []order {
	m, node := l.machine, ev.Node
	switch {
	case ev.Lost != nil:
		why := ev.Lost.Reason
		if end := l.howItEnded(node, ev.Lost.Broke); end != "" {
			why = end // says more than that the connection broke
		}
		if a, by := l.agents[node], l.job.Hosts[node].By; a != nil && by != ReachSrun && l.job.Hosts[node].remote() {
			a.kill() // an ssh to a host that is cut off would be waited for; an srun is that of the others too
		}
		l.events.write(Event{Event: "node_lost", Node: &node, Reason: why})
		return m.lost(node, why)
	case ev.Left:
		m.nodeDone(node)
		return nil
	case ev.Refused != nil:
		if node < 0 {
			return nil // a stranger
		}
		return m.fail(m.nodeCause(pb.Cause_LAUNCHER, node, "its agent was refused: "+ev.Refused.Reason))
	case ev.Barrier == 1:
		if l.started == 0 {
			l.started = time.Since(l.opts.Begin)
		}
		return nil
	case ev.Message == nil:
		return nil
	}
	l.events.heard(node, ev.Message)
	switch k := ev.Message.Kind.(type) {
	case *pb.FromAgent_Hello:
		if theirs, ours := k.Hello.GetBuild(), version.Get().BuildID(); theirs != ours {
			return m.fail(m.nodeCause(pb.Cause_LAUNCHER, node, fmt.Sprintf(
				"its mkrun is %s, this one is %s; install the same on both, name the right one with --remote-mkrun, or have this one copied with --copy-self", theirs, ours)))
		}
		return m.hello(node, k.Hello)
	case *pb.FromAgent_PreflightDone:
		orders := m.checked(node, k.PreflightDone, time.Now())
		if m.preflight != nil && m.preflight.done {
			l.tellChecks()
		}
		return orders
	case *pb.FromAgent_Facts:
		orders := m.factsFrom(node, k.Facts.GetJson())
		if f := m.nodes[node].facts; f != nil {
			l.relayIs(node, f.Relay)
		}
		return orders
	case *pb.FromAgent_Below:
		return l.below(node, k.Below)
	case *pb.FromAgent_RankStarted:
		m.started(int(k.RankStarted.GetRank()), int(k.RankStarted.GetPid()))
		m.ranks[k.RankStarted.GetRank()].place = k.RankStarted
		if l.job.ReportBindings {
			fmt.Fprintf(l.notices, "mkrun: rank %d on %s: %s\n", l.job.Number(int(k.RankStarted.GetRank())), l.job.Hosts[node].Name, k.RankStarted.GetPlace())
		}
		if !l.job.Session && l.started == 0 && m.allStarted() {
			l.started = time.Since(l.opts.Begin)
		}
	case *pb.FromAgent_Attached:
		m.attached(int(k.Attached.GetRank()))
	case *pb.FromAgent_RankExited:
		return m.exited(node, k.RankExited)
	case *pb.FromAgent_Report:
		m.reported(int(k.Report.GetRank()), k.Report.GetJson())
	case *pb.FromAgent_Abort:
		k.Abort.Reason = l.job.inUserNumbers(k.Abort.GetReason())
		if m.cause == nil {
			k.Abort.Reason += l.waiting() // who did not come, if that is what it is about
		}
		return m.abortRequested(node, k.Abort)
	case *pb.FromAgent_Output:
		o := k.Output
		number := l.job.Number(int(o.GetRank()))
		out := shown{
			node: node, rank: number, generation: m.generation, host: l.job.Hosts[node].Name,
			stream: stdio.Stream(o.GetStream()), size: len(o.GetData()), at: time.Unix(0, o.GetUnixNs()),
		}
		if l.opts.OnlyRanks == nil || l.opts.OnlyRanks(number) {
			out.data = o.GetData()
		}
		l.opts.Output.put(out)
	case *pb.FromAgent_NodeDone:
		m.nodeDone(node)
	case *pb.FromAgent_Signalled:
		return l.nodeSignal(node, syscall.Signal(k.Signalled.GetNumber()))
	case *pb.FromAgent_StdinTaken:
		l.stdin.acknowledge(node, k.StdinTaken)
	case *pb.FromAgent_Member:
		l.opts.Log.Debug("gossip", "from", node, "node", k.Member.GetNode(), "alive", k.Member.GetAlive())
	case *pb.FromAgent_Log:
		if k.Log.GetLevel() == levelNotice {
			fmt.Fprintf(l.notices, "mkrun: %s (node %d): %s\n", l.job.Hosts[node].Name, node, k.Log.GetText())
			return nil
		}
		l.opts.Log.Debug(k.Log.GetText(), "node", node)
	}
	return nil
}

// agentGone handles the end of an agent's process. If it had joined, its stream tells the same and
// more; if it never said hello, this is all there will be.
func (l *launcher) agentGone(node int) []order {
	if l.machine.nodes[node].joined {
		return nil
	}
	return l.machine.lost(node, "it ended before it joined the job ("+l.agents[node].gone()+")")
}

// A lost agent's process is seen to end a moment after its connection breaks. Of one that is a child of this process that
// is sure to come, however busy the machine is; another may be hidden behind an ssh that lives on.
const (
	reapDelay     = 200 * time.Millisecond
	reapDelayHere = 2 * time.Second
)

// howItEnded says how the process of an agent that is lost ended, or "" if it lives on.
func (l *launcher) howItEnded(node int, broke bool) string {
	a := l.agents[node]
	if a == nil {
		return ""
	}
	delay := reapDelay
	if broke && !l.job.Hosts[node].remote() {
		delay = reapDelayHere
	}
	select {
	case <-a.exited:
		return a.gone()
	case <-time.After(delay):
		return ""
	}
}

// waiting says what the ranks that wait in the session wait for.
func (l *launcher) waiting() string {
	fence, barrier := l.head.Waiting()
	text := ""
	if len(fence) > 0 && len(fence) < l.job.World.Size() {
		text += fmt.Sprintf("\n  the others wait in a fence for ranks %v", fence)
	}
	if len(barrier) > 0 && len(barrier) < l.job.World.Size() {
		text += fmt.Sprintf("\n  the others wait in a barrier for ranks %v", barrier)
	}
	return l.job.inUserNumbers(text)
}

// tellChecks says what was found on the nodes before any rank was started.
func (l *launcher) tellChecks() {
	for _, c := range l.machine.preflight.checks {
		e := Event{Event: "check", Code: c.Code, Severity: string(c.Severity), Text: c.Text, Reason: c.Action}
		if c.Node >= 0 {
			e.Node = &c.Node
		}
		l.events.write(e)
	}
	if l.job.ConnectOnly {
		return // the caller shows all of them
	}
	for _, line := range CheckLines(l.machine.preflight.checks, len(l.job.Hosts), doctor.Warn) {
		fmt.Fprintf(l.notices, "mkrun: check: %s\n", line)
	}
}

// say tells the user something that is about no node.
func (l *launcher) say(text string) { fmt.Fprintf(l.notices, "mkrun: %s\n", text) }

// readStdin begins to read for the ranks that want that, which are there now.
func (l *launcher) readStdin() []order {
	if l.stdin != nil || l.opts.Stdin == nil || l.machine.cause != nil {
		return nil
	}
	var nodes []int
	for rank := range l.job.World.Size() {
		node := l.job.World.NodeOf(rank)
		if l.job.Stdin.reads(l.job.Number(rank)) && (len(nodes) == 0 || nodes[len(nodes)-1] != node) {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	var err error
	generation := l.machine.generation
	l.stdin, err = startStdin(l.opts.Stdin, nodes, l.say, func(node int, m *pb.ToAgent) error {
		m.Generation = generation
		return l.head.Send(node, m)
	})
	if err != nil {
		return l.machine.fail(noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher))
	}
	return nil
}
