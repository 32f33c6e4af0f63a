package launch

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mkrun/mkrun/internal/ports"
	"github.com/mkrun/mkrun/internal/session"
)

// AgentConfig is what an agent is told, over its stdin, by whoever starts it: first the job's secret,
// then this as JSON behind its length. The pipe stays open: its end is a sign that the launcher is gone.
type AgentConfig struct {
	Job        string      `json:"job"`
	Generation uint32      `json:"generation"`
	Nodes      int         `json:"nodes"`
	Interfaces []string    `json:"interfaces,omitempty"`  // to take the address from, whatever the candidates
	InheritEnv bool        `json:"inherit_env,omitempty"` // ranks start from this host's environment; what they are sent is put over it
	Look       bool        `json:"look,omitempty"`        // where ranks go depends on the node's GPUs: look at them at once
	Parents    []string    `json:"parents"`               // host:port of the parent, any of which may work
	Verbose    bool        `json:"verbose"`
	Window     uint64      `json:"window"`           // bytes of its ranks' output that may be sent and not yet shown
	Ports      ports.Range `json:"ports"`            // to listen on
	Here       bool        `json:"here,omitempty"`   // launcher and agents are all on one host
	Radix      int         `json:"radix,omitempty"`  // of the tree in which agents report
	Staged     bool        `json:"staged,omitempty"` // the agent is a copy that was made for this job, and removes its file

	Hold time.Duration `json:"hold,omitempty"` // that an unfinished line of a rank's output is held back; 0: as for people at a terminal

	AgentPart                      // of this agent, or
	Parts     map[string]AgentPart `json:"parts,omitempty"` // of all that are told the same, by the name Slurm has for their node
}

// AgentPart is what differs from agent to agent.
type AgentPart struct {
	Node       int         `json:"node"`
	Name       string      `json:"name"`
	Address    string      `json:"address"`              // to bind gossip and, later, the ranks to; "": the agent finds it
	Candidates []string    `json:"candidates,omitempty"` // addresses that the launcher knows this host by
	Output     OutputFiles `json:"output"`
}

// slurmNode is the variable in which Slurm tells a process its node's name. Several nodes may be one machine.
const slurmNode = "SLURMD_NODENAME"

// choosePart takes the agent's own part.
func (c *AgentConfig) choosePart() error {
	if c.Parts == nil {
		return nil
	}
	name := os.Getenv(slurmNode)
	part, ok := c.Parts[name]
	if !ok {
		return fmt.Errorf("%s is %q, which is no node of this job", slurmNode, name)
	}
	c.AgentPart, c.Parts = part, nil
	return nil
}

// maxAgentConfig bounds what an agent reads before it knows anything: parts of ten thousand agents still fit.
const maxAgentConfig = 8 << 20

func (c AgentConfig) write(w io.Writer, secret session.Secret) error {
	if err := session.WriteSecret(w, secret); err != nil {
		return fmt.Errorf("handing the secret to node %d's agent: %w", c.Node, err)
	}
	if err := writeFrame(w, c); err != nil {
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
	if err := readFrame(r, maxAgentConfig, &c); err != nil {
		return c, secret, fmt.Errorf("reading the agent's configuration: %w", err)
	}
	return c, secret, c.choosePart()
}

// writeFrame writes JSON behind its length, at once: others may write too.
func writeFrame(w io.Writer, from any) error {
	text, err := json.Marshal(from)
	if err == nil {
		_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	}
	return err
}

// readFrame reads JSON behind its length, and nothing after it.
func readFrame(r io.Reader, most uint32, into any) error {
	var size uint32
	if err := binary.Read(r, binary.BigEndian, &size); err != nil {
		return err
	}
	if size > most {
		return fmt.Errorf("it has %d bytes; the most is %d", size, most)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
