package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/ports"
	"github.com/mkrun/mkrun/internal/session"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/version"
)

// RankCommand is the hidden subcommand of mkrun whose body is Rank.
const RankCommand = "rank"

// attachLimit bounds how long a rank waits for its agent's first answer.
const attachLimit = 30 * time.Second

// Place is where a rank runs.
type Place struct {
	Rank    int
	Address string // of its node, to listen on
	NICs    engine.NICs
	Ports   ports.Range
	Failed  func(report []byte, err error) // ends the job for what made the rank fail, before the rank ends
}

// Execute runs what a job is for on one rank and returns the rank's report, also, as far as it goes, of a run that failed.
// When ctx ends it returns soon.
type Execute func(ctx context.Context, run []byte, at Place, boot engine.Bootstrap) (report []byte, err error)

// Rank is the body of a rank process of an operator: it attaches to its agent, executes, and reports. A
// failure of its own it tells the head before it leaves, so that the reason is known everywhere.
// It returns the exit status.
func Rank(ctx context.Context, stderr io.Writer, execute Execute) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	go func() {
		select {
		case s := <-signals:
			cancel(endedBySignal(s.(syscall.Signal)))
		case <-ctx.Done():
		}
	}()
	rank, err := attach(ctx)
	if err != nil {
		fmt.Fprintf(stderr, "mkrun rank: %v\n", err)
		return stdio.StatusLauncher
	}
	defer rank.Close()
	go func() {
		if cause, ok := <-rank.Aborted(); ok {
			cancel(fmt.Errorf("%w: %s", errAborted, cause.GetReason()))
		}
	}()
	info := rank.Info()
	at := Place{Rank: info.Rank, NICs: nearNICs(info.Network)}
	if at.Ports, err = ports.OfRank(); err != nil {
		return leave(ctx, rank, stderr, err)
	}
	for _, n := range info.Roster.GetNodes() {
		if first := int(n.GetFirstRank()); info.Rank >= first && info.Rank < first+int(n.GetRanks()) {
			at.Address = n.GetAddress()
		}
	}
	status := 0 // once it is known
	at.Failed = func(report []byte, err error) {
		if status != 0 {
			return // a consequence of what was told
		}
		if report != nil {
			// What the rank had found out is worth having, whatever ended it. Where it cannot be told any more, the reason is what counts.
			tell, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
			_ = rank.Report(tell, report)
			cancel()
		}
		status = leave(ctx, rank, stderr, err)
	}
	report, err := execute(ctx, info.Run, at, rank)
	if err != nil {
		at.Failed(report, err)
		return status
	}
	return leave(ctx, rank, stderr, rank.Report(ctx, report))
}

var errAborted = errors.New("the job was aborted")

// endedBySignal ends a rank that was told to leave.
type endedBySignal syscall.Signal

func (s endedBySignal) Error() string { return syscall.Signal(s).String() }

func attach(ctx context.Context) (*session.Rank, error) {
	control, broker, err := session.InheritedFiles()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, attachLimit)
	defer cancel()
	return session.Attach(ctx, control, broker, version.Get().BuildID())
}

// leave turns how a rank's run ended into its exit status, and tells the head if it is the first to know.
func leave(ctx context.Context, s *session.Rank, stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	status := stdio.StatusLauncher
	var wait *engine.WaitError
	timedOut := errors.As(err, &wait) || errors.Is(err, context.DeadlineExceeded)
	if timedOut {
		status = stdio.StatusTimeout // worth telling, even if others have complained of the consequences by now
	} else {
		var bySignal endedBySignal
		var aborted *session.AbortedError
		why := context.Cause(ctx)
		switch {
		case errors.As(why, &bySignal):
			return stdio.StatusOfSignal(syscall.Signal(bySignal))
		case errors.Is(why, errAborted), errors.As(err, &aborted):
			return exitAborted
		}
	}
	// A network's failure may be the death of a peer, who has a better story to tell.
	var lost *engine.PeerError
	var network *engine.NetError
	reason := err.Error()
	if wait != nil {
		reason += whereabouts(s.Info(), wait.Owing)
	}
	complaint := session.Complaint{Reason: reason, ExitStatus: status, PeerLost: errors.As(err, &lost) || errors.As(err, &network)}
	// The context may be what failed; the request must go out all the same.
	tell, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	if tellErr := s.RequestAbort(tell, complaint); tellErr != nil {
		fmt.Fprintf(stderr, "mkrun rank: %v\nmkrun rank: %v\n", err, tellErr)
	}
	return status
}

// whereabouts says of ranks on other nodes where they are, for the end of a message: "; rank 2 is on b (node 1)". Of many
// the first few are named.
func whereabouts(me session.RankInfo, ranks []int) string {
	const most = 4
	var text strings.Builder
	named := 0
	for _, rank := range ranks {
		for _, n := range me.Roster.GetNodes() {
			has := func(rank int) bool {
				return rank >= int(n.GetFirstRank()) && rank < int(n.GetFirstRank()+n.GetRanks())
			}
			if !has(rank) || has(me.Rank) {
				continue
			}
			if named++; named <= most {
				fmt.Fprintf(&text, "; rank %d is on %s (node %d)", rank, n.GetHostname(), n.GetIndex())
			}
		}
	}
	return text.String()
}
