package launch

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/mkrun/mkrun/internal/session"
)

// AgentConfig is what an agent is told, over its stdin, by whoever starts it: first the job's secret,
// then this as one line of JSON. The pipe stays open: its end is a sign that the launcher is gone.
type AgentConfig struct {
	Job        string      `json:"job"`
	Generation uint32      `json:"generation"`
	Node       int         `json:"node"`
	Nodes      int         `json:"nodes"`
	Name       string      `json:"name"`
	Address    string      `json:"address"`               // to bind gossip and, later, the ranks to; "": the agent finds it
	Candidates []string    `json:"candidates,omitempty"`  // addresses that the launcher knows this host by
	Interfaces []string    `json:"interfaces,omitempty"`  // to take the address from, whatever the candidates
	InheritEnv bool        `json:"inherit_env,omitempty"` // ranks start from this host's environment; what they are sent is put over it
	Output     OutputFiles `json:"output"`
	Parents    []string    `json:"parents"` // host:port of the parent, any of which may work
	Verbose    bool        `json:"verbose"`
}

// maxAgentConfig bounds what an agent reads before it knows anything: a thousand parents still fit.
const maxAgentConfig = 64 << 10

func (c AgentConfig) write(w io.Writer, secret session.Secret) error {
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encoding the configuration of node %d's agent: %w", c.Node, err)
	}
	if err := session.WriteSecret(w, secret); err != nil {
		return fmt.Errorf("handing the secret to node %d's agent: %w", c.Node, err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("configuring node %d's agent: %w", c.Node, err)
	}
	return nil
}

// readAgentConfig reads exactly what write wrote, and nothing behind it.
func readAgentConfig(r io.Reader) (AgentConfig, session.Secret, error) {
	var c AgentConfig
	secret, err := session.ReadSecret(r)
	if err != nil {
		return c, secret, fmt.Errorf("reading the job's secret from stdin: %w", err)
	}
	line, err := readLine(r, maxAgentConfig)
	if err != nil {
		return c, secret, fmt.Errorf("reading the agent's configuration from stdin: %w", err)
	}
	if err := json.Unmarshal(line, &c); err != nil {
		return c, secret, fmt.Errorf("decoding the agent's configuration: %w", err)
	}
	return c, secret, nil
}

// readLine reads up to a newline byte by byte, so that what follows stays in r.
func readLine(r io.Reader, limit int) ([]byte, error) {
	var line []byte
	b := make([]byte, 1)
	for len(line) < limit {
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		if b[0] == '\n' {
			return line, nil
		}
		line = append(line, b[0])
	}
	return nil, fmt.Errorf("no end of line within %d bytes", limit)
}
