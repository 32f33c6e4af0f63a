package stdio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// FrameSize is the most bytes a pump hands over at once; a longer line is cut there.
	FrameSize = 64 << 10
	// FlushAfter is how long the unfinished rest of a line is held back where people wait for it: a prompt, or dots.
	FlushAfter = 200 * time.Millisecond
	// FlushUnseen is the same where no terminal shows it. A program that prints much often stops in the middle of a line, for
	// as long as a busy machine gives it no time; its lines stay whole beside other ranks' all the same.
	FlushUnseen = 5 * time.Second

	lineEnds = "\r\n"
)

// Pump reads one stream of one rank and hands it on in frames of at most FrameSize bytes. A frame
// is one or more whole lines, each ended by \n or \r, or an unfinished rest: the start (or a further
// piece) of a line that grew past FrameSize, was not completed in time, or ended with the stream.
// Frames that do not satisfy Whole are such rests.
type Pump struct {
	r    *os.File
	emit func(data []byte, at time.Time)
	tail *Tail // may be nil
	hold time.Duration

	mu      sync.Mutex
	drainBy time.Time // zero: until end of file
}

// Whole reports whether a frame ends with the end of a line.
func Whole(frame []byte) bool {
	return len(frame) > 0 && bytes.ContainsAny(frame[len(frame)-1:], lineEnds)
}

// NewPump makes a pump over the reading end of a pipe, which must be in non-blocking mode.
// emit gets each frame, which it may keep, and the time its first byte was read; while it blocks nothing is
// read, so the writer is held back. tail, if not nil, gets every byte before emit does. An unfinished line is held back for
// a time: FlushAfter, or FlushUnseen.
func NewPump(r *os.File, hold time.Duration, emit func(data []byte, at time.Time), tail *Tail) *Pump {
	return &Pump{r: r, hold: hold, emit: emit, tail: tail}
}

// Drain ends Run at the given time, even if a process still holds the pipe open; what is in the pipe at
// that moment is still delivered. Safe from any goroutine.
func (p *Pump) Drain(by time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drainBy = by
	// An error means that the file is closed: then Run has ended already.
	_ = p.r.SetReadDeadline(by)
}

// Run reads until the end of the stream or until Drain's time, and closes the pipe.
func (p *Pump) Run() error {
	defer p.r.Close()
	buf := make([]byte, 0, FrameSize)
	var since time.Time // when buf[0] was read
	remaining := -1     // bytes still to read once the drain limit has passed; -1: no limit yet

	send := func(n int) {
		frame := bytes.Clone(buf[:n])
		if p.tail != nil {
			p.tail.Write(frame)
		}
		p.emit(frame, since)
		buf = buf[:copy(buf, buf[n:])]
	}
	finish := func() {
		if len(buf) > 0 {
			send(len(buf))
		}
	}

	for {
		if remaining == 0 {
			finish()
			return nil
		}
		free := buf[len(buf):cap(buf)]
		if remaining > 0 {
			free = free[:min(len(free), remaining)]
		}
		if err := p.arm(len(buf) > 0, since, remaining >= 0); err != nil {
			return fmt.Errorf("set a read deadline on a rank's output: %w", err)
		}
		n, err := p.r.Read(free)
		now := time.Now()
		if n > 0 {
			if len(buf) == 0 {
				since = now
			}
			buf = buf[:len(buf)+n]
			if remaining > 0 {
				remaining -= n
			}
			if end := bytes.LastIndexAny(buf[len(buf)-n:], lineEnds); end >= 0 {
				send(len(buf) - n + end + 1)
				since = now
			}
			if len(buf) == cap(buf) {
				send(len(buf))
			}
		}
		if len(buf) > 0 && now.Sub(since) >= p.hold {
			send(len(buf))
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			finish()
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			if p.drained(now) {
				if remaining, err = p.buffered(); err != nil {
					return fmt.Errorf("ask how much of a rank's output is left: %w", err)
				}
			}
		default:
			finish()
			return fmt.Errorf("read a rank's output: %w", err)
		}
	}
}

// arm sets the deadline of the next read: when the rest must be flushed or the drain limit passes.
func (p *Pump) arm(rest bool, since time.Time, unlimited bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	by := p.drainBy
	if rest {
		if flush := since.Add(p.hold); by.IsZero() || flush.Before(by) {
			by = flush
		}
	}
	if unlimited {
		by = time.Time{}
	}
	return p.r.SetReadDeadline(by)
}

func (p *Pump) drained(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.drainBy.IsZero() && !now.Before(p.drainBy)
}

// buffered is the number of bytes waiting in the pipe.
func (p *Pump) buffered() (n int, err error) {
	conn, err := p.r.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := conn.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); cerr != nil {
		return 0, cerr
	}
	return n, err
}
