package launch

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	progressAfter = time.Second            // what takes less needs no words
	progressEvery = 200 * time.Millisecond // for a clock that people see run
)

// progress is a line at the bottom of a terminal that says what is waited for, and goes away. Notices go through it, so
// that they stand above the line.
type progress struct {
	w     io.Writer
	width func() int // of the terminal

	mu    sync.Mutex
	shown bool
}

func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.eraseLocked(); err != nil {
		return 0, err
	}
	return p.w.Write(text)
}

// show replaces the line.
func (p *progress) show(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if width := p.width(); width > 1 && len(text) >= width {
		text = text[:width-1] // a line that wraps could not be erased
	}
	_, err := fmt.Fprint(p.w, "\r\x1b[K"+text)
	p.shown = err == nil
}

// clear takes the line away.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.eraseLocked() // there is nowhere to say it
}

func (p *progress) eraseLocked() error {
	if !p.shown {
		return nil
	}
	p.shown = false
	_, err := fmt.Fprint(p.w, "\r\x1b[K")
	return err
}

// waitingFor says in one line which nodes are missing, and since when; "" if none is.
func (m *machine) waitingFor(now time.Time) string {
	missing := m.assembly.Missing()
	if len(missing) == 0 {
		return ""
	}
	const most = 5
	var names []string
	oldest := missing[0].Since
	for i, n := range missing {
		if n.Since.Before(oldest) {
			oldest = n.Since
		}
		if i < most {
			names = append(names, m.job.Hosts[n.Node].Name)
		}
	}
	if more := len(missing) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("mkrun: %d of %d nodes have joined; waiting for %s (%.1f s)",
		len(m.nodes)-len(missing), len(m.nodes), strings.Join(names, ", "), now.Sub(oldest).Seconds())
}
