package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cpu"
	"github.com/mkrun/mkrun/internal/engine/enginetest"
	"github.com/mkrun/mkrun/internal/plan"
)

// sharing is an engine that shares a file under the same name each time that it is opened, and reads its peers'.
type sharing struct{ engine.Engine }

func (e sharing) Open(ctx context.Context, cfg engine.Config) (engine.Instance, error) {
	f, err := os.CreateTemp("", "shared")
	if err != nil {
		return nil, err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }()
	if _, err := fmt.Fprintf(f, "%v", cfg.Shape); err != nil {
		return nil, err
	}
	if err := cfg.Bootstrap.ShareFile(ctx, "heap", f); err != nil {
		return nil, err
	}
	peer, err := cfg.Bootstrap.PeerFile(ctx, 0, "heap")
	if err != nil {
		return nil, err
	}
	defer func() { _ = peer.Close() }()
	text := make([]byte, 100)
	n, err := peer.ReadAt(text, 0)
	if !errors.Is(err, io.EOF) || string(text[:n]) != fmt.Sprint(cfg.Shape) {
		return nil, fmt.Errorf("the file of rank 0 is of shape %s (%w), want %v", text[:n], err, cfg.Shape)
	}
	return e.Engine.Open(ctx, cfg)
}

// runBatch does runs on all ranks in this process, with memory that is mapped as between processes.
func runBatch(t *testing.T, specs []RunSpec) ([][]RankResult, []error) {
	t.Helper()
	size := specs[0].World.Size()
	boot := enginetest.NewWorld(size)
	defer func() {
		if err := boot.Close(); err != nil {
			t.Error(err)
		}
	}()
	results, errs := make([][]RankResult, size), make([]error, size)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var wg sync.WaitGroup
	for rank := range size {
		wg.Go(func() {
			at := Rank{Rank: rank, ListenAddr: fmt.Sprintf("127.0.0.%d", 1+specs[0].World.NodeOf(rank)), Bootstrap: boot.Rank(rank)}
			if results[rank], errs[rank] = RunAll(ctx, sharing{cpu.New()}, specs, at); errs[rank] != nil {
				cancel(errs[rank])
			}
		})
	}
	wg.Wait()
	return results, errs
}

// Several runs in one job: each has its own shape and settings, and the result that it has alone.
func TestRunAll(t *testing.T) {
	specs := []RunSpec{testSpec(plan.Shape{M: 33, N: 20, K: 64}, 2, 1), testSpec(plan.Shape{M: 8, N: 70, K: 8}, 2, 1), testSpec(plan.Shape{M: 33, N: 20, K: 64}, 2, 1)}
	specs[1].DType, specs[2].Chunks = engine.FP16, 5
	encoded, err := EncodeAll(specs)
	if err != nil {
		t.Fatal(err)
	}
	if one, err := specs[0].Encode(); err != nil || IsBatch(one) || !IsBatch(encoded) {
		t.Errorf("one run and several are not told apart (%v)", err)
	}
	if specs, err = DecodeAll(encoded); err != nil {
		t.Fatal(err)
	}
	results, errs := runBatch(t, specs)
	for rank, list := range results {
		if errs[rank] != nil || len(list) != len(specs) {
			t.Fatalf("rank %d: %d results, %v", rank, len(list), errs[rank])
		}
		for i, r := range list {
			if r.Status != Pass || !r.Checked || len(r.TimesNS) != specs[i].Iters {
				t.Errorf("rank %d, run %d: %+v", rank, i, r)
			}
		}
		if list[0].OutputHash != list[2].OutputHash || list[0].OutputHash == list[1].OutputHash {
			t.Errorf("rank %d: digests %q, %q, %q", rank, list[0].OutputHash, list[1].OutputHash, list[2].OutputHash)
		}
	}
}

// The first run that cannot be ends the job, and is named.
func TestRunAllEnds(t *testing.T) {
	good := testSpec(plan.Shape{M: 8, N: 8, K: 8}, 1, 1)
	bad := good
	bad.Chunks = 0
	results, errs := runBatch(t, []RunSpec{good, bad, good})
	for rank, err := range errs {
		if err == nil || !strings.HasPrefix(err.Error(), "run 2 of 3: ") || len(results[rank]) != 1 {
			t.Errorf("rank %d: %d results, %v", rank, len(results[rank]), err)
		}
	}
	encoded, err := EncodeAll([]RunSpec{good, bad})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeAll(encoded); err == nil || !strings.HasPrefix(err.Error(), "run 2 of 2: ") {
		t.Errorf("a run that cannot be is decoded: %v", err)
	}
	if _, err := DecodeAll([]byte("[{")); err == nil {
		t.Error("half a list is decoded")
	}
}
