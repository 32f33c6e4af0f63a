package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/plan"
	gpu "github.com/mkrun/mkrun/scripts/gpu"
)

// baselines says what --vs knows, and which of the script's variants each is.
var baselines = map[string]string{
	"nccl":    "sequence", // NCCL's all-gather, then cuBLAS
	"asynctp": "asynctp",  // PyTorch's fused operator on symmetric memory
}

// Baselines lists what an operator can be compared with on GPUs.
func Baselines() []string { return sortedKeys(baselines) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// The loops that calls are timed in.
const (
	LoopEager  = "eager"
	LoopQueued = "queued"
)

// Job is what the script is asked to time: the kernel and the baselines take turns in one loop.
type Job struct {
	Versus  []string
	DType   string
	Loop    string
	Rounds  int // of Calls each
	Calls   int
	Shapes  []plan.Shape
	Configs []config.Settings // by shape
	Chunks  []int             // that shards travel in, by shape
	Library string            // file of the data plane
	Ranks   int
	Plans   map[int][][]byte // of each rank, in binary form, by chunks
	Alone   []byte           // of one rank alone
	GPUs    string           // CUDA_VISIBLE_DEVICES; "": those that are seen here
}

// Timings is what the script wrote.
type Timings struct {
	Device  string                       `json:"device"`
	GPUs    int                          `json:"gpus"`
	Torch   string                       `json:"torch"`
	CUDA    string                       `json:"cuda"`
	Results map[string]map[string]Timing `json:"results"` // by shape and variant
}

// Timing is a variant's figure in the script's words.
type Timing struct {
	MS     float64 `json:"ms"`
	P5     float64 `json:"p5"`
	P95    float64 `json:"p95"`
	HostUS float64 `json:"host_us"`
	Error  string  `json:"error"`
}

func (t Timing) figure() Figure {
	return Figure(t)
}

// queuedCycles is the head start of the host for each call, in millions of cycles: more than the slowest takes to submit.
const queuedCycles = "0.9"

// pythonGrace is how long the script has to end when it is told to.
const pythonGrace = 10 * time.Second

// Python runs the script with the python3 in the PATH, which must have PyTorch.
func Python(ctx context.Context, job Job, progress io.Writer) (t *Timings, err error) {
	dir, err := os.MkdirTemp("", "mkrun-bench-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the script: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := unpack(dir, job); err != nil {
		return nil, fmt.Errorf("writing the script: %w", err)
	}
	result := filepath.Join(dir, "result.json")
	cmd := exec.CommandContext(ctx, "python3", job.arguments(dir, result)...)
	cmd.Stdout, cmd.Stderr = progress, progress
	cmd.Env = append(os.Environ(), "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1")
	if job.GPUs != "" {
		cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+job.GPUs)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = pythonGrace
	if err := cmd.Run(); err != nil {
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // processes of its own that it left; often there are none
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("timing the baselines with python3 (which must have PyTorch with CUDA): %w; its own words are above", err)
	}
	data, err := os.ReadFile(result)
	if err != nil {
		return nil, fmt.Errorf("reading what the script measured: %w", err)
	}
	return readTimings(data)
}

// Ready says why Python cannot run the script here. It takes as long as PyTorch needs to be loaded, and saves the times that would be
// taken before the script fails.
func Ready(ctx context.Context) error {
	const question = "import torch, torch.distributed._symmetric_memory\nif not torch.cuda.is_available(): raise SystemExit('its PyTorch sees no GPU')"
	cmd := exec.CommandContext(ctx, "python3", "-W", "ignore", "-c", question)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = pythonGrace
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	why := err.Error()
	if lines := strings.Split(strings.TrimSpace(string(out)), "\n"); lines[len(lines)-1] != "" {
		why = lines[len(lines)-1]
	}
	return fmt.Errorf("the baselines need a python3 in the PATH that has PyTorch with CUDA: %s", why)
}

func readTimings(data []byte) (*Timings, error) {
	var t Timings
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("reading what the script measured: %w", err)
	}
	return &t, nil
}

// unpack writes the scripts and plans into a folder.
func unpack(dir string, job Job) error {
	names, err := fs.Glob(gpu.FS, "*.py")
	if err != nil {
		return err
	}
	files := map[string][]byte{"alone/rank0.plan": job.Alone}
	for _, name := range names {
		if files[name], err = gpu.FS.ReadFile(name); err != nil {
			return err
		}
	}
	for chunks, ranks := range job.Plans {
		for rank, p := range ranks {
			files[fmt.Sprintf("c%d/rank%d.plan", chunks, rank)] = p
		}
	}
	for name, data := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// arguments are the script's.
func (j Job) arguments(dir, result string) []string {
	args := []string{"-W", "ignore", filepath.Join(dir, "bench.py"), "ag", "--json", result, "--library", j.Library, "--plans", dir,
		"--plan-alone", filepath.Join(dir, "alone"), "--rounds", fmt.Sprint(j.Rounds), "--iterations", fmt.Sprint(j.Calls), "--ranks", fmt.Sprint(j.Ranks), "--dtype", j.DType, "--vs"}
	args = append(args, j.Versus...)
	if j.Loop == LoopQueued {
		args = append(args, "--queued", queuedCycles)
	}
	args = append(args, "--shapes")
	for i, s := range j.Shapes {
		args = append(args, fmt.Sprintf("%s:chunks=%d %s", shapeKey(s), j.Chunks[i], kernelConfig(j.Configs[i])))
	}
	return args
}

// shapeKey is what the script calls a shape.
func shapeKey(s plan.Shape) string { return fmt.Sprintf("%d,%d,%d", s.M, s.N, s.K) }

// kernelConfig is the settings as the script takes them: fields of mk_ag_gemm_config, those that are left out are the
// library's choice.
func kernelConfig(s config.Settings) string {
	var parts []string
	if s.Mover != "" {
		parts = append(parts, "mover="+s.Mover)
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"tile_n", s.TileN}, {"cluster", s.CUDA.Cluster}, {"ctas", s.Compute}, {"raster_group", s.CUDA.RasterGroup},
		{"push_ctas", s.Intra}, {"push_group", s.CUDA.PushGroup}, {"row_block", s.CUDA.RowBlock}, {"k_block", s.CUDA.KBlock},
		{"split_k", s.CUDA.SplitK},
	} {
		if f.value != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", f.name, f.value))
		}
	}
	return strings.Join(parts, " ")
}
