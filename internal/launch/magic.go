package launch

import (
	"bytes"
	"fmt"
	"io"
)

// agentReady is the first thing an agent writes to its stdout. What a login shell prints before it is skipped, so
// it is something that no shell prints.
const agentReady = "\x02mkrun-agent-ready-1\x03\n"

// maxNoise bounds what is skipped.
const maxNoise = 64 << 10

// awaitAgent reads up to agentReady. The error holds the end of what came in its place; io.EOF says that
// nothing more comes.
func awaitAgent(r io.Reader) error {
	var seen []byte
	buf := make([]byte, 4<<10)
	for {
		n, err := r.Read(buf)
		from := max(0, len(seen)-len(agentReady))
		seen = append(seen, buf[:n]...)
		if bytes.Contains(seen[from:], []byte(agentReady)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w%s", err, noise(seen))
		}
		if len(seen) > maxNoise {
			return fmt.Errorf("its shell printed more than %d KiB before mkrun came up%s", maxNoise>>10, noise(seen))
		}
	}
}

// noise quotes the end of what was printed.
func noise(seen []byte) string {
	seen = bytes.TrimSpace(seen)
	if len(seen) == 0 {
		return ""
	}
	return fmt.Sprintf(" (on stdout: %q)", seen[max(0, len(seen)-200):])
}
