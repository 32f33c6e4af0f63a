package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/stdio"
)

const (
	// maxNotices bounds mkrun's own words that wait to be shown, in bytes; what comes beyond it is counted only.
	maxNotices = 4 << 20
	// overtakeAfter is how long a notice waits behind output that nobody takes.
	overtakeAfter = 300 * time.Millisecond
	// outputPatience is how long a job that must end waits for a terminal or pipe that takes nothing.
	outputPatience = 2 * time.Second
)

// Mux is where ranks' output goes, which is not mixed within a line, and mkrun's own words: *stdio.Mux.
type Mux interface {
	Write(rank int, host string, stream stdio.Stream, data []byte, at time.Time) error
	Note(text string) error // a line of its own
	Finish() error          // the ranks that wrote have ended
}

// Output is all that a job shows: the ranks' output, mkrun's own words and the line that says what is waited for. A
// goroutine of its own writes them, in the order in which they came, so that nobody else ever waits for a terminal or
// pipe that takes nothing. Memory is bounded by the nodes' windows and maxNotices.
type Output struct {
	mux    Mux
	show   func(text string) // the line at the bottom of the terminal; nil: there is none
	urgent io.Writer         // gets notices that wait behind output which nobody takes

	mu      sync.Mutex
	changed *sync.Cond
	wait    []shown
	bytes   int  // of the ranks' output in wait, and of what is being written
	notices int  // bytes of notices in wait
	lost    int  // notices that found no room
	watched bool // somebody looks whether notices must overtake
	line    string
	taken   func(node int, generation uint32, bytes uint64)
	closing bool
	gaveUp  *unshownError // nil: nobody who waited for the end has
	err     error
	done    chan struct{}

	written atomic.Int64 // grows with everything that was written
	failed  chan error   // gets the first error of writing what ranks wrote
	told    map[int]shownOf
}

// shown is one thing to show: a rank's output, a notice, or the end of the ranks of a generation.
type shown struct {
	what       shownKind
	node, rank int
	generation uint32
	host       string
	stream     stdio.Stream
	size       int    // of a rank's output
	data       []byte // nil: nobody wants to see it
	at         time.Time
}

type shownKind int

const (
	ofRank shownKind = iota
	notice
	generationEnd
)

// shownOf is how much of a node's output was shown in a generation of ranks, and how much of that its agent knows.
type shownOf struct {
	generation  uint32
	bytes, told uint64
}

// NewOutput begins to show; it is for one job, whose Run ends it. show sets the line at the bottom of the terminal, ""
// takes it away; it is nil where there is no terminal. urgent is where mux writes notices.
func NewOutput(mux Mux, urgent io.Writer, show func(text string)) *Output {
	o := &Output{mux: mux, urgent: urgent, show: show, done: make(chan struct{}), failed: make(chan error, 1), told: map[int]shownOf{}}
	o.changed = sync.NewCond(&o.mu)
	go o.run()
	return o
}

// Notices takes lines of mkrun's own.
func (o *Output) Notices() io.Writer { return noticeWriter{o} }

type noticeWriter struct{ o *Output }

func (w noticeWriter) Write(b []byte) (int, error) {
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	if w.o.notices+len(b) > maxNotices {
		w.o.lost++
		return len(b), nil
	}
	w.o.notices += len(b)
	w.o.putLocked(shown{what: notice, data: append([]byte(nil), b...)})
	if !w.o.watched {
		w.o.watched = true
		before := w.o.written.Load()
		time.AfterFunc(overtakeAfter, func() { w.o.overtake(before) })
	}
	return len(b), nil
}

// overtake shows the notices that wait if nothing was written since a count of `before`.
func (o *Output) overtake(before int64) {
	o.mu.Lock()
	o.watched = false
	var text []byte
	if o.written.Load() == before {
		o.wait = slices.DeleteFunc(o.wait, func(s shown) bool {
			if s.what == notice {
				text = append(text, s.data...)
			}
			return s.what == notice
		})
		o.notices = 0
	}
	again := o.notices > 0
	o.watched = again
	before = o.written.Load()
	o.mu.Unlock()
	if again {
		time.AfterFunc(overtakeAfter, func() { o.overtake(before) })
	}
	_, _ = o.urgent.Write(text) // there is nowhere else to say it
}

// acknowledge has the nodes told how much of their output was shown.
func (o *Output) acknowledge(taken func(node int, generation uint32, bytes uint64)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken = taken
}

// put shows what a rank wrote.
func (o *Output) put(s shown) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes += len(s.data)
	o.putLocked(s)
}

// generationEnded finishes the lines that ranks left open which will be started again.
func (o *Output) generationEnded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.putLocked(shown{what: generationEnd})
}

func (o *Output) putLocked(s shown) {
	o.wait = append(o.wait, s)
	o.changed.Broadcast()
}

// progress sets the line at the bottom of the terminal.
func (o *Output) progress(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line = text
	o.changed.Broadcast()
}

