package cuda_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/plan"
)

// needNICs makes the library on host memory send through libmknet.so over the fake verbs library, as `make net` builds them.
func needNICs(t *testing.T) {
	t.Helper()
	for name, file := range map[string]string{"HOSTLIB_MKNET": "libmknet.so", "HOSTLIB_VERBS": "net/fakeverbs.so"} {
		path, err := filepath.Abs("../../../build/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v: make net builds it", err)
		}
		t.Setenv(name, path)
	}
}

// Nodes that NICs join: the same plan, the same bits as through memory, and every rank says what it sent by.
func TestRunsThePlanOverNICs(t *testing.T) {
	needNICs(t)
	for _, world := range []plan.World{plan.Uniform(2, 1), {PPN: []int{2, 1}}, plan.Uniform(2, 2)} {
		s := spec(plan.Shape{M: 70, N: 40, K: 40}, 1)
		s.World = world
		want, errs := run(t, s, onHostlib)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		s.Net = engine.Net{Backend: "ibverbs", RDMA: engine.RDMA{QueuePairs: 2, MTU: 1024, DeadPeer: time.Second, TrafficClass: 104}}
		got, errs := run(t, s, onHostlib)
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%v: %v", world, err)
		}
		for rank := range got {
			if got[rank].Status != operator.Pass || got[rank].OutputHash != want[rank].OutputHash {
				t.Errorf("%v, rank %d: %+v, want the bits %s", world, rank, got[rank], want[rank].OutputHash)
			}
			why := got[rank].NetWhy
			for _, part := range []string{"ibverbs: fake0: RoCE v2", "MTU 1024", "2 queue pairs per peer", "0.94 s (7 x 4.096 us x 2^15", "traffic class 104", "heap dma-buf"} {
				if got[rank].Net != "ibverbs" || !strings.Contains(why, part) {
					t.Errorf("%v, rank %d: net %s, %q lacks %q", world, rank, got[rank].Net, why, part)
				}
			}
		}
	}
}

// NICs that are not there are an error before anything runs, which names the rank.
func TestNICsThatAreNotThere(t *testing.T) {
	needNICs(t)
	s := spec(plan.Shape{M: 70, N: 40, K: 40}, 1)
	s.World = plan.Uniform(2, 1)
	s.Net = engine.Net{Backend: "ibverbs", Devices: "mlx5_7"}
	_, errs := run(t, s, onHostlib)
	if !slices.ContainsFunc(errs, func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "rank 0: of the NICs mlx5_7, 0 can be used")
	}) {
		t.Errorf("%v", errs)
	}
	s.Net = engine.Net{Backend: "tcp"}
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "the CUDA engine sends between nodes by NICs, or by emu on one host") {
		t.Errorf("%v", err)
	}
}
