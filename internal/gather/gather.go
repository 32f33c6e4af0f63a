// Package gather collects from each node of a job what it is made of: one rank per node describes its machine and
// reports the record over its agent. So machines are looked at in every way in which jobs are started.
package gather

import (
	"context"
	"encoding/json"
	"fmt"

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
		return nil, fmt.Errorf("nothing to measure with: %w ('make cuda' builds it)", err)
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
	return n.Pack()
}

// Nodes reads the reports of a job that gathered, one per node in the job's order. A node is called what the user
// called its host.
func Nodes(job *launch.Job, reports [][]byte) ([]*topology.Node, error) {
	if len(reports) != len(job.Hosts) {
		return nil, fmt.Errorf("%d reports of %d nodes", len(reports), len(job.Hosts))
	}
	names := make([]string, len(reports))
	for i, h := range job.Hosts {
		names[i] = h.Name
	}
	return topology.Unpack(names, reports)
}
