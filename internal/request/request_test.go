package request

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/config"
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
		"connections":      {func(r *Request) { r.Net.Backend, r.Net.RDMA.MTU = "efa", 1024 }, "--net efa has no connections: of the settings of queue pairs it takes --net-qps"},
		"time-out":         {func(r *Request) { r.Net.Backend, r.Net.RDMA.DeadPeer = "ibverbs", time.Microsecond }, "--net-dead-peer 1µs with 6 retries: give 57.344µs to"},
		"not RDMA":         {func(r *Request) { r.Net.Backend, r.Net.RDMA.QueuePairs = "tcp", 2 }, "--net tcp has no queue pairs"},
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

// What mkrun config check passes, a launch takes; what a launch would refuse, the check refuses, and the launch says
// where in which file it stands.
func TestConfigCheckIsAsStrictAsALaunch(t *testing.T) {
	onHostlib(t)
	file := filepath.Join(t.TempDir(), "mine.yaml")
	for _, tt := range []struct {
		engine, use string
		place       string // of the mistake, "" if there is none
	}{
		{"cpu", "{chunks: 64}", ""},
		{"cpu", "{chunks: 65}", "5:19"},
		{"cpu", "{chunks: 100000}", "5:19"},
		{"cpu", "{roles: {compute: 4096, intra: 4096, send: 4096}}", ""},
		{"cpu", "{roles: {compute: 4097}}", "5:28"},
		{"cpu", "{roles: {intra: 1000000}}", "5:26"},
		{"cpu", "{roles: {send: 4097}}", "5:25"},
		{"cpu", "{tile: {m: 1048576, n: 1048576}}", ""},
		{"cuda", "{chunks: 64}", ""},
		{"cuda", "{chunks: 65}", "5:19"},
		{"cuda", "{stages: 99}", "5:19"},
		{"cuda", "{tile: {m: 128, n: 128, k: 64}}", ""},
		{"cuda", "{tile: {m: 128, n: 256, k: 64}}", ""},
		{"cuda", "{tile: {m: 128, n: 64, k: 64}}", ""},
		{"cuda", "{tile: {m: 128, n: 32, k: 64}}", "5:21"},
		{"cuda", "{tile: {m: 64, n: 64, k: 64}}", ""},
		{"cuda", "{tile: {n: 32}, cuda: {cluster: 2}}", "5:42"},
		{"cuda", "{tile: {m: 128, n: 512, k: 64}}", "5:29"},
		{"cuda", "{tile: {m: 64}}", "5:21"},
		{"cuda", "{tile: {k: 128}}", "5:21"},
		{"cuda", "{mover: sm, cuda: {cluster: 2}}", ""},
		{"cuda", "{mover: ce, cuda: {cluster: 1, split_k: 2}}", ""},
		{"cuda", "{cuda: {cluster: 3}}", "5:27"},
		{"cuda", "{cuda: {cluster: 2, split_k: 2}}", "5:39"},
		{"cuda", "{mover: epilogue}", "5:18"},
	} {
		text := fmt.Sprintf("schema: mkrun.config/1\noperator: ag_gemm\nentries:\n  - match: {engine: %s}\n    use: %s\n    provenance: {how: chosen}\n", tt.engine, tt.use)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		req := base()
		req.World, req.Engine, req.Config = plan.Uniform(1, 2), tt.engine, file
		_, checked := config.CheckFile(file, []byte(text))
		_, launched := req.ResolvePlan()
		for what, err := range map[string]error{"the check": checked, "a launch": launched} {
			if tt.place == "" && err != nil {
				t.Errorf("%s %s: %s refuses it: %v", tt.engine, tt.use, what, err)
			}
			if tt.place != "" && (err == nil || !strings.HasPrefix(err.Error(), file+":"+tt.place+": ")) {
				t.Errorf("%s %s: %s says %v, want a mistake at %s", tt.engine, tt.use, what, err, tt.place)
			}
		}
	}
	// The bounds are those of flags, too.
	for name, change := range map[string]func(*Request){
		"chunks":    func(r *Request) { r.Engine, r.Chunks = "cpu", config.MaxChunks+1 },
		"workers":   func(r *Request) { r.Engine, r.Workers[plan.RoleIntra] = "cpu", config.MaxWorkers+1 },
		"tile of n": func(r *Request) { r.Tile = 512 },
		"mover":     func(r *Request) { r.CUDA.Mover = "epilogue" },
	} {
		req := base()
		req.World, req.Engine = plan.Uniform(1, 2), "cuda"
		change(&req)
		if _, err := req.ResolvePlan(); err == nil {
			t.Errorf("a flag may set a %s that a file may not", name)
		}
	}
}

func TestChunksWhereNothingSaysHowMany(t *testing.T) {
	for _, tt := range []struct {
		engine string
		m      int64
		world  plan.World
		want   int
	}{
		{"cpu", 8192, plan.Uniform(1, 2), 4},
		{"cpu", 256, plan.Uniform(1, 2), 2},
		{"cpu", 1, plan.Uniform(1, 2), 1},
		{"cuda", 8192, plan.Uniform(1, 2), 1},
		{"cuda", 8192, plan.Uniform(2, 1), 8},
		{"cuda", 1024, plan.Uniform(2, 2), 2},
		{"cuda", 1, plan.Uniform(2, 1), 1},
	} {
		if got := defaultChunks(tt.engine, tt.m, tt.world); got != tt.want {
			t.Errorf("%s, %d rows, %v: %d chunks, want %d", tt.engine, tt.m, tt.world, got, tt.want)
		}
	}
}
