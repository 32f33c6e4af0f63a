package stdio

import (
	"bytes"
	"slices"
	"sync"
)

// tailLine is the most bytes of one line that a Tail keeps.
const tailLine = 2 << 10

// Tail keeps the last lines of a stream in bounded memory. Of a line that was overwritten by carriage
// returns (a progress bar) only the last state counts. Safe for concurrent use.
type Tail struct {
	mu    sync.Mutex
	max   int
	lines []string // oldest first
	part  []byte   // the line being written
	cr    bool     // a carriage return came; the next byte overwrites the line unless it is \n
}

// NewTail keeps at most max lines.
func NewTail(max int) *Tail { return &Tail{max: max} }

// Write adds bytes of the stream, cut anywhere.
func (t *Tail) Write(data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(data) > 0 {
		text, end := data, byte(0)
		if i := bytes.IndexAny(data, lineEnds); i >= 0 {
			text, end = data[:i], data[i]
			data = data[i+1:]
		} else {
			data = nil
		}
		if len(text) > 0 {
			if t.cr {
				t.part, t.cr = t.part[:0], false
			}
			t.part = append(t.part, text[:min(len(text), tailLine-len(t.part))]...)
		}
		switch end {
		case '\r':
			t.cr = true
		case '\n':
			t.push()
		}
	}
}

func (t *Tail) push() {
	if t.max > 0 {
		if len(t.lines) == t.max {
			t.lines = slices.Delete(t.lines, 0, 1)
		}
		t.lines = append(t.lines, string(t.part))
	}
	t.part, t.cr = t.part[:0], false
}

// Lines returns the last lines, oldest first, an unfinished one included.
func (t *Tail) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := slices.Clone(t.lines)
	if len(t.part) > 0 && t.max > 0 {
		lines = append(lines, string(t.part))
	}
	return lines[max(0, len(lines)-t.max):]
}
