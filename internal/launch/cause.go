package launch

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/mkrun/mkrun/internal/count"
	"github.com/mkrun/mkrun/internal/report"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
)

// CauseText is the one message people see when a job failed: what, where, why, and the last words
// of the rank's stderr.
func CauseText(c *pb.Cause) string {
	var b strings.Builder
	b.WriteString("mkrun: ")
	if c.GetRank() >= 0 {
		fmt.Fprintf(&b, "rank %d on %s (node %d): ", c.GetRank(), c.GetHost(), c.GetNode())
	} else if c.GetNode() >= 0 {
		fmt.Fprintf(&b, "%s (node %d): ", c.GetHost(), c.GetNode())
	}
	b.WriteString(c.GetReason())
	if lines := c.GetLastLines(); len(lines) > 0 {
		fmt.Fprintf(&b, "\nmkrun: last %s of its stderr:", count.Of(len(lines), "line"))
		for _, l := range lines {
			b.WriteString("\n  | " + l)
		}
	}
	return b.String()
}

// causeKind is the kind's stable name in --json.
func causeKind(k pb.Cause_Kind) string { return strings.ToLower(k.String()) }

// exitCause makes the cause of a rank that ended badly; nil if it ended well.
func exitCause(e *pb.RankExited, node int, host string) *pb.Cause {
	c := &pb.Cause{Kind: pb.Cause_RANK_EXIT, Node: int32(node), Host: host, Rank: e.GetRank(), LastLines: e.GetLastLines()}
	switch {
	case e.GetExecError() != "":
		c.Kind = pb.Cause_EXEC_FAILED
		c.Reason = "could not be started: " + e.GetExecError()
		c.ExitStatus = e.GetExitCode()
	case e.GetSignal() != 0 || e.GetExitCode() != 0:
		sig := syscall.Signal(e.GetSignal())
		c.Reason = stdio.DescribeExit(int(e.GetExitCode()), sig, e.GetCoreDumped())
		c.ExitStatus = int32(stdio.ExitStatus(int(e.GetExitCode()), sig))
	default:
		return nil
	}
	return c
}

// nodeError is why a node keeps a job from being begun; its text names the node.
type nodeError struct {
	node int
	host string
	error
}

func (e *nodeError) Unwrap() error { return e.error }

// LauncherFailure is the failure of a launcher that could not do its work, or say what came of it.
func LauncherFailure(err error) *report.Failure {
	f := &report.Failure{Kind: causeKind(pb.Cause_LAUNCHER), Node: -1, Rank: -1, Reason: err.Error(), ExitStatus: stdio.StatusLauncher}
	if at := (*nodeError)(nil); errors.As(err, &at) {
		f.Node, f.Host = at.node, at.host
	}
	return f
}

// Failure is the cause as the result document shows it.
func Failure(c *pb.Cause) *report.Failure {
	return &report.Failure{
		Kind: causeKind(c.GetKind()), Node: int(c.GetNode()), Host: c.GetHost(), Rank: int(c.GetRank()),
		Reason: c.GetReason(), LastLines: c.GetLastLines(), ExitStatus: int(c.GetExitStatus()),
	}
}