func (o *Output) run() {
	defer close(o.done)
	line := "" // on the terminal
	for {
		o.mu.Lock()
		for len(o.wait) == 0 && (o.show == nil || o.line == line) && !o.closing {
			o.changed.Wait()
		}
		next, last := o.line, o.closing && len(o.wait) == 0
		var s shown
		found := len(o.wait) > 0
		if found {
			s = o.wait[0]
			o.wait[0] = shown{}
			o.wait = o.wait[1:]
		}
		if s.what == notice {
			o.notices -= len(s.data)
		}
		lost := o.lost
		o.lost = 0
		idle := len(o.wait) == 0
		o.mu.Unlock()
		if last {
			next = ""
		}
		if line != "" && (found || next == "") {
			o.show("")
			line = ""
		}
		if found {
			o.write(s)
		}
		if lost > 0 {
			o.write(shown{what: notice, data: fmt.Appendf(nil, "mkrun: %d of its own messages were not shown: nobody took them\n", lost)})
		}
		if idle {
			o.tellAll()
		}
		if o.show != nil && next != line && idle {
			o.show(next)
			line = next
		}
		if last {
			o.fail(o.mux.Finish())
			return
		}
	}
}

func (o *Output) write(s shown) {
	defer o.written.Add(1)
	switch s.what {
	case notice:
		text := string(s.data)
		if n := len(text); n > 0 && text[n-1] == '\n' {
			text = text[:n-1]
		}
		_ = o.mux.Note(text) // there is nowhere else to say it
	case generationEnd:
		o.fail(o.mux.Finish())
	case ofRank:
		if s.data != nil {
			o.fail(o.mux.Write(s.rank, s.host, s.stream, s.data, s.at))
		}
		o.mu.Lock()
		o.bytes -= len(s.data)
		o.mu.Unlock()
		of := o.told[s.node]
		if of.generation != s.generation {
			of = shownOf{generation: s.generation}
		}
		of.bytes += uint64(s.size)
		o.told[s.node] = of
		if of.bytes-of.told >= minNodeWindow/2 {
			o.tell(s.node)
		}
	}
}

func (o *Output) tell(node int) {
	o.mu.Lock()
	taken := o.taken
	o.mu.Unlock()
	of := o.told[node]
	if taken == nil || of.told == of.bytes {
		return
	}
	of.told = of.bytes
	o.told[node] = of
	taken(node, of.generation, of.bytes)
}

func (o *Output) tellAll() {
	for node := range o.told {
		o.tell(node)
	}
}

func (o *Output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && o.err == nil {
		o.err = err
		o.failed <- err
	}
}

// unshownError is a job whose output nobody took to its end.
type unshownError struct {
	bytes int
	why   error
}

func (e *unshownError) Error() string {
	return fmt.Sprintf("%d bytes of the ranks' output were not shown, since nobody took them (%v)", e.bytes, e.why)
}

// ending is what may end the wait for all to be shown.
type ending struct {
	signals <-chan os.Signal
	ends    func(syscall.Signal) bool // whether a signal is a wish to end
	late    <-chan time.Time
	must    bool                 // give up when nothing was taken for outputPatience
	waits   func() (text string) // else what to say then, once; nil: nothing
}

// end waits until all is shown, and returns the first error of writing. If it gives up before, the error is an
// unshownError, and what is not shown never is: nobody waits for that again.
func (o *Output) end(e ending) error {
	o.mu.Lock()
	o.closing = true
	o.changed.Broadcast()
	gaveUp := o.gaveUp
	o.mu.Unlock()
	if gaveUp != nil {
		return gaveUp
	}
	ticker := time.NewTicker(outputPatience)
	defer ticker.Stop()
	before := o.written.Load()
	for {
		select {
		case <-o.done:
			return o.err
		case sig := <-e.signals:
			if s, ok := sig.(syscall.Signal); ok && e.ends(s) {
				return o.giveUp(signalled(s))
			}
		case <-e.late:
			return o.giveUp(errLate)
		case <-ticker.C:
			now := o.written.Load()
			if now == before && e.must {
				return o.giveUp(fmt.Errorf("for %v", outputPatience))
			}
			if now == before && e.waits != nil {
				text := fmt.Sprintf("%smkrun: all ranks have ended; %d bytes of their output wait for a reader, a signal drops them\n", e.waits(), o.unshown(nil).bytes)
				e.waits = nil
				go func() { _, _ = io.WriteString(o.urgent, text) }() // it may take nothing either
			}
			before = now
		}
	}
}

var errLate = errors.New("--timeout")

// signalled is a user's wish to end.
type signalled syscall.Signal

func (s signalled) Error() string { return syscall.Signal(s).String() }

func (o *Output) giveUp(why error) error {
	e := o.unshown(why)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gaveUp = e
	return e
}

func (o *Output) unshown(why error) *unshownError {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &unshownError{o.bytes, why}
}
