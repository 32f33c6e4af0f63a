package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/engine/cuda/cudatest"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/request"
)

// measured is what the script wrote on two H200s on 2026-11-29, in part (docs/results.md, eager).
func measured(t *testing.T) *Timings {
	t.Helper()
	data, err := os.ReadFile("testdata/timings.json")
	if err != nil {
		t.Fatal(err)
	}
	times, err := readTimings(data)
	if err != nil {
		t.Fatal(err)
	}
	return times
}

// sample is a document with baselines, of those figures.
func sample(t *testing.T) *Document {
	t.Helper()
	s := Session{Versus: []string{"nccl", "asynctp"}, Loop: LoopEager, Calls: 38, Request: request.Request{World: plan.Uniform(1, 2)}}
	var asked Job
	s.Script = func(_ context.Context, job Job) (*Timings, error) { asked = job; return measured(t), nil }
	d := &Document{Operator: "ag_gemm", Engine: "cuda", DType: "bf16", Date: "2026-11-29", Software: "mkrun", Loop: s.Loop, Versus: s.Versus,
		World: report.World{Nodes: 1, PPN: report.PPN{2}, Size: 2}}
	var runs []*request.Resolved
	for _, shape := range []plan.Shape{{M: 8192, N: 1024, K: 8192}, {M: 8192, N: 4096, K: 8192}, {M: 16, N: 4096, K: 8192}, {M: 4096, N: 2048, K: 4096}} {
		s.Shapes = append(s.Shapes, request.ListedShape{M: shape.M, N: shape.N, K: shape.K})
		run, err := s.Shapes[len(runs)].Of(request.Request{
			Operator: "ag_gemm", World: plan.Uniform(1, 2), DType: "bf16", Engine: "cpu", Iters: 1, WaitTimeout: time.Second}).ResolvePlan()
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
		d.Rows = append(d.Rows, Row{Name: s.Shapes[len(runs)-1].String(), Shape: shape, Launch: Figure{MS: 1}, Settings: "mover ce"})
	}
	s.Request = request.Request{Operator: "ag_gemm", World: plan.Uniform(1, 2), DType: "bf16", Engine: "cpu", Iters: 1, WaitTimeout: time.Second}
	if err := s.versus(context.Background(), runs, d); err != nil {
		t.Fatal(err)
	}
	if asked.Calls != 10 || asked.Rounds != 4 || asked.Ranks != 2 || len(asked.Plans[asked.Chunks[0]]) != 2 || len(asked.Alone) == 0 || len(asked.Shapes) != 4 {
		t.Errorf("asked for %+v", asked)
	}
	for i := range d.Rows {
		d.Rows[i].compare()
	}
	return d
}

