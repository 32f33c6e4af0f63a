package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/mkrun/mkrun/internal/engine"
)

// EncodeAll writes several runs that the ranks of one job do one after the other.
func EncodeAll(specs []RunSpec) ([]byte, error) {
	b, err := json.Marshal(specs)
	if err != nil {
		return nil, fmt.Errorf("encoding the runs: %w", err)
	}
	return b, nil
}

// IsBatch tells what EncodeAll wrote from what Encode wrote.
func IsBatch(b []byte) bool { return bytes.HasPrefix(b, []byte("[")) }

// DecodeAll reads what EncodeAll wrote, and validates it.
func DecodeAll(b []byte) ([]RunSpec, error) {
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, fmt.Errorf("decoding the runs: %w", err)
	}
	var specs []RunSpec
	for i, one := range raw {
		s, err := Decode(one)
		if err != nil {
			return nil, fmt.Errorf("run %d of %d: %w", i+1, len(raw), err)
		}
		specs = append(specs, s)
	}
	return specs, nil
}

// RunAll does several runs on one rank, one after the other; all ranks of the job do the same. It ends at the first that
// does not run to its end: peers may be anywhere then.
func RunAll(ctx context.Context, eng engine.Engine, specs []RunSpec, at Rank) ([]RankResult, error) {
	var results []RankResult
	boot := at.Bootstrap
	failed := at.Failed
	for i, spec := range specs {
		where := func(err error) error { return fmt.Errorf("run %d of %d: %w", i+1, len(specs), err) }
		at.Bootstrap = numbered{boot, i}
		if failed != nil {
			at.Failed = func(result RankResult, err error) { failed(result, where(err)) }
		}
		result, err := Run(ctx, eng, spec, at)
		if err != nil {
			return results, where(err)
		}
		results = append(results, result)
	}
	return results, nil
}

// numbered is a rank's bootstrap for one of several runs: a name of a shared file may be used once.
type numbered struct {
	engine.Bootstrap
	run int
}

func (n numbered) name(name string) string { return fmt.Sprintf("%d/%s", n.run, name) }

// ShareFile implements engine.Bootstrap.
func (n numbered) ShareFile(ctx context.Context, name string, f *os.File) error {
	return n.Bootstrap.ShareFile(ctx, n.name(name), f)
}

// PeerFile implements engine.Bootstrap.
func (n numbered) PeerFile(ctx context.Context, rank int, name string) (*os.File, error) {
	return n.Bootstrap.PeerFile(ctx, rank, n.name(name))
}
