package request

import (
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/plan"
)

func base() Request {
	return Request{
		Operator: "ag_gemm", World: plan.Uniform(2, 2), M: 64, N: 32, K: 16, DType: "bf16", Engine: "cpu",
		Iters: 1, WaitTimeout: time.Second,
	}
}

func TestResolveFillsInWhatWasNotSaid(t *testing.T) {
	r, err := base().Resolve()
	if err != nil {
		t.Fatal(err)
	}
	if r.Engine != "cpu" || r.Net != "tcp" || r.Run.Chunks < 1 || r.Source == "" || r.Plan == nil {
		t.Errorf("incomplete: %+v", r)
	}
	for role, n := range r.Run.Workers {
		if n < 1 {
			t.Errorf("no worker for role %v", plan.Role(role))
		}
	}
	one := base()
	one.World = plan.Uniform(1, 2)
	if r, err = one.Resolve(); err != nil || r.Net != "none" {
		t.Errorf("one node: net %q (%v), want none", r.Net, err)
	}
}

func TestFlagsOverrideTheConfiguration(t *testing.T) {
	req := base()
	req.Chunks, req.Tile, req.Workers = 7, 32, [plan.NumRoles]int{plan.RoleCompute: 3, plan.RoleIntra: 2, plan.RoleSend: 5}
	r, err := req.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	if r.Run.Chunks != 7 || r.Run.Tile != 32 || r.Run.Workers[plan.RoleSend] != 5 || r.Run.Workers[plan.RoleCompute] != 3 {
		t.Errorf("flags were not taken: %+v", r.Run)
	}
	const want = ", overridden by --chunks 7, --tile 32, --intra-workers 2 (configured: 1), --send-workers 5 (configured: 1), --compute-workers 3"
	if !strings.HasSuffix(r.Source, want) {
		t.Errorf("source %q, want it to end with %q", r.Source, want)
	}
	if plain, err := base().Resolve(); err != nil || strings.Contains(plain.Source, "overridden") {
		t.Errorf("source without flags: %q (%v)", plain.Source, err)
	}
}

func TestNamedLayer(t *testing.T) {
	req := base()
	req.M, req.N, req.K, req.Layer, req.Tokens = 0, 0, 0, "llama3-8b/mlp-up/tp4", 16
	r, err := req.ResolvePlan()
	if err != nil {
		t.Fatal(err)
	}
	if r.Run.Shape != (plan.Shape{M: 16, N: 14336 / 4, K: 4096}) {
		t.Errorf("shape %+v", r.Run.Shape)
	}
	req.World = plan.Uniform(1, 2)
	if r, err = req.ResolvePlan(); err != nil || !strings.Contains(r.Layer, "split over 4 ranks, run on 2") {
		t.Errorf("a layer for 4 ranks on 2 is not pointed out: %q (%v)", r.Layer, err)
	}
}

func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Request)
		want   string
	}{
		"missing size":     {func(r *Request) { r.N = 0 }, "--n is missing"},
		"layer and size":   {func(r *Request) { r.Layer, r.Tokens = "llama3-8b/mlp-up/tp4", 1 }, "leave out --n and --k"},
		"tokens alone":     {func(r *Request) { r.Tokens = 1 }, "--shape"},
		"layer, no tokens": {func(r *Request) { r.M, r.N, r.K, r.Layer = 0, 0, 0, "llama3-8b/mlp-up/tp4" }, "needs --tokens"},
		"tokens and m":     {func(r *Request) { r.N, r.K, r.Layer, r.Tokens = 0, 0, "llama3-8b/mlp-up/tp4", 1 }, "give one"},
		"wrong operator":   {func(r *Request) { r.M, r.N, r.K, r.Layer, r.Tokens = 0, 0, 0, "llama3-8b/mlp-down/tp4", 1 }, "row-parallel"},
		"dtype":            {func(r *Request) { r.DType = "fp8" }, "unknown dtype"},
		"engine":           {func(r *Request) { r.Engine = "gpu" }, "unknown engine"},
		"odd K":            {func(r *Request) { r.K = 12 }, "multiple of 8"},
		"too many chunks":  {func(r *Request) { r.Chunks = 65 }, "from 1 to 64"},
		"no memory":        {func(r *Request) { r.M, r.N, r.K = 1<<22, 1<<22, 1<<22 }, "not enough memory"},
		"overflow":         {func(r *Request) { r.M, r.N = 1<<62, 1<<62 }, "64-bit"},
		"no such file":     {func(r *Request) { r.Config = "no/such.yaml" }, "no/such.yaml"},
		"no ranks":         {func(r *Request) { r.World = plan.World{} }, "at least one node"},
	} {
		t.Run(name, func(t *testing.T) {
			req := base()
			tt.change(&req)
			_, err := req.Resolve()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}
