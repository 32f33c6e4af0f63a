package launch

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/mkrun/mkrun/internal/report"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// EventSchema names the form of the lines that --events writes. Fields are only ever added to it.
const EventSchema = "mkrun.events/1"

// Event is one line of --events: what happened in a job, for machines. docs/launch.md lists the kinds and their fields.
type Event struct {
	Schema     string  `json:"schema"`
	Time       string  `json:"time"`    // RFC 3339, by the launcher's clock
	Seconds    float64 `json:"seconds"` // since the command
	Job        string  `json:"job"`
	Generation uint32  `json:"generation"` // of the ranks; one more with each restart
	Event      string  `json:"event"`

	Node *int   `json:"node,omitempty"`
	Host string `json:"host,omitempty"`
	Rank *int   `json:"rank,omitempty"` // as the user counts them

	Nodes      int      `json:"nodes,omitempty"`        // job_start
	Ranks      int      `json:"ranks,omitempty"`        // job_start
	Argv       []string `json:"argv,omitempty"`         // job_start
	Build      string   `json:"build,omitempty"`        // job_start, node_joined
	Address    string   `json:"address,omitempty"`      // node_joined
	PID        int      `json:"pid,omitempty"`          // node_joined, rank_started
	CPUs       string   `json:"cpus,omitempty"`         // rank_started
	GPU        string   `json:"gpu,omitempty"`          // rank_started
	ExitCode   *int     `json:"exit_code,omitempty"`    // rank_exited, if no signal killed it
	Signal     int      `json:"signal,omitempty"`       // rank_exited, signal
	KilledByUs bool     `json:"killed_by_us,omitempty"` // rank_exited: it had been told to end
	About      *int     `json:"about,omitempty"`        // gossip: the node it is about
	Alive      *bool    `json:"alive,omitempty"`        // gossip
	Code       string   `json:"code,omitempty"`         // check
	Severity   string   `json:"severity,omitempty"`     // check: ok, warn or fail
	Text       string   `json:"text,omitempty"`         // notice, check
	Kind       string   `json:"kind,omitempty"`         // restart, job_end: of the failure
	Reason     string   `json:"reason,omitempty"`       // node_lost, restart, job_end
	LastLines  []string `json:"last_lines,omitempty"`   // restart, job_end: of the failed rank's stderr
	ExitStatus *int     `json:"exit_status,omitempty"`  // job_end: mkrun's
	Wait       *float64 `json:"wait_seconds,omitempty"` // restart: before the ranks are started again
}

// eventLog writes events as lines of JSON. A nil log writes nothing.
type eventLog struct {
	job   *Job
	begin time.Time

	mu         sync.Mutex
	w          *laterWriter
	generation uint32
	failed     func(error) // told once
	err        error       // after which events are lacking
}

func newEventLog(w io.Writer, job *Job, begin time.Time, failed func(error)) *eventLog {
	if w == nil {
		return nil
	}
	return &eventLog{job: job, begin: begin, w: newLaterWriter(w), generation: firstGeneration, failed: failed}
}

// write completes an event and writes it.
func (l *eventLog) write(e Event) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	now := time.Now()
	e.Schema, e.Time, e.Seconds = EventSchema, now.Format(time.RFC3339Nano), now.Sub(l.begin).Seconds()
	e.Job, e.Generation = l.job.ID, l.generation
	if e.Node != nil {
		e.Host = l.job.Hosts[*e.Node].Name
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.w.Write(append(line, '\n'))
	}
	l.lackLocked(err)
}

// lackLocked says once that events are lacking.
func (l *eventLog) lackLocked(err error) {
	if err != nil && l.err == nil {
		l.err = err
		l.failed(fmt.Errorf("writing events: %w; from here on they are lacking", err))
	}
}

// next begins another generation, because of a failure, after a pause.
func (l *eventLog) next(cause *pb.Cause, pause time.Duration) {
	if l == nil {
		return
	}
	e := failureEvent("restart", Failure(cause))
	wait := pause.Seconds()
	e.Wait = &wait
	l.write(e)
	l.mu.Lock()
	l.generation++
	l.mu.Unlock()
}

