package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// answerKey is a key of the document that is derived: it is passed over.
type answerKey struct{}

// UnmarshalJSON takes anything.
func (*answerKey) UnmarshalJSON([]byte) error { return nil }

// documentIn, nodeIn, gpuIn and nicIn are Document and its parts as they are read: with the same keys,
// but without the answers.
type documentIn struct {
	Schema   string    `json:"schema"`
	Nodes    []nodeIn  `json:"nodes"`
	Rails    answerKey `json:"rails"`
	Placing  answerKey `json:"placement"`
	Findings answerKey `json:"findings"`
	Healthy  answerKey `json:"healthy"`
}

type nodeIn struct {
	Node
	GPUs     []gpuIn   `json:"gpus"`
	NICs     []nicIn   `json:"nics"`
	CPUNodes answerKey `json:"cpu_nodes"`
	Islands  answerKey `json:"islands"`
}

type gpuIn struct {
	GPU
	NVLinks answerKey `json:"nvlinks"`
	Peers   answerKey `json:"peers"`
	Nearest answerKey `json:"nearest"`
	Use     answerKey `json:"use"`
	NCCL    answerKey `json:"nccl_use"`
}

type nicIn struct {
	NIC
	Role answerKey `json:"role"`
	Why  answerKey `json:"why"`
	Rate answerKey `json:"rate"`
	GPUs answerKey `json:"gpus"`
}

// parseJSON reads mkrun's own document. Only what was read about the nodes is taken, the answers are
// made anew. Unknown keys are errors: a mistyped key must not be ignored.
func parseJSON(file string, data []byte) ([]*Node, error) {
	var doc documentIn
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return nil, jsonError(file, data, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, &ImportError{file, lineAt(data, dec.InputOffset()), "something stands behind the document's end"}
	}
	if doc.Schema != Schema {
		return nil, &ImportError{file, 1, fmt.Sprintf("schema %q: this mkrun reads %q", doc.Schema, Schema)}
	}
	if len(doc.Nodes) == 0 {
		return nil, &ImportError{file, 1, "no nodes in it"}
	}
	nodes := make([]*Node, 0, len(doc.Nodes))
	for i := range doc.Nodes {
		d := &doc.Nodes[i]
		n := d.Node
		n.GPUs, n.NICs = nil, nil
		for _, g := range d.GPUs {
			n.GPUs = append(n.GPUs, g.GPU)
		}
		for _, c := range d.NICs {
			n.NICs = append(n.NICs, c.NIC)
		}
		if err := n.check(); err != nil {
			return nil, &ImportError{file, 0, fmt.Sprintf("node %d (%s): %v", i, n.Host, err)}
		}
		nodes = append(nodes, &n)
	}
	return nodes, nil
}

// DecodeNode reads a node's record as json.Marshal writes it: what one mkrun tells another of the same build.
func DecodeNode(data []byte) (*Node, error) {
	var n Node
	if err := json.Unmarshal(data, &n); err != nil {
		return nil, fmt.Errorf("decoding a node's record: %w", err)
	}
	if err := n.check(); err != nil {
		return nil, err
	}
	return &n, nil
}

// check refuses records that point nowhere.
func (n *Node) check() error {
	for i, d := range n.PCI {
		if d.Parent < -1 || d.Parent >= i {
			return fmt.Errorf("pci[%d] (%s): parent %d is not an earlier entry of the list", i, d.ID, d.Parent)
		}
	}
	for i, g := range n.GPUs {
		if g.PCI < -1 || g.PCI >= len(n.PCI) {
			return fmt.Errorf("gpus[%d]: pci %d is not an entry of the list", i, g.PCI)
		}
		for _, l := range g.Links {
			if l.Count < 0 || l.Count > 64 || l.Down < 0 || l.Down > 64 {
				return fmt.Errorf("gpus[%d]: a GPU has 0 to 64 links", i)
			}
		}
	}
	for i, c := range n.NICs {
		if c.PCI < -1 || c.PCI >= len(n.PCI) {
			return fmt.Errorf("nics[%d]: pci %d is not an entry of the list", i, c.PCI)
		}
	}
	if m := n.Matrix; m != nil {
		if len(m.Level) != len(m.Names) {
			return fmt.Errorf("matrix: %d rows for %d names", len(m.Level), len(m.Names))
		}
		for i, row := range m.Level {
			if len(row) != len(m.Names) {
				return fmt.Errorf("matrix: row %d has %d cells for %d names", i, len(row), len(m.Names))
			}
		}
	}
	return nil
}

func jsonError(file string, data []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return &ImportError{file, lineAt(data, syntax.Offset), "the JSON is broken: " + err.Error()}
	case errors.As(err, &kind):
		return &ImportError{file, lineAt(data, kind.Offset), fmt.Sprintf("%s is a %s, but must be a %s", kind.Field, kind.Value, kind.Type)}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &ImportError{file, lineAt(data, int64(len(data))), "the JSON ends in the middle"}
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if _, key, ok := strings.Cut(text, "unknown field "); ok {
		at := bytes.Index(data, []byte(key))
		return &ImportError{file, lineAt(data, int64(max(0, at))), "unknown key " + key}
	}
	return &ImportError{file, 0, text}
}

// lineAt is the line of an offset.
func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(0, offset), int64(len(data)))], []byte("\n"))
}
