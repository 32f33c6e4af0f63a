// Package gather collects from each node of a job what it is made of: one rank per node describes its machine and
// reports the record over its agent. So machines are looked at in every way in which jobs are started.
package gather

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cuda"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/topology"
)

// Command is the hidden subcommand of mkrun whose ranks execute Describe.
const Command = "describe"

// Request says how each node is to look at itself. Paths are those of the node's own file system.
type Request struct {
	Options topology.LiveOptions `json:"options"`
	Measure bool                 `json:"measure"` // the links of its GPUs, too
}

// Node describes this machine as the request says.
func (r Request) Node(ctx context.Context) (*topology.Node, error) {
	n, err := topology.Live(ctx, r.Options)
	if err != nil || !r.Measure {
		return n, err
	}
	meter, err := cuda.OpenLibrary("")
	if err != nil {
		return nil, fmt.Errorf("nothing to measure with: %w", err)
	}
	return n, n.Measure(ctx, meter)
}

// Prepare fills in what a job runs that gathers. Everything else of the job (hosts, limits, environment) is the
// caller's; its world must have one rank per node.
func Prepare(job *launch.Job, r Request) error {
	run, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding what the nodes are asked: %w", err)
	}
	job.Argv, job.Run, job.Session = []string{launch.Self, Command}, run, true
	return nil
}

// Describe is what a rank executes: it describes its node.
func Describe(ctx context.Context, run []byte, _ launch.Place, _ engine.Bootstrap) ([]byte, error) {
	var r Request
	if err := json.Unmarshal(run, &r); err != nil {
		return nil, fmt.Errorf("decoding what this node is asked: %w", err)
	}
	n, err := r.Node(ctx)
	if err != nil {
		return nil, err
	}
	return encode(n)
}

// maxRecord bounds a record that is unpacked: the largest known machine needs a hundredth of it.
const maxRecord = 64 << 20

func encode(n *topology.Node) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := json.NewEncoder(z).Encode(n); err != nil {
		return nil, fmt.Errorf("encoding this node's record: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("packing this node's record: %w", err)
	}
	return b.Bytes(), nil
}

func unpack(record []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(record))
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(z, maxRecord+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxRecord {
		return nil, errors.New("is too long")
	}
	return data, nil
}

// Nodes reads the reports of a job that gathered, one per node in the job's order. A node is called what the user
// called its host.
func Nodes(job *launch.Job, reports [][]byte) ([]*topology.Node, error) {
	if len(reports) != len(job.Hosts) {
		return nil, fmt.Errorf("%d reports of %d nodes", len(reports), len(job.Hosts))
	}
	names, records := make([]string, len(reports)), make([][]byte, len(reports))
	for i, report := range reports {
		var err error
		names[i] = job.Hosts[i].Name
		if records[i], err = unpack(report); err != nil {
			return nil, fmt.Errorf("unpacking the record of %s: %w", job.Hosts[i].Name, err)
		}
	}
	nodes, err := topology.DecodeNodes(names, records)
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		n.Host, n.Origin.File = names[i], ""
	}
	topology.NameApart(nodes)
	return nodes, nil
}
