package request

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/dataplane"
	"github.com/mkrun/mkrun/internal/engine/cuda/cudatest"
	"github.com/mkrun/mkrun/internal/plan"
)

// onHostlib makes the data plane on host memory the one that is found.
func onHostlib(t *testing.T) {
	t.Helper()
	path, err := cudatest.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(dataplane.Env, path)
}

func TestEngineThatIsChosen(t *testing.T) {
	onHostlib(t)
	for name, tt := range map[string]struct {
		change func(*Request)
		env    [2]string
		engine string
		why    string
		gpus   int
	}{
		"auto":            {func(*Request) {}, [2]string{}, "cuda", "GPU 0 (host memory), GPU 1", 2},
		"asked for":       {func(r *Request) { r.Engine = "cuda" }, [2]string{}, "cuda", "asked for; GPU 0", 2},
		"cpu":             {func(r *Request) { r.Engine = "cpu" }, [2]string{}, "cpu", "asked for", 0},
		"too many ranks":  {func(r *Request) { r.World = plan.Uniform(1, 3) }, [2]string{}, "cpu", "3 ranks on 2 GPUs", 0},
		"shared":          {func(r *Request) { r.World, r.CUDA.ShareGPUs = plan.Uniform(1, 3), true }, [2]string{}, "cuda", "shared by 3 ranks", 3},
		"other operator":  {func(r *Request) { r.Operator = "gemm_rs" }, [2]string{}, "cpu", "no gemm_rs yet", 0},
		"pretended nodes": {func(r *Request) { r.World = plan.Uniform(2, 1) }, [2]string{}, "cuda", "GPU 0", 2},
		"several hosts":   {func(r *Request) { r.World, r.Remote = plan.Uniform(2, 1), true }, [2]string{}, "cpu", "between hosts the CUDA engine sends by NICs", 0},
		"hosts with NICs": {func(r *Request) {
			r.World, r.Remote, r.Engine, r.Net.Backend = plan.World{PPN: []int{2, 1}}, true, "cuda", "ibverbs"
		}, [2]string{}, "cuda", "its host will say", 3},
		"other GPU":         {func(*Request) {}, [2]string{"HOSTLIB_CC", "8.9"}, "cpu", "compute capability 8.9", 0},
		"no peer access":    {func(*Request) {}, [2]string{"HOSTLIB_P2P", "0"}, "cpu", "no peer access", 0},
		"elsewhere":         {func(r *Request) { r.Remote = true }, [2]string{}, "cpu", "not known here", 0},
		"elsewhere, asked":  {func(r *Request) { r.Remote, r.Engine = true, "cuda" }, [2]string{}, "cuda", "its host will say", 2},
		"elsewhere, shared": {func(r *Request) { r.Remote, r.Engine, r.GPUs, r.CUDA.ShareGPUs = true, "cuda", []string{"3"}, true }, [2]string{}, "cuda", "its host", 2},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.env[0] != "" {
				t.Setenv(tt.env[0], tt.env[1])
			}
			req := base()
			req.World, req.Engine = plan.Uniform(1, 2), "auto"
			tt.change(&req)
			r, err := req.Resolve()
			if err != nil {
				t.Fatal(err)
			}
			if r.Engine != tt.engine || r.Run.Engine != tt.engine || !strings.Contains(r.EngineWhy, tt.why) || len(r.GPUs) != tt.gpus {
				t.Errorf("engine %s (%s), GPUs %v; want %s (%s), %d GPUs", r.Engine, r.EngineWhy, r.GPUs, tt.engine, tt.why, tt.gpus)
			}
			if tt.engine == "cuda" && !req.Remote && r.Run.Library == "" {
				t.Error("the ranks are not told which library")
			}
		})
	}
}