// heard writes the event that a message of a node's agent is, if it is one.
func (l *eventLog) heard(node int, m *pb.FromAgent) {
	if l == nil {
		return
	}
	rank := func(n int32) *int { number := l.job.Number(int(n)); return &number }
	e := Event{Node: &node}
	switch k := m.Kind.(type) {
	case *pb.FromAgent_Hello:
		e.Event, e.Build, e.PID = "node_joined", k.Hello.GetBuild(), int(k.Hello.GetPid())
		if addresses := k.Hello.GetAddresses(); len(addresses) > 0 {
			e.Address = addresses[0]
		}
	case *pb.FromAgent_RankStarted:
		s := k.RankStarted
		e.Event, e.Rank, e.PID, e.CPUs, e.GPU = "rank_started", rank(s.GetRank()), int(s.GetPid()), s.GetCpus(), s.GetGpu()
	case *pb.FromAgent_Attached:
		e.Event, e.Rank = "rank_attached", rank(k.Attached.GetRank())
	case *pb.FromAgent_Report:
		e.Event, e.Rank = "rank_reported", rank(k.Report.GetRank())
	case *pb.FromAgent_RankExited:
		x := k.RankExited
		e.Event, e.Rank, e.Signal, e.KilledByUs = "rank_exited", rank(x.GetRank()), int(x.GetSignal()), x.GetKilledByUs()
		e.Reason = x.GetExecError()
		if x.GetSignal() == 0 {
			code := int(x.GetExitCode())
			e.ExitCode = &code
		}
	case *pb.FromAgent_Member:
		about, alive := int(k.Member.GetNode()), k.Member.GetAlive()
		e.Event, e.About, e.Alive = "gossip", &about, &alive
	case *pb.FromAgent_NodeDone:
		e.Event = "node_done"
	case *pb.FromAgent_Log:
		if k.Log.GetLevel() != levelNotice {
			return
		}
		e.Event, e.Text = "notice", k.Log.GetText()
	default:
		return
	}
	l.write(e)
}

// pass writes an event of a log that is kept elsewhere.
func (l *eventLog) pass(line []byte) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	var e Event
	if json.Unmarshal(line, &e) == nil { // it is the head's own
		l.generation = e.Generation
	}
	_, err := l.w.Write(line)
	l.lackLocked(err)
}

// flush waits until all events so far are written. The error is why not all were.
func (l *eventLog) flush() error {
	if l == nil {
		return nil
	}
	return l.settle(l.w.flush)
}

// close ends a log. The error is why not all was written.
func (l *eventLog) close() error {
	if l == nil {
		return nil
	}
	return l.settle(l.w.close)
}

func (l *eventLog) settle(write func(patience time.Duration) error) error {
	l.mu.Lock()
	err := l.err
	l.mu.Unlock()
	if err != nil {
		return err
	}
	err = write(outputPatience)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	return l.err
}

// end writes the last event, for a status that mkrun ends with and the failure that it is of, if it is of one. The error is why
// it could not be written; after one that was known before, there is no other.
func (l *eventLog) end(status int, failure *report.Failure) error {
	if l == nil || l.lacks() {
		return nil
	}
	e := failureEvent("job_end", failure)
	e.ExitStatus = &status
	l.write(e)
	return l.close()
}

// lacks reports whether some event could not be written.
func (l *eventLog) lacks() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// End writes the last event: how mkrun ends, once all else was said and written. Without events it does nothing.
func (o *Outcome) End(status int, failure *report.Failure) error {
	return o.events.end(status, failure)
}

// failureEvent tells of a failure; its rank is as the user counts them. Without one it tells of none.
func failureEvent(what string, f *report.Failure) Event {
	e := Event{Event: what}
	if f == nil {
		return e
	}
	e.Kind, e.Reason, e.LastLines = f.Kind, f.Reason, f.LastLines
	if node := f.Node; node >= 0 {
		e.Node = &node
	}
	if rank := f.Rank; rank >= 0 {
		e.Rank = &rank
	}
	return e
}
