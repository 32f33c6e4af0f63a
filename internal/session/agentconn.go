package session

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/watchdog"
)

type stream = grpc.BidiStreamingServer[pb.FromAgent, pb.ToAgent]

// toAll is the address of a message for its receiver and all that report to it, however far.
const toAll = -1

// toNode is the address of a message for one node.
func toNode(node int) int32 { return int32(node) + 1 }

// agentConn is a parent's view of one agent, connected or gone.
type agentConn struct {
	node        int
	incarnation uint64
	host        string
	via         *agentConn // the agent through which it is reached, which is connected here; nil: it is itself
	conn        *memberConn
	out         *outbox
	watch       *watchdog.Watchdog // of the connection that its words come by
	quit        chan struct{}      // closed when the stream has ended
	broke       bool               // it ended by itself; known when it has

	mu      sync.Mutex
	gone    bool
	leaving bool   // was told to shut down
	why     string // it is lost; the first reason counts
}

// expect notes what an agent does when it gets a message, and reports whether it is there.
func (a *agentConn) expect(m *pb.ToAgent) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.GetShutdown() != nil {
		a.leaving = true
	}
	return !a.gone
}

// post queues a message, or fails the agent when it has let too many wait.
func (a *agentConn) post(m *pb.ToAgent, size int) error {
	if !a.expect(m) {
		return fmt.Errorf("the agent of node %d (%s) is gone", a.node, a.host)
	}
	if a.via != nil {
		return a.via.post(&pb.ToAgent{Generation: m.Generation, To: toNode(a.node), Kind: m.Kind}, size)
	}
	if !a.out.put(m, size) {
		a.fail(fmt.Sprintf("it let %d MiB of messages wait", a.out.limit>>20))
		return fmt.Errorf("the agent of node %d (%s) does not take its messages", a.node, a.host)
	}
	return nil
}

// fail notes why the agent is lost and cuts its connection.
func (a *agentConn) fail(reason string) {
	if a.via != nil {
		a.via.fail(fmt.Sprintf("of node %d, which reports to it: %s", a.node, reason))
		return
	}
	a.mu.Lock()
	if a.why == "" {
		a.why = reason
	}
	a.mu.Unlock()
	a.conn.cut()
}

func (a *agentConn) reason() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.why
}

// end stops the writer and reports whether the agent had been told to leave.
func (a *agentConn) end() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	if a.quit != nil {
		close(a.quit)
	}
	return a.leaving
}

// write sends what is queued, and a heartbeat whenever one is due. A message that the agent does not
// take within the silence bound fails it, unless it has an excuse.
func (a *agentConn) write(st stream, cfg parentConfig, excuse func() bool) {
	welcome := &pb.Welcome{
		Protocol:    cfg.protocol,
		Build:       cfg.build,
		HeartbeatMs: cfg.heartbeat.Milliseconds(),
		SilenceMs:   (cfg.silence + cfg.silence/2).Milliseconds(),
	}
	send := func(m *pb.ToAgent) bool {
		stuck := watchdog.NewLenient(cfg.silence, cfg.heartbeat, excuse, func() {
			a.fail(fmt.Sprintf("it took no message for %v", cfg.silence))
		})
		defer stuck.Stop()
		return st.Send(m) == nil // the reader sees the same failure, and tells
	}
	if !send(&pb.ToAgent{Kind: &pb.ToAgent_Welcome{Welcome: welcome}}) {
		return
	}
	beat := time.NewTicker(cfg.heartbeat)
	defer beat.Stop()
	for seq := uint64(1); ; {
		select {
		case <-a.quit:
			return
		case <-beat.C:
			if !send(&pb.ToAgent{Kind: &pb.ToAgent_Heartbeat{Heartbeat: &pb.Heartbeat{Seq: seq}}}) {
				return
			}
			seq++
		case <-a.out.wake:
			for m := a.out.take(); m != nil; m = a.out.take() {
				if !send(m) {
					return
				}
			}
		}
	}
}
