package launch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/topology"
)

// crew is the ranks of an agent's node in one generation of the job. All of it is gone before the next one begins.
type crew struct {
	generation uint32
	nodes      int // of the job
	server     *session.RankServer
	start      *pb.Start
	group      *keeper.Group  // nil until the ranks were started
	over       bool           // all ranks have ended, and the parent was told
	serving    sync.WaitGroup // of the ranks' sockets
	pmi        []*pmiSocket   // of MPI programs
	endPMI     func()         // ends their waits for each other
	pmiMu      sync.Mutex
	pmiEnds    map[int]pmiEnd // by rank
	window     *outputWindow  // of their output
	files      rankFiles      // their output, as well
	stdin      *stdinFeed     // their input; nil: none reads any
	seats      []seat         // where they are, in their order; nil: nobody asked
	look       func() (*topology.Node, error)
	link       *session.AgentLink
	log        *slog.Logger
}

// begin starts the ranks.
func (c *crew) begin(ctx context.Context, a *agent, start *pb.Start) error {
	c.start, c.look, c.link, c.log = start, a.look, a.link, a.log
	heartbeat, silence := a.link.Bounds()
	spec := keeper.Spec{
		Job: a.cfg.Job, Generation: c.generation,
		AbortGrace: c.abortGrace(),
		Grace:      time.Duration(start.GetGraceMs()) * time.Millisecond,
		LastLines:  lastLines,
		Heartbeat:  heartbeat, Silence: silence,
		Hold: a.cfg.Hold,
		Self: selfBinary,
	}
	for _, r := range start.GetRanks() {
		r.Env = slices.Concat(start.GetEnv(), r.GetEnv())
	}
	if err := c.checkOpenFiles(start.GetRanks(), a.cfg.Output.Dir != ""); err != nil {
		return err
	}
	if err := refuseOpenMPI(start.GetRanks()); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the mkrun binary: %w", err)
	}
	if a.cfg.Staged {
		self = selfBinary // it has no other name any more
	}
	sockets := map[int]*session.RankSockets{}
	pmiSockets := map[int]*pmiSocket{}
	abandon := func() {
		for _, s := range sockets {
			s.Close()
		}
		for _, s := range pmiSockets {
			s.close()
		}
		c.stdin.close()
	}
	for _, r := range start.GetRanks() {
		rank := keeper.RankSpec{Rank: int(r.GetRank()), LocalRank: int(r.GetLocalRank()), Argv: convert[string](r.GetArgv()), Env: convert[string](r.GetEnv()), Dir: string(r.GetDir())}
		if a.cfg.InheritEnv {
			rank.Env = overlay(BaseEnv(os.Environ()), rank.Env)
		}
		rank.Env = withDefaults(rank.Env, convert[string](r.GetEnvDefault()))
		if r.GetSession() {
			if rank.Argv[0] == Self {
				rank.Argv[0] = self
			}
			s, err := session.NewRankSockets()
			if err != nil {
				abandon()
				return err
			}
			sockets[rank.Rank] = s
			rank.Files = []*os.File{s.RankSession, s.RankBroker}
			rank.Env = append(rank.Env, session.EnvSessionFD+"=3", session.EnvBrokerFD+"=4")
		}
		if r.GetPmi() {
			s, err := newPMISocket()
			if err != nil {
				abandon()
				return err
			}
			pmiSockets[rank.Rank] = s
			rank.Files = append(rank.Files, s.theirs)
			rank.Env = append(rank.Env, "PMI_FD="+strconv.Itoa(2+len(rank.Files)))
		}
		if r.GetStdin() {
			if c.stdin == nil {
				c.stdin = newStdinFeed(func(taken uint64, closed bool) {
					c.send(&pb.FromAgent{Kind: &pb.FromAgent_StdinTaken{StdinTaken: &pb.StdinTaken{Bytes: taken, Closed: closed}}})
				})
			}
			if rank.Stdin, err = c.stdin.add(); err != nil {
				abandon()
				return fmt.Errorf("making a pipe for the input of rank %d: %w", rank.Rank, err)
			}
		}
		spec.Ranks = append(spec.Ranks, rank)
	}
	if err := c.place(spec.Ranks); err != nil {
		abandon()
		return err
	}
	if c.files, err = a.cfg.Output.open(spec.Ranks, c.generation > a.cfg.Generation); err != nil {
		abandon()
		return err
	}
	spec.Keeper, a.keeper = a.keeper, nil
	// The group outlives ctx: when the agent ends, end sees to it.
	if c.group, err = keeper.Start(context.WithoutCancel(ctx), spec, c); err != nil {
		abandon()
		c.files.close()
		return err
	}
	c.stdin.started()
	for rank, s := range sockets {
		s.CloseRankEnds()
		c.serving.Go(func() {
			if err := c.server.Serve(rank, s.Session, s.Broker); err != nil {
				c.log.Warn("a rank's session", "rank", rank, "error", err)
			}
		})
	}
	c.servePMI(pmiSockets, a.cfg.Job)
	return nil
}