func TestCUDASettings(t *testing.T) {
	onHostlib(t)
	file := filepath.Join(t.TempDir(), "cuda.yaml")
	write := func(use string) {
		t.Helper()
		text := "schema: mkrun.config/1\noperator: ag_gemm\nentries:\n  - match: {engine: cuda}\n    use: " + use + "\n    provenance: {how: chosen}\n"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	req := base()
	req.World, req.Engine, req.Config = plan.Uniform(1, 2), "cuda", file

	write("{tile: {m: 128, n: 256, k: 64}, mover: ce, roles: {intra: 3}}")
	r, err := req.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	if r.Run.Tile != 256 || r.Run.CUDA.Mover != "ce" || r.Run.Workers != [plan.NumRoles]int{plan.RoleIntra: 3} {
		t.Errorf("configured: tile %d, mover %q, workers %v", r.Run.Tile, r.Run.CUDA.Mover, r.Run.Workers)
	}
	flags := req
	flags.Tile, flags.CUDA.Mover, flags.Workers[plan.RoleCompute] = 128, "sm", 4
	if r, err = flags.Resolve(); err != nil {
		t.Fatal(err)
	}
	if r.Run.Tile != 128 || r.Run.CUDA.Mover != "sm" || r.Run.Workers[plan.RoleCompute] != 4 || !strings.Contains(r.Source, "--mover sm (configured: ce)") {
		t.Errorf("flags: tile %d, mover %q, workers %v, source %q", r.Run.Tile, r.Run.CUDA.Mover, r.Run.Workers, r.Source)
	}
	write("{mover: ce}")
	shared := req
	shared.CUDA.ShareGPUs = true
	if r, err = shared.Resolve(); err != nil || r.Run.CUDA.Mover != "" {
		t.Errorf("ranks that may share a GPU: mover %q (%v), want the library's choice", r.Run.CUDA.Mover, err)
	}
	for use, want := range map[string]string{
		"{tile: {m: 256, n: 128}}":    "tile m is 256; the kernels of ag_gemm are built for 128",
		"{tile: {k: 32}}":             "tile k is 32; the kernels of ag_gemm are built for 64",
		"{stages: 4}":                 "leave the key out",
		"{mover: epilogue}":           "have sm and ce",
		"{tile: {m: 128, n: 96}}":     "32, 64, 128 or 256",
		"{tile: {m: 128, n: 32}}":     "built for 64",
		"{tile: {m: 64, n: 64}}":      "",
		"{tile: {m: 128, n: 64}}":     "",
		"{roles: {compute: 4}}":       "",
		"{chunks: 3, mover: sm}":      "",
		"{tile: {n: 256, k: 64}}":     "",
		"{roles: {intra: 2}}":         "",
		"{tile: {m: 128}, chunks: 2}": "",
	} {
		write(use)
		if _, err := req.Resolve(); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", use, err, want)
		}
	}
}

// An entry for few rows that is the nearest to more of them gives neither its narrow tile nor its split of K.
func TestCUDAEntryOfOtherSizes(t *testing.T) {
	onHostlib(t)
	file := filepath.Join(t.TempDir(), "cuda.yaml")
	for _, tt := range []struct {
		use         string // tile of the entry
		m           int64
		tile, split int
		why         string
	}{
		{"{n: 32}", 64, 32, 2, ""},
		{"{n: 32}", 128, 32, 0, "without its split of K by 2"}, // 64 rows of each rank
		{"{n: 32}", 130, 0, 0, "without its tile of 32 columns"},
		{"{n: 64}", 130, 64, 0, "without its split of K by 2"}, // that of 128 rows
		{"{m: 64, n: 64}", 130, 0, 0, "without its tile of 64 columns, made for other numbers of rows"},
		{"{m: 128, n: 64}", 128, 0, 0, "without its tile of 64 columns, made for other numbers of rows"},
	} {
		text := "schema: mkrun.config/1\noperator: ag_gemm\nentries:\n  - match: {engine: cuda, m: {max: 64}}\n    use: {tile: " + tt.use + ", cuda: {split_k: 2}, mover: sm}\n    provenance: {how: chosen}\n"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		req := base()
		req.World, req.Engine, req.Config = plan.Uniform(1, 2), "cuda", file
		req.M, req.N, req.K = tt.m, 512, 512
		r, err := req.Resolve()
		if err != nil {
			t.Fatal(err)
		}
		if r.Run.Tile != tt.tile || r.Run.CUDA.SplitK != tt.split || r.Run.CUDA.Mover != "sm" || !strings.Contains(r.SourceWhy, tt.why) {
			t.Errorf("%s, m %d: tile %d, split %d, mover %q, %q; want %d, %d and %q", tt.use, tt.m, r.Run.Tile, r.Run.CUDA.SplitK, r.Run.CUDA.Mover, r.SourceWhy, tt.tile, tt.split, tt.why)
		}
	}
}

