package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cpu"
	"github.com/mkrun/mkrun/internal/engine/cuda"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/report"
)

// Execute runs a resolved request's run on one rank: what a rank process does between joining and leaving.
func Execute(ctx context.Context, run []byte, at launch.Place, boot engine.Bootstrap) ([]byte, error) {
	if operator.IsBatch(run) {
		return executeAll(ctx, run, at, boot)
	}
	spec, err := operator.Decode(run)
	if err != nil {
		return nil, err
	}
	eng, err := engineOf(spec)
	if err != nil {
		return nil, err
	}
	return encode(operator.Run(ctx, eng, spec, operator.Rank{
		Rank: at.Rank, NICs: at.NICs, ListenAddr: at.Address, Ports: at.Ports, Bootstrap: boot,
		Failed: func(result operator.RankResult, err error) { at.Failed(encode(result, err)) },
	}))
}

// encode makes a rank's report of its result; of a run that failed, if it is known what that was made of.
func encode(result operator.RankResult, err error) ([]byte, error) {
	if err != nil && result.Net == "" && result.Settings == nil {
		return nil, err
	}
	encoded, encodeErr := json.Marshal(result)
	if encodeErr != nil {
		return nil, errors.Join(err, fmt.Errorf("encoding the result: %w", encodeErr))
	}
	return encoded, err
}

// engineOf opens the engine that a run is for.
func engineOf(spec operator.RunSpec) (engine.Engine, error) {
	if spec.Engine == operator.EngineCUDA {
		return cuda.New(spec.Library)
	}
	return cpu.New(), nil
}

// Document merges what the ranks reported into the job's result.
func (out *Resolved) Document(reports [][]byte) (*report.Document, error) {
	results := make([]operator.RankResult, len(reports))
	for rank, raw := range reports {
		if err := json.Unmarshal(raw, &results[rank]); err != nil {
			return nil, fmt.Errorf("reading the report of rank %d: %w", rank, err)
		}
	}
	doc, err := operator.Merge(out.Run, out.Plan, out.Net, results)
	if err != nil {
		return nil, err
	}
	doc.Config = &report.Config{Source: out.Source}
	return doc, nil
}

// Outline is the document of a job that did not run to its end: what was asked for, and of the ranks' reports, where one
// came that far, what it ran on; without results.
func (out *Resolved) Outline(reports [][]byte) *report.Document {
	run := &out.Run
	counts := out.Plan.Counts()
	doc := &report.Document{
		Schema: report.Schema, Status: report.Error, Operator: run.Operator, Algorithm: out.Plan.Algorithm, Shape: &run.Shape, DType: run.DType.String(),
		World:  report.World{Nodes: run.World.Nodes(), PPN: run.World.PPN, Size: run.World.Size()},
		Engine: out.Engine, Net: out.Net, Seed: run.Seed,
		Plan:   &report.Plan{Transfers: counts.Transfers, Segments: counts.Segments, Flags: counts.Flags, Verified: true},
		Config: &report.Config{Source: out.Source},
	}
	for rank := range run.World.Size() {
		node, local := run.World.Place(rank)
		doc.Ranks = append(doc.Ranks, report.Rank{Rank: rank, Node: node, LocalRank: local})
	}
	for _, raw := range reports {
		var r operator.RankResult
		if json.Unmarshal(raw, &r) == nil && r.Net != "" {
			doc.Net, doc.NetWhy, doc.Settings = r.Net, r.NetWhy, r.Settings
			break
		}
	}
	return doc
}