func (c *crew) abortGrace() time.Duration {
	return time.Duration(c.start.GetAbortGraceMs()) * time.Millisecond
}

// events are what happens to the ranks; they end when all ranks have. Nil while there is nothing more to hear.
func (c *crew) events() <-chan keeper.Event {
	if c == nil || c.group == nil || c.over {
		return nil
	}
	return c.group.Events()
}

// stop ends the ranks because the job has failed.
func (c *crew) stop() { c.group.Stop(c.abortGrace()) }

// end makes sure that nothing of the ranks is left, whatever ended the agent. An agent that was dismissed while
// ranks run was told to kill them.
func (c *crew) end(dismissed bool) {
	if c.group == nil {
		return
	}
	c.window.close()
	if dismissed {
		c.group.Kill()
	} else {
		c.stop()
	}
	go func() {
		for range c.group.Events() { // nobody is told any more
		}
	}()
	if err := c.group.Wait(); err != nil {
		c.log.Warn("ending the ranks", "error", err)
	}
}

// close lets go of what served ranks that have ended.
func (c *crew) close() {
	c.server.Close()
	if c.endPMI != nil {
		c.endPMI()
	}
	for _, s := range c.pmi {
		s.close()
	}
	c.serving.Wait()
	c.stdin.close()
	c.window.close()
	c.files.close()
}

// Ended lets a rank's last output pass.
func (c *crew) Ended(rank int, by time.Time) { c.window.end(rank, by) }

// Output sends a rank's output up. While nobody takes it where it is shown, the rank is held back.
func (c *crew) Output(rank int, stream stdio.Stream, data []byte, at time.Time) {
	if err := c.files.write(rank, stream, data); err != nil {
		c.notice(err.Error() + "; from here on the file lacks output")
	}
	c.window.enter(rank, len(data))
	c.send(&pb.FromAgent{Kind: &pb.FromAgent_Output{Output: &pb.Output{
		Rank: int32(rank), Stream: int32(stream), Data: data, UnixNs: at.UnixNano()}}})
}

// notice tells the user something about this node.
func (c *crew) notice(text string) {
	c.send(&pb.FromAgent{Kind: &pb.FromAgent_Log{Log: &pb.AgentLog{Level: levelNotice, Text: text}}})
}

// seatOf is where a rank is; the zero seat if nobody asked.
func (c *crew) seatOf(rank int) seat {
	for i, r := range c.start.GetRanks() {
		if int(r.GetRank()) == rank && i < len(c.seats) {
			return c.seats[i]
		}
	}
	return seat{}
}

// send tells the parent something about these ranks, from any goroutine.
func (c *crew) send(m *pb.FromAgent) {
	m.Generation = c.generation
	if err := c.link.Send(context.Background(), m); err != nil {
		c.log.Debug("telling the parent", "error", err)
	}
}