func TestCUDARefusals(t *testing.T) {
	onHostlib(t)
	for name, tt := range map[string]struct {
		change func(*Request)
		env    [2]string
		want   string
	}{
		"flags of the CUDA engine with auto": {func(r *Request) { r.Engine, r.CUDA.Mover, r.World = "auto", "sm", plan.Uniform(1, 3) }, [2]string{}, "--mover asks for GPUs: 3 ranks on 2 GPUs"},
		"flags of the CUDA engine with cpu":  {func(r *Request) { r.Engine, r.CUDA.ShareGPUs = "cpu", true }, [2]string{}, "--share-gpus means nothing to --engine cpu"},
		"too large":                          {func(r *Request) { r.M, r.K = 1<<21, 1<<13 }, [2]string{}, "not enough GPU memory: M=2097152 N=32 K=8192 needs"},
		"elsewhere, too few GPUs named":      {func(r *Request) { r.Remote, r.GPUs = true, []string{"0"} }, [2]string{}, "--gpus names 1 GPU:"},
		"several hosts":                      {func(r *Request) { r.World, r.Remote = plan.Uniform(2, 1), true }, [2]string{}, "between hosts the CUDA engine sends by NICs: name them"},
		"tcp":                                {func(r *Request) { r.World, r.Net.Backend = plan.Uniform(2, 1), "tcp" }, [2]string{}, "--net tcp: the CUDA engine sends between nodes by NICs"},
		"driver":                             {func(*Request) {}, [2]string{"HOSTLIB_GPUS", "-1"}, "too old"},
		"CTAs":                               {func(r *Request) { r.Workers[plan.RoleIntra] = 5 }, [2]string{}, "5 intra workers are more CTAs than the GPU has SMs"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.env[0] != "" {
				t.Setenv(tt.env[0], tt.env[1])
			}
			req := base()
			req.World, req.Engine = plan.Uniform(1, 2), "cuda"
			tt.change(&req)
			if _, err := req.Resolve(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// Chunks that nobody asked for are as many as the kernels take; others are refused, with the most that they do.
func TestChunksFitTheKernels(t *testing.T) {
	onHostlib(t)
	t.Setenv("HOSTLIB_GPUS", "16")
	for _, tt := range []struct {
		world  plan.World
		asked  int
		mover  string
		backed string
		want   int    // chunks; 0: refused
		says   string // of the settings, or the error
	}{
		{plan.Uniform(2, 2), 0, "", "", 8, ""},
		{plan.Uniform(2, 4), 0, "", "", 4, "4 chunks instead of 8: rank 0 would have 48 copies"},
		{plan.Uniform(2, 4), 0, "", "ibverbs", 4, "4 chunks instead of 8"},
		{plan.Uniform(2, 8), 0, "", "", 2, "2 chunks instead of 8"},
		{plan.Uniform(8, 1), 0, "", "", 4, "4 chunks instead of 8: rank 0 would have 56 messages"},
		{plan.World{PPN: []int{6, 1}}, 0, "", "", 2, "2 chunks instead of 8"},
		{plan.Uniform(2, 4), 5, "", "", 5, ""},
		{plan.Uniform(2, 4), 8, "", "", 0, "--chunks 8: rank 0 would have 48 copies, and the CUDA kernels hold 32: take at most 5"},
		{plan.Uniform(2, 8), 7, "", "", 0, "segments, and the CUDA kernels hold 64: take at most 2"},
		{plan.Uniform(2, 8), 8, "", "", 0, "32768 are the most a launch takes: take at most 2"}, // the plan could have 7
		{plan.Uniform(1, 8), 5, "ce", "", 5, ""},
		{plan.Uniform(1, 8), 5, "sm", "", 0, "take at most 4"},
	} {
		req := base()
		req.World, req.Engine, req.Chunks, req.CUDA.Mover, req.Net.Backend = tt.world, "cuda", tt.asked, tt.mover, tt.backed
		req.M, req.N, req.K = 8192, 64, 64
		r, err := req.ResolvePlan()
		if tt.want == 0 {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, --chunks %d: %v, want %q", tt.world, tt.asked, err, tt.says)
			}
			continue
		}
		if err != nil || r.Run.Chunks != tt.want || r.Plan.Chunks != tt.want || !strings.Contains(r.SourceWhy, tt.says) || tt.says == "" && strings.Contains(r.SourceWhy, "chunks instead") {
			t.Errorf("%v, --chunks %d: %v, want %d chunks and %q", tt.world, tt.asked, err, tt.want, tt.says)
		}
	}
}
