// Package keeper starts the ranks of one node so that nothing of them can stay behind.
//
// An agent starts one keeper process (Prepare, or Start itself); the keeper starts the ranks (Main). Agent and keeper are
// joined by a socket and are both subreapers: an orphan below the keeper becomes the keeper's child, and
// when the keeper dies the agent's. Whichever of the two dies, kill -9 included, the other sees the
// socket close and kills every descendant; so it does when the other is stopped and says nothing for Spec.Silence: grandchildren, daemons and processes in sessions of their own.
// The keeper leads a session of its own, so a descendant of it can never be in the agent's session: that
// is how an agent tells what was below a dead keeper from its own children.
//
// Nothing is ever killed by name. Output of ranks goes through pipes straight to the agent.
//
// What cannot be guaranteed without a cgroup of one's own:
//   - If agent and keeper are killed at the same instant, the ranks die with the keeper (PDEATHSIG), but what they
//     started falls to the next subreaper above. A launcher on the same host that is one can KillDescendants; init
//     does not. The keeper's name differs from the agent's, so that killing by name does not hit both.
//   - If the keeper is killed while the agent is stopped, the same goes for what the ranks had started, until the agent
//     goes on. (A stopped keeper goes on when the agent is killed.)
//   - Processes of another user (set-user-ID programs), or stuck in the kernel, cannot be killed; Wait names them.
//     Such programs also lose PDEATHSIG.
//   - A process that asks another service to start something (at, systemd-run, a container daemon) has no
//     descendant there.
//   - A keeper or agent that the kernel denies threads (a bomb that used up the user's processes) may die of it;
//     the other still kills.
package keeper

import (
	"os"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/stdio"
)

// CommandName is the hidden subcommand of mkrun whose body is Main: Prepare runs `<self> keeper`.
const CommandName = "keeper"

// The drain limits are how long after a rank's end its output is still read, if processes it left behind
// hold the pipes open. A failure is told sooner, since the whole job waits to be aborted. When the last
// rank has ended and its output is drained, what is left is killed.
const (
	DrainLimit       = 2 * time.Second
	FailedDrainLimit = 500 * time.Millisecond
)

// RankSpec is one process to start.
type RankSpec struct {
	Rank, LocalRank int
	Argv            []string
	Env             []string   // whole environment, NAME=value
	Dir             string     // working directory; "" is the agent's
	Files           []*os.File // become descriptors 3, 4, ... of the rank; the caller may close them after Start
	Stdin           *os.File   // nil: /dev/null
	CPUs            []int      // that it may run on; none: as its keeper
}

// Spec is what one keeper looks after: the ranks of one node in one generation of a job.
type Spec struct {
	Job        string
	Generation uint32
	Ranks      []RankSpec
	AbortGrace time.Duration // between SIGTERM and SIGKILL when the agent dies
	Grace      time.Duration // between SIGTERM and SIGKILL when Start's context ends
	Self       string        // path of the mkrun binary
	Keeper     *Spare        // that was prepared; nil: one is started
	LastLines  int           // lines of stderr to keep for Exited
	Heartbeat  time.Duration // how often agent and keeper say that they live; only looked at if there is a
	Silence    time.Duration // of the keeper, after which it is given up; half as long again of the agent; 0: any
	Hold       time.Duration // that an unfinished line of output is held back; 0: stdio.FlushAfter
}

// Sink takes the ranks' output.
type Sink interface {
	// Output gets whole lines, or an unfinished rest (stdio.Whole tells), read at the given time. Calls for
	// one rank and stream come in order and one at a time; different ones come concurrently. The sink may
	// keep data. While a call blocks, that stream of that rank is not read.
	Output(rank int, stream stdio.Stream, data []byte, at time.Time)

	// Ended says that a rank has ended, and that what its pipes still give is waited for until `by`: from then on a call of
	// Output must not block. Its Exited comes when all was taken.
	Ended(rank int, by time.Time)
}

// Event is a Started or an Exited.
type Event interface{ event() }

// Started says that a rank's program runs. No rank is called started unless all of the node were.
type Started struct {
	Rank, PID int
	At        time.Time
}

// Exited says how a rank ended, after all of its output was delivered. Every rank gets exactly one.
type Exited struct {
	Rank       int
	Code       int            // 0..255; meaningless when Signal != 0
	Signal     syscall.Signal // that killed it, or 0
	CoreDumped bool
	ExecError  string   // it could not be started: why (Code is then 125, 126 or 127)
	KilledByUs bool     // Stop, Kill, a failed start of another rank or the loss of the keeper came first
	LastLines  []string // of its stderr
}

func (Started) event() {}
func (Exited) event()  {}
