package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// gpuScript is the script for machines with many GPUs, which are rarely at hand.
const gpuScript = "../../scripts/gpu-8.sh"

// readScripts reads what other programs run, so that a change is seen.
func readScripts(t *testing.T) {
	t.Helper()
	scripts, err := filepath.Glob("../../scripts/gpu/*.py")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%q, %v", scripts, err)
	}
	for _, name := range append(scripts, gpuScript) {
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
}

// gpuCommands are the commands that the script lists for so many GPUs, as words.
func gpuCommands(t *testing.T, args ...string) [][]string {
	t.Helper()
	readScripts(t)
	const split = `while IFS= read -r line; do eval "set -- ${line%% > WORK/*}"; [ $# -eq 0 ] || { printf '%s\0' "$@"; printf '\n'; }; done`
	out, err := exec.CommandContext(t.Context(), "bash", append([]string{"-c", "set -o pipefail; \"$@\" | " + split, "split", gpuScript}, args...)...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v", gpuScript, args, err)
	}
	var commands [][]string
	for line := range strings.Lines(string(out)) {
		commands = append(commands, strings.Split(strings.TrimSuffix(line, "\x00\n"), "\x00"))
	}
	return commands
}

// Each command of the script is one that its program takes, for every number of GPUs, and finds the plans that it needs.
// (Those of gpu_ag_gemm are checked by cuda/tests/host_fuzz.cpp.)
func TestGPUScriptCommands(t *testing.T) {
	t.Setenv("MKRUN_LIB", libraries["HOSTLIB"])
	makefile, err := os.ReadFile("../../cuda/cuda.mk")
	if err != nil {
		t.Fatal(err)
	}
	plans := strings.Fields(string(makefile))
	for _, gpus := range []int{1, 2, 4, 8} {
		t.Setenv("HOSTLIB_GPUS", fmt.Sprint(gpus))
		seen := map[string]int{}
		for _, words := range gpuCommands(t, fmt.Sprintf("--dry-run=%d", gpus)) {
			seen[words[0]]++
			switch words[0] {
			case "bin/mkrun":
				checkMkrun(t, words[1:])
			case "python3":
				checkBench(t, words[1:], gpus, plans)
			}
		}
		if seen["bin/mkrun"] < 4 || seen["python3"] < 2 || seen["build/gpu_ag_gemm"] < 2 || seen["nvidia-smi"] < 4 {
			t.Errorf("%d GPUs: %v", gpus, seen)
		}
	}
	for _, words := range gpuCommands(t, "--dry-run", "--cpu", "--shapes", "256,64,64") {
		checkMkrun(t, words[1:])
	}
}

// checkMkrun lets mkrun's own parser read a command; what can be resolved without running is.
func checkMkrun(t *testing.T, args []string) {
	t.Helper()
	cmd, rest, err := newRoot().Find(args)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil && len(cmd.Flags().Args()) > 0 {
		err = fmt.Errorf("words left over: %q", cmd.Flags().Args())
	}
	if err == nil && cmd.Flags().Lookup("shapes") != nil {
		err = cmd.ValidateRequiredFlags()
	}
	if err != nil {
		t.Errorf("mkrun %q: %v", args, err)
		return
	}
	if args[0] != "launch" {
		return
	}
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "--json" }) // nothing runs that a document could tell of
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), append([]string{"launch", "--dry-run"}, args[1:]...), strings.NewReader(""), &stdout, &stderr); status != 0 {
		t.Errorf("mkrun %q: status %d\n%s", args, status, stderr.String())
	}
}

// checkBench lets bench.py's own parser read a command.
func checkBench(t *testing.T, words []string, gpus int, plans []string) {
	t.Helper()
	at := slices.Index(words, "scripts/gpu/bench.py")
	if at < 0 {
		t.Errorf("%q is no call of bench.py", words)
		return
	}
	out, err := exec.CommandContext(t.Context(), "python3", append([]string{"-B", "../../scripts/gpu/options.py"}, words[at+1:]...)...).Output()
	if err != nil {
		t.Errorf("bench.py %q: %v", words[at+1:], err)
		return
	}
	var o struct {
		What   string
		Ranks  int
		Nodes  int
		Shapes [][]int
		Chunks map[string]int `json:"chunks_of"`
		JSON   string
	}
	if err := json.Unmarshal(out, &o); err != nil {
		t.Fatal(err)
	}
	if o.Ranks < 1 || o.Ranks > gpus || len(o.Shapes) == 0 || !strings.HasPrefix(o.JSON, "WORK/bench-") {
		t.Errorf("bench.py %q: %s", words[at+1:], out)
	}
	chunks := []int{1}
	for _, n := range o.Chunks {
		chunks = append(chunks, n)
	}
	for _, n := range chunks {
		if name := fmt.Sprintf("%dx%d-c%d", o.Nodes, o.Ranks/o.Nodes, n); !slices.Contains(plans, name) && o.What == "ag" {
			t.Errorf("make cuda writes no plan %s for bench.py %q", name, words[at+1:])
		}
	}
}

