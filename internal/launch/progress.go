package launch

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	progressAfter = time.Second            // what takes less needs no words
	progressEvery = 200 * time.Millisecond // for a clock that people see run
)

// TerminalLine returns what shows a line at the bottom of a terminal of some width; "" takes it away.
func TerminalLine(w io.Writer, width func() int) func(text string) {
	return func(text string) {
		if width := width(); width > 1 && len(text) >= width {
			text = text[:width-1] // a line that wraps could not be erased
		}
		_, _ = fmt.Fprint(w, "\r\x1b[K"+text) // there is nowhere else to say it
	}
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
