package gpu

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// python runs a script of this folder.
func python(t *testing.T, args ...string) string {
	t.Helper()
	scripts, err := filepath.Glob("*.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range scripts { // read by others: so that a change is seen
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "python3", append([]string{"-B"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("python3 %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// The model is right about what its constants come from: the queued table of two H200s in docs/results.md.
func TestModelAgreesWithTwoGPUs(t *testing.T) {
	type times map[string]float64
	measured := map[string]times{
		"8192,1024,8192":  {"gemm": .1742, "own": .1799, "sequence": .4654, "asynctp": .3415, "sm": .2607, "ce": .2225},
		"8192,4096,8192":  {"gemm": .6988, "own": .7234, "sequence": .9889, "asynctp": .7692, "sm": .7402, "ce": .7237},
		"4096,2048,4096":  {"gemm": .0902, "own": .0939, "sequence": .1830, "asynctp": .1381, "sm": .1079, "ce": .0997},
		"16384,2048,8192": {"gemm": .6962, "own": .7275, "sequence": 1.2442, "asynctp": .8528, "sm": .7811, "ce": .7349},
		"32768,4096,8192": {"gemm": 3.0807, "own": 3.0741, "sequence": 3.9477, "asynctp": 3.1383, "sm": 3.2249, "ce": 3.2477},
	}
	shapes := strings.Join(slices.Collect(maps.Keys(measured)), " ")
	var said map[string]map[string]any
	all := python(t, "-c", "import json, model, sys; print(json.dumps({s: model.predict(2, *map(int, s.split(','))) for s in sys.argv[1].split()}))", shapes)
	if err := json.Unmarshal([]byte(all), &said); err != nil {
		t.Fatal(err)
	}
	for shape, want := range measured {
		x := said[shape]
		for name, ms := range want {
			bound := .07
			if name == "asynctp" {
				bound = .15
			}
			if got := x[name].(float64); math.Abs(got/ms-1) > bound {
				t.Errorf("%s %s: %.4f, measured %.4f", shape, name, got, ms)
			}
		}
	}
}

// What docs/results.md says is predicted is what the model says.
func TestPredictionsInTheDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/results.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, gpus := range []string{"4", "8"} {
		for line := range strings.Lines(python(t, "model.py", gpus)) {
			if !strings.Contains(string(doc), line) {
				t.Errorf("docs/results.md lacks a line of `model.py %s`: %s", gpus, line)
			}
		}
	}
}

// timing is a variant as bench.py writes it.
func timing(ms float64) map[string]any {
	return map[string]any{"ms": ms, "p5": ms, "p95": ms, "host_us": 50, "waited_us": 3}
}

// The table has a line for each thing that was measured, and says what failed.
func TestSummary(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	run := func(nodes int, shape string, results map[string]any) map[string]any {
		return map[string]any{"what": "ag", "queued": true, "gpus": 8, "nodes": nodes, "net": 50, "cuda": "13", "torch": "2", "device": "H200",
			"date": "2026-11-30", "rounds": 3, "iterations": 10, "results": map[string]any{shape: results}}
	}
	path := map[string]any{"copy_gbs": 390.0, "both_gbs": 385, "store_gbs": 370, "signal_us": 1.5, "load_us": 1.2, "wrong_copy": 0, "wrong_store": 2, "wrong_load": 0}
	host := map[string]any{"to_device_gbs": 53, "to_host_gbs": 55, "signal_us": 3.1, "wrong_to_device": 0, "wrong_to_host": 0}
	files := map[string]any{
		"bench-queued.json": run(1, "8192,1024,8192", map[string]any{"gemm": timing(.174), "gemm (this library)": timing(.18), "allgather": timing(.36),
			"sequence": timing(.55), "asynctp": timing(.42), "default": timing(.39), "mover=1": timing(.45), "mover=2": timing(.39), "mover=2 k_block=8192": timing(.41)}),
		"bench-nodes.json": run(2, "8192,4096,8192", map[string]any{"gemm": timing(.7), "configured": timing(1.4)}),
		"bench-split.json": run(1, "8192,1024,8192", map[string]any{"gemm": timing(.17), "mover=1 push_ctas=8": timing(.6),
			"mover=1 push_ctas=16": timing(.5), "mover=2 k_block=512": map[string]any{"error": "no"}}),
		"topo.json": map[string]any{"nodes": []any{map[string]any{"gpus": []any{map[string]any{"fabric": map[string]any{"state": "completed"}}},
			"measured": map[string]any{"paths": []any{path}, "hosts": []any{host},
				"fans": []any{map[string]any{"sources": 8, "peers": 7, "ctas": 0, "depth": 1, "gbs": 301.4, "wrong": 1}}}}}},
	}
	for name, v := range files {
		data, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"right.log": "gpu_ag_gemm on 8 ranks: 8 passed, 0 failed\n", "fuzz-1.log": "[3] FAIL 17x3x8\n",
		"parts.tsv": "right\tok\t20\t60\tbuild/gpu_ag_gemm 8 brief\nfuzz\tcut\t40\t40\tbuild/gpu_ag_gemm 8 fuzz\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	table := python(t, "summary.py", dir, out, "8")
	for _, want := range []string{
		"part   fuzz     cut after 40 of 40 s: build/gpu_ag_gemm 8 fuzz\n",
		"check  right        gpu_ag_gemm on 8 ranks: 8 passed, 0 failed\n", "check  fuzz-1       did not finish  (1 bad lines)\n",
		"ag     queued 8192,1024,8192  gemm 0.1740 own 0.1800 ag 0.3600 seq 0.5500 atp 0.4200 | 0.3900 [0.3900 0.3900] /best 0.929 /gemm 2.241 | sm 0.4500 ce 0.3900 | exposed 0.55 host 50us | predicted ce ",
		"nodes  2 x 4 at 50 GB/s 8192,4096,8192  gemm 0.7000 link 1.3422 | 1.4000",
		"split  8 GPUs 8192,1024,8192: gemm 0.1700; sm push_ctas=16 0.5000, sm push_ctas=8 0.6000; best 235 GB/s out of each GPU; failed: ['mover=2 k_block=512']",
		"links  fabric completed; 1 paths: copy 390-390, both ways 385-385, store 370-370 GB/s; signal 1.5-1.5, load 1.2-1.2 us; wrong words 3",
		"links  host: to GPU 53-53, to host 55-55 GB/s; GPU-CPU-GPU signal 3.1-3.1 us",
		"fan    8 push to 7, 1 blocks on their way, GB/s by CTAs: all 301",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if data, err := os.ReadFile(filepath.Join(out, "bench.json")); err != nil || !strings.Contains(string(data), `"split": {"cuda"`) {
		t.Errorf("%.200s, %v", data, err)
	}
}

// A variant that failed costs its own line only: the rest of the table is there.
func TestReportGoesOnAfterFailures(t *testing.T) {
	dir := t.TempDir()
	broken := map[string]any{"error": "flag 3 never came"}
	unchecked := timing(.3)
	delete(unchecked, "waited_us") // its first run failed, those that are timed did not
	run := func(what string, nodes int, results map[string]any) map[string]any {
		return map[string]any{"what": what, "queued": false, "gpus": 2, "nodes": nodes, "net": 50, "cuda": "13", "torch": "2", "device": "H200",
			"date": "2026-11-30", "rounds": 3, "iterations": 10, "results": results}
	}
	files := map[string]any{
		"gemm-eager.json": run("gemm", 1, map[string]any{"64,64,64": map[string]any{"cublas": broken, "default": timing(1)},
			"128,64,64": map[string]any{"cublas": timing(1)}, "256,64,64": map[string]any{"cublas": timing(1), "default": timing(1)}}),
		"ag-eager.json": run("ag", 1, map[string]any{"8192,1024,8192": map[string]any{"gemm": timing(.17), "sequence": broken, "asynctp": timing(.34), "default": unchecked}}),
		"ag-nodes.json": run("ag", 2, map[string]any{"64,64,64": map[string]any{"gemm": timing(1)}, "128,64,64": map[string]any{"gemm": broken, "configured": timing(1)},
			"8192,4096,8192": map[string]any{"gemm": timing(.7), "configured": unchecked}}),
	}
	for name, v := range files {
		data, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "steps.tsv"), []byte("right\tok\t3\tbuild/gpu_ag_gemm 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	table := python(t, "report.py", dir)
	for _, want := range []string{
		"gemm   eager  64,64,64: incomplete: ['cublas']\n", "gemm   eager  128,64,64: incomplete: no setting was taken\n", "speed against cublas 1.000\n",
		"seq nan atp 0.3400 | 0.3000", "nodes  64,64,64: the library refused the setting\n", "nodes  128,64,64: flag 3 never came\n", "| 0.3000 [0.3000 0.3000] /max ",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "topo.json"), []byte("{\"nodes\": [{"), 0o600); err != nil { // cut
		t.Fatal(err)
	}
	if said := python(t, "summary.py", dir, dir, "2"); !strings.Contains(said, "links  topo.json is no topology") {
		t.Errorf("a topology that was cut:\n%s", said)
	}
}

// The time that is given counts from the start of the program, which takes long with many GPUs, and none is none.
func TestBenchCountsItsStart(t *testing.T) {
	const script = `
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, patch
for name in ("torch", "torch.distributed", "torch.distributed._symmetric_memory", "torch.multiprocessing"):
    sys.modules[name] = MagicMock()
import bench
left = lambda code: (_ for _ in ()).throw(SystemExit(code))
def run(seconds, begun):
    options = SimpleNamespace(what="ag", shapes=[(1, 2, 8)], seconds=seconds, begun=begun, port=1, json=None)
    fake = MagicMock(gather=lambda mine: [mine])
    with patch.object(bench, "Rank", lambda *_: fake), patch.object(bench, "bench_ag", lambda *_: {}), patch.object(bench, "table_ag", lambda *_: print("timed")), \
         patch.object(bench.os, "_exit", left), patch.object(bench.time, "time", lambda: 1000):
        try:
            bench.worker(0, 1, options)
        except SystemExit:
            pass
run(60, 950)
run(60, 930)
run(0, 999)
run(None, 0)
`
	said := python(t, "-c", script)
	const over = "# (1, 2, 8) and what follows is left out: "
	if want := "timed\n# (1, 2, 8) took 0.0 s\n" + over + "60 s are over\n" + over + "0 s are over\ntimed\n# (1, 2, 8) took 0.0 s\n"; said != want {
		t.Errorf("%q, want %q", said, want)
	}
}

// A setting that the library refuses is told in a line of its own, by all ranks or none, and the rest goes on.
func TestBenchGoesOnAfterARefusal(t *testing.T) {
	const script = `
import sys
from unittest.mock import MagicMock
for name in ("torch", "torch.distributed", "torch.distributed._symmetric_memory", "torch.multiprocessing"):
    sys.modules[name] = MagicMock()
import bench
r = bench.Rank.__new__(bench.Rank)
r.rank, others = 0, []
r.gather = lambda mine: [mine, *others]
def refused():
    raise RuntimeError("split_k 4 of 64 tiles")
print(r.settled("ag X split_k=4", refused))
print(r.settled("ag X default", lambda: (["call"], {})))
others.append("here not")
print(r.settled("gemm X", lambda: (["call"], {})))
`
	want := "FAILED ag X split_k=4: split_k 4 of 64 tiles\n(None, None)\n(['call'], {})\nFAILED gemm X: here not\n(None, None)\n"
	if said := python(t, "-c", script); said != want {
		t.Errorf("%q, want %q", said, want)
	}
}
