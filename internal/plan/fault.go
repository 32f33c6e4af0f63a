package plan

import (
	"fmt"
	"strings"
)

// Rule names what a refused plan breaks.
type Rule string

// The rules, in the order in which they are checked.
const (
	RuleStructure Rule = "structure" // an index, size, or kind that means nothing, or a task in the wrong queue
	RuleLink      Rule = "link"      // a task or signal that crosses where it must not, or on the wrong rail
	RuleContract  Rule = "contract"  // the results are not said to be what they should be
	RuleFlag      Rule = "flag"      // waits and signals of a flag do not match
	RuleProgress  Rule = "progress"  // some number of workers would wait for ever
	RuleOrder     Rule = "order"     // two accesses to the same bytes, or to a flag, that nothing orders
	RuleUnwritten Rule = "unwritten" // bytes are read that nothing wrote before in this epoch
	RuleUnread    Rule = "unread"    // bytes are brought, or computed, that nobody reads
	RuleOutput    Rule = "output"    // a part of a result is missing or written twice
	RuleMeaning   Rule = "meaning"   // bytes of the wrong matrix, or of the wrong sum
	RuleTraffic   Rule = "traffic"   // the bytes moved are not those declared
)

// Fault is the reason for which a plan is refused: which rule it breaks, and where.
type Fault struct {
	Rule   Rule
	Rank   int    // -1 if the fault is the whole plan's
	Role   Role   // of the task
	Index  int    // of the task in the role's queue; -1 if the fault is not a task's
	Task   string // what it does, in words
	Flag   string // name of the flag, if it is about one
	Buffer string // name of the buffer, if it is about one
	Detail string // what is wrong
}

func (f *Fault) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan refused (%s): ", f.Rule)
	switch {
	case f.Rank >= 0 && f.Index >= 0:
		fmt.Fprintf(&b, "rank %d %v task %d (%s): ", f.Rank, f.Role, f.Index, f.Task)
	case f.Rank >= 0:
		fmt.Fprintf(&b, "rank %d: ", f.Rank)
	}
	if f.Flag != "" {
		fmt.Fprintf(&b, "flag %q: ", f.Flag)
	}
	if f.Buffer != "" {
		fmt.Fprintf(&b, "buffer %q: ", f.Buffer)
	}
	b.WriteString(f.Detail)
	return b.String()
}

// planFault is a fault of the whole plan.
func planFault(rule Rule, format string, args ...any) *Fault {
	return &Fault{Rule: rule, Rank: -1, Index: -1, Detail: fmt.Sprintf(format, args...)}
}

// taskFault is a fault of one task.
func (p *Plan) taskFault(rule Rule, rank int, role Role, index int, format string, args ...any) *Fault {
	return &Fault{
		Rule: rule, Rank: rank, Role: role, Index: index,
		Task:   p.Describe(p.Ranks[rank].Queues[role][index]),
		Detail: fmt.Sprintf(format, args...),
	}
}
