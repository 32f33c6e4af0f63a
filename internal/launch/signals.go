package launch

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
)

// ParseSignals reads names of signals such as WINCH or SIGALRM.
func ParseSignals(names []string) ([]syscall.Signal, error) {
	var list []syscall.Signal
	for _, name := range names {
		upper := strings.ToUpper(strings.TrimSpace(name))
		if !strings.HasPrefix(upper, "SIG") {
			upper = "SIG" + upper
		}
		s := unix.SignalNum(upper)
		switch s {
		case 0:
			return nil, fmt.Errorf("%q is no signal; give names such as WINCH", name)
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGURG:
			return nil, fmt.Errorf("%s cannot be passed on as it comes", upper)
		}
		list = append(list, s)
	}
	return list, nil
}

// userSignal takes in a signal that came at a time: one that means nothing to mkrun itself is passed on in a moment, others at
// once, behind those.
func (l *launcher) userSignal(sig os.Signal, at time.Time) []order {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return nil
	}
	if s != syscall.SIGTSTP && s != syscall.SIGCONT && !l.endsPrograms(s) {
		if l.passing.add(s) {
			l.passAt = time.After(gatherFor)
		}
		return nil
	}
	return append(l.passGathered(), l.actOn(s, at)...)
}

// passGathered passes on what has come.
func (l *launcher) passGathered() (orders []order) {
	l.passAt = nil
	for _, s := range l.passing.take() {
		l.events.write(Event{Event: "signal", Signal: int(s)})
		orders = append(orders, l.machine.signal(int(s))...)
	}
	return orders
}

// actOn acts on a signal that came at a time. The first one that ends programs gives the ranks their grace, the next one is
// SIGTERM to those that are left, the third SIGKILL.
func (l *launcher) actOn(s syscall.Signal, at time.Time) []order {
	if l.endsPrograms(s) && !l.endings.add(s, at) {
		return nil
	}
	l.events.write(Event{Event: "signal", Signal: int(s)})
	switch {
	case s == syscall.SIGTSTP:
		if !l.opts.stays {
			l.stopAt = time.After(stopDelay)
		}
		return l.machine.signal(int(s))
	case s == syscall.SIGCONT:
		l.stopAt = nil
		return l.machine.signal(int(s))
	}
	switch {
	case l.endings.count == 1 && l.told: // whoever signalled the nodes signals all
		l.endings.first = syscall.SIGTERM
		fmt.Fprintf(l.notices, "mkrun: %v: the job ends already (again: SIGKILL)\n", s)
		return nil
	case l.endings.count == 1:
		if !l.machine.starting {
			fmt.Fprintf(l.notices, "mkrun: %v: no rank was started yet; the job ends\n", s)
			return l.machine.interrupt(s)
		}
		next := "again: SIGTERM, a third time: SIGKILL"
		if s == syscall.SIGTERM {
			next = "again: SIGKILL"
		}
		fmt.Fprintf(l.notices, "mkrun: %v: %s (%s)\n", s, l.machine.passedOn(), next)
		return l.machine.interrupt(s)
	case l.endings.count == 2 && l.endings.first != syscall.SIGTERM && l.machine.starting:
		fmt.Fprintf(l.notices, "mkrun: %v again: SIGTERM to %s\n", s, l.machine.reached())
		return l.machine.signal(int(syscall.SIGTERM))
	}
	fmt.Fprintf(l.notices, "mkrun: %v once more: SIGKILL to %s\n", s, l.machine.reached())
	l.giveUp = time.After(killLimit)
	return l.machine.kill()
}

// nodeSignal ends the job since one of its agents was sent a signal, of which the user may know nothing.
func (l *launcher) nodeSignal(node int, s syscall.Signal) []order {
	if l.machine.cause != nil || !l.endsPrograms(s) {
		return nil
	}
	l.told = true
	l.events.write(Event{Event: "signal", Node: &node, Signal: int(s)})
	c := l.machine.nodeCause(pb.Cause_USER_SIGNAL, node, fmt.Sprintf(
		"its processes were sent a signal (%v), as service managers do, and batch systems when a job is cancelled or its time is over", s))
	c.ExitStatus = int32(stdio.StatusOfSignal(s))
	fmt.Fprintf(l.notices, "mkrun: %s (node %d) was sent a signal (%v): %s\n",
		l.job.Hosts[node].Name, node, s, l.machine.passedOn())
	return l.machine.endedBy(s, c)
}

// wishes reports whether a signal that comes now is another wish of the user to end.
func (l *launcher) wishes(s syscall.Signal) bool {
	return l.endsPrograms(s) && l.endings.add(s, time.Now())
}

func (l *launcher) endsPrograms(s syscall.Signal) bool { return endsPrograms(s, l.opts.Forward) }

// endsPrograms reports whether a signal is the user's wish that the job ends; forwarded are those that only ranks get.
func endsPrograms(s syscall.Signal, forwarded []syscall.Signal) bool {
	switch s {
	case syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGCONT:
		return false
	}
	return !slices.Contains(forwarded, s)
}

// alive are the ranks that an order reaches, by the user's numbers: those that were told to start and have not ended,
// also if word of their start is still on its way.
func (m *machine) alive() (numbers []int) {
	for rank, r := range m.ranks {
		if m.starting && r.exit == nil {
			numbers = append(numbers, m.job.Number(rank))
		}
	}
	slices.Sort(numbers)
	return numbers
}

// reached names those.
func (m *machine) reached() string {
	switch alive := m.alive(); len(alive) {
	case 0:
		return "no rank, since none runs"
	case 1:
		return fmt.Sprintf("rank %d", alive[0])
	case len(m.ranks):
		return "all ranks"
	default:
		return "ranks " + ranges(alive)
	}
}

// passedOn says what the user's first wish to end the job comes to.
func (m *machine) passedOn() string {
	have := "have"
	switch len(m.alive()) {
	case 0:
		return "no rank runs any more; the job ends"
	case 1:
		have = "has"
	}
	return fmt.Sprintf("passed on to %s, which %s %v to end", m.reached(), have, m.job.Grace)
}

// ranges writes sorted numbers as 0-3,7.
func ranges(numbers []int) string {
	var b strings.Builder
	for i := 0; i < len(numbers); {
		k := i
		for k+1 < len(numbers) && numbers[k+1] == numbers[k]+1 {
			k++
		}
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(strconv.Itoa(numbers[i]))
		if k > i {
			b.WriteString("-" + strconv.Itoa(numbers[k]))
		}
		i = k + 1
	}
	return b.String()
}

// someEndedWell reports whether a rank ended with status 0 and others go on.
func (m *machine) someEndedWell() bool {
	return slices.ContainsFunc(m.ranks, func(r rankState) bool { return r.exit != nil && r.exit.GetExitCode() == 0 && r.exit.GetSignal() == 0 }) &&
		slices.ContainsFunc(m.ranks, func(r rankState) bool { return r.exit == nil })
}
