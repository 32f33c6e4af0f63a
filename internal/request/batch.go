package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/report"
)

// executeAll runs several runs on one rank; they are on the engine of the first.
func executeAll(ctx context.Context, run []byte, at launch.Place, boot engine.Bootstrap) ([]byte, error) {
	specs, err := operator.DecodeAll(run)
	if err != nil {
		return nil, err
	}
	if len(specs) == 0 {
		return nil, errors.New("there is nothing to run")
	}
	eng, err := engineOf(specs[0])
	if err != nil {
		return nil, err
	}
	results, err := operator.RunAll(ctx, eng, specs, operator.Rank{
		Rank: at.Rank, NICs: at.NICs, ListenAddr: at.Address, Ports: at.Ports, Bootstrap: boot,
		Failed: func(_ operator.RankResult, err error) { at.Failed(nil, err) },
	})
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(results)
	if err != nil {
		return nil, fmt.Errorf("encoding the results: %w", err)
	}
	return encoded, nil
}

// EncodeBatch writes runs that one job does one after the other.
func EncodeBatch(runs []*Resolved) ([]byte, error) {
	specs := make([]operator.RunSpec, 0, len(runs))
	for _, r := range runs {
		specs = append(specs, r.Run)
	}
	return operator.EncodeAll(specs)
}

// BatchDocuments merges what the ranks of such a job reported into a document for each run.
func BatchDocuments(runs []*Resolved, reports [][]byte) ([]*report.Document, error) {
	byRank := make([][]operator.RankResult, len(reports))
	for rank, raw := range reports {
		if err := json.Unmarshal(raw, &byRank[rank]); err != nil {
			return nil, fmt.Errorf("reading the report of rank %d: %w", rank, err)
		}
		if len(byRank[rank]) != len(runs) {
			return nil, fmt.Errorf("rank %d reported %d of %d runs", rank, len(byRank[rank]), len(runs))
		}
	}
	var docs []*report.Document
	for i, run := range runs {
		results := make([]operator.RankResult, len(reports))
		for rank := range reports {
			results[rank] = byRank[rank][i]
		}
		doc, err := operator.Merge(run.Run, run.Plan, run.Net, results)
		if err != nil {
			return nil, fmt.Errorf("run %d of %d: %w", i+1, len(runs), err)
		}
		doc.Config = &report.Config{Source: run.Source}
		docs = append(docs, doc)
	}
	return docs, nil
}
