package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// answerKey is a key of the document that is derived: it is passed over.
type answerKey struct{}

// UnmarshalJSON takes anything.
func (*answerKey) UnmarshalJSON([]byte) error { return nil }

// documentIn, nodeIn, gpuIn and nicIn are Document and its parts as they are read: with the same keys,
// but without the answers.
type documentIn struct {
	Schema   string    `json:"schema"`
	Nodes    []*nodeIn `json:"nodes"`
	Rails    answerKey `json:"rails"`
	Placing  answerKey `json:"placement"`
	Findings answerKey `json:"findings"`
	Healthy  answerKey `json:"healthy"`
}

type nodeIn struct {
	Node
	PCI      rawPCI    `json:"pci"`
	GPUs     []*gpuIn  `json:"gpus"`
	NICs     []*nicIn  `json:"nics"`
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

// rawPCI is a list of PCI records that is not decoded yet.
type rawPCI []byte

// UnmarshalJSON keeps the text.
func (r *rawPCI) UnmarshalJSON(b []byte) error {
	*r = append((*r)[:0], b...)
	return nil
}

// pciLists are the PCI lists decoded before, by their text: the nodes of a fleet have the same, and it is the longest part
// of a record. Lists are never changed after they were read, so nodes may share them. Bounded: what comes later is decoded
// each time.
type pciLists struct {
	mu    sync.Mutex
	known map[string][]Device
}

const maxPCILists = 256

func (p *pciLists) get(text rawPCI) ([]Device, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, ok := p.known[string(text)]
	return list, ok
}

func (p *pciLists) put(text rawPCI, list []Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[string][]Device{}
	}
	if len(p.known) < maxPCILists {
		p.known[string(text)] = list
	}
}

// decode reads a list, once for each text. Errors have offsets in the text.
func (p *pciLists) decode(text rawPCI) ([]Device, error) {
	if len(text) == 0 {
		return nil, nil
	}
	if list, ok := p.get(text); ok {
		return list, nil
	}
	var list []Device
	if err := strict(text).Decode(&list); err != nil {
		return nil, err
	}
	makePrintable(reflect.ValueOf(list))
	p.put(text, list)
	return list, nil
}

// strict decodes JSON in which unknown keys are errors.
func strict(data []byte) *json.Decoder {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec
}

// parseJSON reads mkrun's own document. Only what was read about the nodes is taken, the answers are
// made anew. Unknown keys are errors: a mistyped key must not be ignored.
func parseJSON(file string, data []byte, lists *pciLists) ([]*Node, error) {
	var doc documentIn
	data = withoutAnswers(data)
	dec := strict(data)
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
		d := doc.Nodes[i]
		if d == nil {
			return nil, &ImportError{file, jsonLine(data, "nodes", i), fmt.Sprintf("nodes[%d] is null", i)}
		}
		n := d.Node
		n.GPUs, n.NICs = nil, nil
		var err error
		if n.PCI, err = lists.decode(d.PCI); err != nil {
			return nil, jsonErrorAt(file, data, max(0, bytes.Index(data, d.PCI)), d.PCI, err)
		}
		for k, g := range d.GPUs {
			if g == nil {
				return nil, &ImportError{file, jsonLine(data, "nodes", i, "gpus", k), fmt.Sprintf("gpus[%d] is null", k)}
			}
			n.GPUs = append(n.GPUs, g.GPU)
		}
		for k, c := range d.NICs {
			if c == nil {
				return nil, &ImportError{file, jsonLine(data, "nodes", i, "nics", k), fmt.Sprintf("nics[%d] is null", k)}
			}
			n.NICs = append(n.NICs, c.NIC)
		}
		if err := n.check(); err != nil {
			var at *recordError
			line := jsonLine(data, "nodes", i)
			if errors.As(err, &at) {
				line = jsonLine(data, "nodes", i, at.list, at.index)
			}
			return nil, &ImportError{file, line, fmt.Sprintf("node %d (%s): %v", i, n.Host, err)}
		}
		nodes = append(nodes, &n)
	}
	return nodes, nil
}

// decodeNodes reads nodes' records as json.Marshal writes them. The error is that of the first record that cannot be read,
// with its name.
func decodeNodes(names []string, records [][]byte) ([]*Node, error) {
	var lists pciLists
	nodes := make([]*Node, len(records))
	errs := make([]error, len(records))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, data := range records {
		group.Go(func() error {
			nodes[i], errs[i] = decodeNode(data, &lists)
			return nil
		})
	}
	_ = group.Wait() // errors are kept by record
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("the record of %s: %w", names[i], err)
		}
	}
	return nodes, nil
}

func decodeNode(data []byte, lists *pciLists) (*Node, error) {
	var in struct {
		Node
		PCI rawPCI `json:"pci"`
	}
	err := json.Unmarshal(data, &in)
	if err == nil {
		in.Node.PCI, err = lists.decode(in.PCI)
	}
	if err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	if err := in.check(); err != nil {
		return nil, err
	}
	in.printable()
	return &in.Node, nil
}

// jsonErrorAt is jsonError for a part of the data that begins at an offset.
func jsonErrorAt(file string, data []byte, offset int, part []byte, err error) error {
	whole := jsonError(file, part, err)
	var at *ImportError
	if errors.As(whole, &at) && at.Line > 0 {
		at.Line += lineAt(data, int64(offset)) - 1
	}
	return whole
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

// jsonLine is the line of what a path of keys and positions leads to; that of the last part that is there.
func jsonLine(data []byte, path ...any) int {
	dec := json.NewDecoder(bytes.NewReader(data))
	var skipped json.RawMessage
	for _, part := range path {
		if _, err := dec.Token(); err != nil { // the bracket
			return lineAt(data, dec.InputOffset())
		}
		for k := 0; dec.More() && part != k; k++ {
			if key, named := part.(string); named {
				if t, err := dec.Token(); err != nil || t == key {
					break
				}
			}
			if dec.Decode(&skipped) != nil {
				break
			}
		}
	}
	at := dec.InputOffset()
	for at < int64(len(data)) && bytes.IndexByte([]byte(" \t\r\n,:"), data[at]) >= 0 {
		at++
	}
	return lineAt(data, at)
}