// Ratios follow from the figures, and from none that is missing.
func TestVersus(t *testing.T) {
	d := sample(t)
	if d.Calls != 40 || d.Machine != "2 x NVIDIA H200" || !strings.Contains(d.Software, "PyTorch 2.11.0+cu130") {
		t.Errorf("%d calls on %s with %s", d.Calls, d.Machine, d.Software)
	}
	first := d.Rows[0]
	if first.Best != "nccl" || first.Ours.MS != .2237 || fmt.Sprintf("%.3f %.3f %.2f %.2f", *first.RatioBest, *first.RatioGEMM, *first.Exposed, *first.ExposedBest) != "0.493 1.288 0.22 0.62" {
		t.Errorf("first row %+v", first)
	}
	if second := d.Rows[1]; second.Best != "asynctp" || fmt.Sprintf("%.3f", *second.RatioBest) != "0.937" {
		t.Errorf("second row %+v", second)
	}
	if third := d.Rows[2]; third.Best != "nccl" || third.Baselines["asynctp"].Error == "" || fmt.Sprintf("%.3f", *third.RatioBest) != "0.384" {
		t.Errorf("a row with a baseline that failed: %+v", third)
	}
	if last := d.Rows[3]; last.Ours.Error != "the script did not time it" || last.RatioBest != nil || last.RatioGEMM != nil || !d.Failed() {
		t.Errorf("a row that the script left out: %+v", last)
	}
	if rate := d.Rows[1].TFLOPS; rate == nil || fmt.Sprintf("%.0f", *rate) != "752" {
		t.Errorf("%v TFLOP/s", rate)
	}
	if d.Rows[3].TFLOPS != nil {
		t.Errorf("%v TFLOP/s of what was not timed", *d.Rows[3].TFLOPS)
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	if err := sample(t).WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"ag_gemm bf16 on 1 node x 2 ranks, engine cuda; 2 x NVIDIA H200; 2026-11-29\n",
		"eager: submitted as a caller would",
		"M, N, K           LAUNCH  PRODUCT  NCCL    ASYNCTP  OURS",
		"8192, 1024, 8192  1.0000  0.1737   0.4535  0.4571   0.2237 [0.2189 0.2597]  0.493  1.288     0.22 (0.62)     46       614      mover ce\n",
		"4096, 2048, 4096  1.0000  -        -       -        -                       -      -         - (-)           -        -        ",
		"16, 4096, 8192, asynctp: out of memory\n",
		"4096, 2048, 4096, ours: the script did not time it\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

// The picture is XML, has a bar for each figure, marks what is missing, and names every shape.
func TestSVG(t *testing.T) {
	d := sample(t)
	for _, rows := range []int{4, 1, 0, 40} {
		for _, versus := range [][]string{d.Versus, nil} {
			one := *d
			one.Versus, one.Rows = versus, nil
			for i := range rows {
				one.Rows = append(one.Rows, d.Rows[i%len(d.Rows)])
			}
			var b bytes.Buffer
			if err := one.WriteSVG(&b); err != nil {
				t.Fatal(err)
			}
			dec := xml.NewDecoder(bytes.NewReader(b.Bytes()))
			for {
				if _, err := dec.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%d rows: %v", rows, err)
				}
			}
			if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
				t.Errorf("%d rows: a place is no number", rows)
			}
		}
	}
	var b bytes.Buffer
	if err := d.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	// Row by row: ours, launch, nccl, asynctp, product; then the two ratios.
	if bars, missing := strings.Count(b.String(), `class="bar"`), strings.Count(b.String(), ">x</text>"); bars != (5+2)+(5+2)+(4+2)+(1+0) || missing != 0+0+1+(4+2) {
		t.Errorf("%d bars, %d missing", bars, missing)
	}
}

func TestJSONKeys(t *testing.T) {
	var b bytes.Buffer
	if err := sample(t).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("schema operator engine dtype world machine date software loop calls versus rows") {
		if _, ok := doc[key]; !ok {
			t.Errorf("key %q is missing", key)
		}
	}
	row := doc["rows"].([]any)[3].(map[string]any)
	for _, key := range strings.Fields("name shape source settings launch ours product baselines tflops best ratio_best ratio_gemm exposed exposed_best") {
		if _, ok := row[key]; !ok {
			t.Errorf("key %q of a row is missing", key)
		}
	}
	if ours := row["ours"].(map[string]any); len(ours) != 1 || ours["error"] == nil || row["tflops"] != nil {
		t.Errorf("ours is %v and tflops %v where there is no time", ours, row["tflops"])
	}
}

// Settings reach the kernel under the names that the script knows.
func TestKernelConfig(t *testing.T) {
	s := config.Settings{Mover: "sm", TileM: 128, TileN: 256, Compute: 132, Intra: 32,
		CUDA: config.CUDA{Cluster: 2, RasterGroup: 8, PushGroup: 4, RowBlock: 1024, KBlock: 512, SplitK: 1}}
	const want = "mover=sm tile_n=256 cluster=2 ctas=132 raster_group=8 push_ctas=32 push_group=4 row_block=1024 k_block=512 split_k=1"
	if got := kernelConfig(s); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	script, err := os.ReadFile("../../scripts/gpu/options.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Fields(want) {
		name, _, _ := strings.Cut(part, "=")
		if !bytes.Contains(script, []byte(`"`+name+`"`)) {
			t.Errorf("the script does not know %q", name)
		}
	}
	if got := kernelConfig(config.Settings{}); got != "" {
		t.Errorf("nothing set gives %q", got)
	}
}

