// Package report is what mkrun launch says at the end of a job: one JSON document for machines, a
// table for people.
package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/mkrun/mkrun/internal/plan"
)

// Schema names the layout of Document. Keys are only ever added under the same name.
const Schema = "mkrun.launch/1"

// Status is how a job ended.
type Status string

const (
	Pass  Status = "pass"  // ran, and the check (if asked for) held
	Fail  Status = "fail"  // ran, but the check did not hold
	Error Status = "error" // did not run to its end
)

// Document is the result of one job. Every key is always there, except "error"; what does not apply (the check of a
// run without one, the operator's parts of a user's own program) is null or "".
type Document struct {
	Schema    string      `json:"schema"`
	Status    Status      `json:"status"`
	Operator  string      `json:"operator"` // "" for a user's own program
	Shape     *plan.Shape `json:"shape"`
	DType     string      `json:"dtype"`
	Algorithm string      `json:"algorithm"` // which of the operator's schedules, e.g. "two-shot"
	World     World       `json:"world"`
	Engine    string      `json:"engine"`
	Net       string      `json:"net"`     // what carries bytes between nodes
	NetWhy    string      `json:"net_why"` // why that, and what it is made of; "" if it was no choice
	Seed      uint64      `json:"seed"`
	StartMS   float64     `json:"start_ms"` // from the command to the ranks' first common barrier (or, without a session, their start)
	Check     *Check      `json:"check"`
	TimeMS    *Times      `json:"time_ms"`
	Bytes     *Bytes      `json:"bytes"`
	Plan      *Plan       `json:"plan"`
	Config    *Config     `json:"config"`
	// Settings are those that the engine used, where it says so: mover, tiles, CTAs.
	Settings map[string]any `json:"settings"`
	Digest   string         `json:"digest"` // of the result: "sha256:" of all ranks' output; the same bits give the same digest
	Ranks    []Rank         `json:"ranks"`
	Failure  *Failure       `json:"error,omitempty"`
}

// World is the job's size. PPN is a number where all nodes have the same, else a list.
type World struct {
	Nodes int `json:"nodes"`
	PPN   PPN `json:"ppn"`
	Size  int `json:"size"`
}

// PPN is ranks per node.
type PPN []int

// MarshalJSON writes one number if all nodes have the same.
func (p PPN) MarshalJSON() ([]byte, error) {
	for _, n := range p {
		if n != p[0] {
			return json.Marshal([]int(p))
		}
	}
	if len(p) == 0 {
		return []byte("0"), nil
	}
	return json.Marshal(p[0])
}

// Check is the worst over all ranks of the comparison with the fp32 reference.
type Check struct {
	RelError       float64 `json:"rel_error"`
	WorstTileError float64 `json:"worst_tile_error"`
	WorstRowError  float64 `json:"worst_row_error"` // of one row of a tile
	Tolerance      float64 `json:"tolerance"`
}

// Times are over the timed calls; one call takes as long as its slowest rank.
type Times struct {
	Median float64 `json:"median"`
	P95    float64 `json:"p95"`
	Max    float64 `json:"max"`
}

// Bytes one call moves, over all ranks, and the least any algorithm could move between nodes.
type Bytes struct {
	Intra        int64    `json:"intra"`
	Inter        int64    `json:"inter"`
	InterMinimum int64    `json:"inter_minimum"`
	InterRatio   *float64 `json:"inter_ratio"` // Inter / InterMinimum; null where nothing need move
}

// Ratio fills in how many times the least possible moves between nodes.
func (b *Bytes) Ratio() {
	if b.InterMinimum > 0 {
		ratio := float64(b.Inter) / float64(b.InterMinimum)
		b.InterRatio = &ratio
	}
}

// Plan counts the parts of the plan that was run. It was verified, or the job would not have started.
type Plan struct {
	Transfers int  `json:"transfers"`
	Segments  int  `json:"segments"`
	Flags     int  `json:"flags"`
	Verified  bool `json:"verified"`
}

// Config says where workers, tile and chunks came from.
type Config struct {
	Source string `json:"source"`
}

// Rank is one rank's part of the result.
type Rank struct {
	Rank      int      `json:"rank"`
	Node      int      `json:"node"`
	LocalRank int      `json:"local_rank"`
	TimeMS    float64  `json:"time_ms"` // median
	RelError  *float64 `json:"rel_error"`
	Status    string   `json:"status"`

	GFlops float64 `json:"gflops,omitempty"`
	// WaitedMS is how long a worker of each role waited for flags, per timed call.
	WaitedMS map[string]float64 `json:"waited_ms,omitempty"`
	// HostUS is the time of the thread that starts a call, Launches the kernels and copies that it starts; on a GPU.
	HostUS     float64 `json:"host_us,omitempty"`
	Launches   int     `json:"launches,omitempty"`
	IntraBytes int64   `json:"intra_bytes"` // written by this rank in one call
	InterBytes int64   `json:"inter_bytes"`

	CPUs string   `json:"cpus,omitempty"` // that it was bound to, as 0-15,64
	GPU  string   `json:"gpu,omitempty"`  // of its local rank, as CUDA names it
	NICs []string `json:"nics,omitempty"` // near that GPU, as its node calls them

	NICWhy    string `json:"nic_why,omitempty"`    // why these
	ProxyCPUs string `json:"proxy_cpus,omitempty"` // where the thread that drives them runs
}

// Failure is why a job did not run to its end.
type Failure struct {
	Kind       string   `json:"kind"`
	Node       int      `json:"node"` // -1: none in particular
	Host       string   `json:"host,omitempty"`
	Rank       int      `json:"rank"` // -1: none in particular
	Reason     string   `json:"reason"`
	LastLines  []string `json:"last_lines,omitempty"`
	ExitStatus int      `json:"exit_status"`
}

// MarkFailed gives every rank of a job that was cut short its status: "error" for the one to blame, "pass" for
// those (in the order of Ranks) that had ended well, "aborted" for the others.
func (d *Document) MarkFailed(ended []bool) {
	for i := range d.Ranks {
		switch {
		case d.Ranks[i].Rank == d.Failure.Rank:
			d.Ranks[i].Status = string(Error)
		case i < len(ended) && ended[i]:
			d.Ranks[i].Status = string(Pass)
		default:
			d.Ranks[i].Status = "aborted"
		}
	}
}

// WriteJSON writes the document, and nothing else, as indented JSON.
func (d *Document) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(d); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}