// gpuRun runs the script in a tree of its own whose data plane works on host memory. It returns the exit status, what is in
// the folder of results, and all that was said.
func gpuRun(t *testing.T, args ...string) (status int, results map[string]string, said string) {
	t.Helper()
	readScripts(t)
	root, bin := t.TempDir(), t.TempDir()
	out := filepath.Join(root, "out")
	script, err := filepath.Abs(gpuScript)
	if err != nil {
		t.Fatal(err)
	}
	smi := "#!/bin/sh\n[ \"$1\" = -L ] || { echo nvidia-smi $*; exit; }\nfor i in 0 1; do echo \"GPU $i: host memory (UUID: GPU-$i)\"; done\n"
	for _, err := range []error{os.Mkdir(filepath.Join(root, "bin"), 0o755), os.Symlink(filepath.Join(binaryDir, "mkrun"), filepath.Join(root, "bin/mkrun")),
		os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(smi), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{script, "--root", root, out}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "MKRUN_LIB="+libraries["HOSTLIB"], "HOSTLIB_GPUS=2", "GORACE=atexit_sleep_ms=0")
	text, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	results = map[string]string{}
	files, _ := os.ReadDir(out)
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(out, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		results[f.Name()] = string(data)
	}
	return cmd.ProcessState.ExitCode(), results, string(text)
}

// What can run on host memory runs, the results are where they should be, and entries that were tuned are a configuration.
func TestGPUScriptRuns(t *testing.T) {
	status, results, said := gpuRun(t, "--parts", "facts,tune", "--shapes", "64,32,16")
	if status != 0 {
		t.Errorf("status %d\n%s", status, said)
	}
	for name, want := range map[string]string{
		"facts.txt": "nvidia-smi topo -m", "parts.tsv": "tune\tok\t", "tuned.yaml": "tuned 64x32x16 bf16 cuda 1x2", "more.tar.gz": "\x1f\x8b",
		"table.txt": "# gpu-8.sh on 2 GPUs", "logs.txt": "=== tune.log",
	} {
		if !strings.Contains(results[name], want) {
			t.Errorf("%s holds no %q:\n%.2000s", name, want, results[name])
		}
	}
	if len(results) > 8 {
		t.Errorf("%d files", len(results))
	}
}

// A program that is not there, or that takes too long, is told, and what comes after it still runs.
func TestGPUScriptFailures(t *testing.T) {
	status, results, said := gpuRun(t, "--parts", "right,facts")
	if status != 1 || !strings.Contains(said, "part   right    failed after") || !strings.Contains(results["facts.txt"], "nvidia-smi nvlink -s") ||
		!strings.Contains(results["logs.txt"], "build/gpu_ag_gemm 2 brief") {
		t.Errorf("status %d\n%s\n%v", status, said, results)
	}
	status, results, said = gpuRun(t, "--parts", "tune", "--shapes", "32768,4096,8192", "--seconds", "5")
	if status != 0 || !strings.Contains(results["parts.tsv"], "tune\tcut\t") || !strings.Contains(said, "part   tune     cut after") {
		t.Errorf("status %d\n%s\n%v", status, said, results)
	}
	for _, args := range [][]string{{"--parts", "wrong"}, {"--ranks", "3"}, {"--ranks", "4"}, {"--seconds", "x"}, {"--seconds"}, {"--nothing"}} {
		if status, _, said := gpuRun(t, args...); status != 2 || !strings.Contains(said, "gpu-8: ") {
			t.Errorf("%q: status %d, %s", args, status, said)
		}
	}
}

// The plans of four ranks run on the CPU engine.
func TestGPUScriptOnCPU(t *testing.T) {
	status, results, said := gpuRun(t, "--cpu", "--ranks", "4", "--shapes", "256,64,64")
	if status != 0 || !strings.Contains(said, "ok 9\n") {
		t.Errorf("status %d\n%s\n%s", status, said, results["logs.txt"])
	}
	for _, world := range []string{"--nodes 1 --ppn 4", "--nodes 2 --ppn 2"} {
		if !strings.Contains(results["parts.tsv"], "launch "+world+" --engine cpu --check") {
			t.Errorf("%s did not run:\n%s", world, results["parts.tsv"])
		}
	}
}