// The script is asked by options that it has, gets its plans, and what it says of failures is told.
func TestPython(t *testing.T) {
	job := Job{Versus: []string{"nccl"}, DType: "fp16", Loop: LoopQueued, Rounds: 4, Calls: 10, Shapes: []plan.Shape{{M: 8, N: 16, K: 24}, {M: 1, N: 2, K: 8}},
		Configs: []config.Settings{{Mover: "ce"}, {}}, Library: "/l.so", Ranks: 2, Chunks: []int{1, 3},
		Plans: map[int][][]byte{1: {[]byte("p0"), []byte("p1")}, 3: {[]byte("q0"), []byte("q1")}}, Alone: []byte("a"), GPUs: "1,0"}
	args := job.arguments("/d", "/d/r.json")
	// What the script's own parser makes of them.
	parsed, err := exec.CommandContext(t.Context(), "python3", append([]string{"-B", "../../scripts/gpu/options.py"}, args[3:]...)...).Output()
	if err != nil {
		t.Fatalf("the script does not take %q: %v", args, err)
	}
	for _, want := range []string{`"shapes": [[8, 16, 24], [1, 2, 8]]`, `"configured": {"8,16,24": {"mover": 2}, "1,2,8": {}}`,
		`"chunks_of": {"8,16,24": 1, "1,2,8": 3}`, `"vs": ["nccl"]`, `"dtype": "fp16"`, `"queued": 0.9`, `"ranks": 2`, `"plans": "/d"`, `"json": "/d/r.json"`} {
		if !strings.Contains(string(parsed), want) {
			t.Errorf("the script reads no %s:\n%s", want, parsed)
		}
	}
	if !slices.Contains(args, "8,16,24:chunks=1 mover=ce") || !slices.Contains(args, "1,2,8:chunks=3 ") || !slices.Contains(args, "--queued") {
		t.Errorf("arguments %q", args)
	}

	// A python3 that copies what the job folder holds, and says it measured nothing.
	bin := t.TempDir()
	program := "#!/bin/sh\n" +
		"while [ $# -gt 0 ]; do case $1 in --json) out=$2;; --plans) plans=$2;; --plan-alone) alone=$2;; esac; shift; done\n" +
		"cat $plans/c1/rank0.plan $plans/c1/rank1.plan $plans/c3/rank1.plan $alone/rank0.plan >&2; ls $plans >&2; echo \"gpus $CUDA_VISIBLE_DEVICES\" >&2\n" +
		"[ -z \"$FAIL\" ] || { echo no torch >&2; exit 3; }\n" +
		"echo '{\"gpus\": 2, \"device\": \"X\", \"results\": {}}' > $out\n"
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	var said bytes.Buffer
	times, err := Python(t.Context(), job, &said)
	if err != nil || times.GPUs != 2 {
		t.Fatalf("%+v, %v\n%s", times, err, said.String())
	}
	for _, want := range []string{"p0p1q1a", "bench.py", "mkernel.py", "options.py", "gpus 1,0"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the script saw no %q:\n%s", want, said.String())
		}
	}
	t.Setenv("FAIL", "1")
	if _, err := Python(t.Context(), job, &said); err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "PyTorch") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("you sent interrupt"))
	if _, err := Python(ctx, job, &said); err == nil || err.Error() != "you sent interrupt" {
		t.Errorf("error %v", err)
	}
	if _, err := readTimings([]byte("{")); err == nil {
		t.Error("half a result is read")
	}
}

func session(launch func(context.Context, []*request.Resolved) ([]*report.Document, error)) *Session {
	return &Session{
		Request: request.Request{Operator: "ag_gemm", World: plan.Uniform(1, 2), DType: "bf16", Engine: "cpu", Warmup: 1, WaitTimeout: time.Second},
		Shapes:  []request.ListedShape{{M: 64, N: 32, K: 16}, {Layer: "llama3-8b/lm-head/tp2", Tokens: 4}},
		Loop:    LoopEager, Calls: 3, Today: "2026-11-30", Launch: launch, Progress: io.Discard,
	}
}

// Without baselines each shape is launched by itself; one that fails has its reason, and the others their times.
func TestSessionWithoutBaselines(t *testing.T) {
	calls := 0
	d, err := session(func(_ context.Context, runs []*request.Resolved) ([]*report.Document, error) {
		if calls++; calls == 1 {
			return nil, errors.New("rank 1 died")
		}
		return []*report.Document{{Status: report.Pass, TimeMS: &report.Times{Median: 2, P95: 3}}}, nil
	}).Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if calls != 2 || d.Rows[0].Ours.Error != "rank 1 died" || d.Rows[1].Ours.MS != 2 || d.Rows[1].TFLOPS == nil || !d.Failed() || d.Rows[1].RatioBest != nil {
		t.Errorf("%d launches: %+v", calls, d)
	}
	if !strings.HasPrefix(d.Rows[1].Source, "embedded configs/ag_gemm.yaml") || d.Engine != "cpu" {
		t.Errorf("%+v", d)
	}
	wrong := func(context.Context, []*request.Resolved) ([]*report.Document, error) {
		return []*report.Document{{Status: report.Fail, TimeMS: &report.Times{Median: 2}}}, nil
	}
	if d, err = session(wrong).Run(context.Background()); err != nil || d.Rows[0].Ours.ok() {
		t.Errorf("a wrong result has a time: %+v, %v", d, err)
	}
}

// What the baselines cannot do, or a machine without PyTorch, is told before anything is timed.
func TestSessionRefusesBaselines(t *testing.T) {
	library, err := cudatest.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("MKRUN_LIB", library)
	t.Setenv("HOSTLIB_GPUS", "2")
	for name, tt := range map[string]struct {
		m     int64
		ready error
		want  string
	}{
		"unequal shards": {65, nil, "shape 65x32x16: --vs: the baselines gather the same number of rows from each rank: M is 65, and must be a multiple of 2"},
		"no PyTorch":     {64, errors.New("no torch"), "--vs nccl: no torch; leave --vs out to time ag_gemm alone"},
	} {
		s := session(func(context.Context, []*request.Resolved) ([]*report.Document, error) {
			t.Errorf("%s: something was launched", name)
			return nil, errors.New("no")
		})
		s.Request.Engine, s.Versus, s.Shapes = "cuda", []string{"nccl"}, []request.ListedShape{{M: tt.m, N: 32, K: 16}}
		s.Ready = func(context.Context) error { return tt.ready }
		_, err := s.Run(t.Context())
		if refused := (*RefusedError)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
}

// Python's last words are the reason.
func TestReady(t *testing.T) {
	bin := t.TempDir()
	for program, want := range map[string]string{
		"exit 0": "",
		"echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1": "has PyTorch with CUDA: ModuleNotFoundError: No module named 'torch'",
		"exit 3": "has PyTorch with CUDA: exit status 3",
	} {
		if err := os.WriteFile(filepath.Join(bin, "python3"), []byte("#!/bin/sh\n"+program+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin)
		if err := Ready(t.Context()); (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", program, err, want)
		}
	}
}

func TestSessionRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Session)
		want   string
	}{
		"baseline":      {func(s *Session) { s.Versus = []string{"ncll"} }, `did you mean "nccl"`},
		"loop":          {func(s *Session) { s.Loop = "tight" }, "known: eager, queued"},
		"loop of one":   {func(s *Session) { s.Loop = LoopQueued }, "--loop queued is how calls are timed beside others: without --vs it means nothing"},
		"on a CPU":      {func(s *Session) { s.Versus = []string{"nccl"} }, "those run on GPUs, and the engine is cpu"},
		"shape":         {func(s *Session) { s.Shapes[1] = request.ListedShape{M: 1, N: 1, K: 4} }, "shape 1x1x4: "},
		"configuration": {func(s *Session) { s.Request.Config = "no/such.yaml" }, "no/such.yaml"},
	} {
		s := session(func(context.Context, []*request.Resolved) ([]*report.Document, error) {
			t.Errorf("%s: something was launched", name)
			return nil, errors.New("no")
		})
		tt.change(s)
		_, err := s.Run(context.Background())
		var refused *RefusedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
}
