package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// gpuScript is the script for machines with many GPUs, which are rarely at hand; checkScript is the one for one or two.
const (
	gpuScript   = "../../scripts/gpu-8.sh"
	checkScript = "../../scripts/gpu-check.sh"
)

// readScripts reads what other programs run, so that a change is seen.
func readScripts(t *testing.T) {
	t.Helper()
	scripts, err := filepath.Glob("../../scripts/gpu/*.py")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%q, %v", scripts, err)
	}
	for _, name := range append(scripts, gpuScript, checkScript, "../../scripts/gpu/common.sh") {
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
}

// gpuCommands are the commands that a script lists for so many GPUs, as words.
func gpuCommands(t *testing.T, script string, args ...string) [][]string {
	t.Helper()
	readScripts(t)
	const split = `while IFS= read -r line; do eval "set -- ${line%% > WORK/*}"; [ $# -eq 0 ] || { printf '%s\0' "$@"; printf '\n'; }; done`
	out, err := exec.CommandContext(t.Context(), "bash", append([]string{"-c", "set -o pipefail; \"$@\" | " + split, "split", script}, args...)...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v", script, args, err)
	}
	var commands [][]string
	for line := range strings.Lines(string(out)) {
		commands = append(commands, strings.Split(strings.TrimSuffix(line, "\x00\n"), "\x00"))
	}
	return commands
}

// Each command of the scripts is one that its program takes, for every number of GPUs, and finds the plans that it needs.
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
		for _, script := range []string{gpuScript, checkScript} {
			seen := map[string]int{}
			for _, words := range gpuCommands(t, script, fmt.Sprintf("--dry-run=%d", gpus)) {
				seen[words[0]]++
				switch words[0] {
				case "bin/mkrun":
					checkMkrun(t, words[1:])
				case "python3":
					checkBench(t, words[1:], gpus, plans)
				}
			}
			if seen["bin/mkrun"] < 4 || seen["python3"] < 2 || seen["build/gpu_ag_gemm"] < 2 || script == gpuScript && seen["nvidia-smi"] < 4 {
				t.Errorf("%s for %d GPUs: %v", script, gpus, seen)
			}
		}
	}
	for _, words := range gpuCommands(t, gpuScript, "--dry-run", "--cpu", "--shapes", "256,64,64") {
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
	if o.Ranks < 1 || o.Ranks > gpus || len(o.Shapes) == 0 || !strings.HasPrefix(o.JSON, "WORK/bench-") && !strings.HasPrefix(o.JSON, "build/gpu-check/") {
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
	if _, err := os.Stat(out); err == nil && cmd.ProcessState.ExitCode() == 2 {
		t.Errorf("%q left a folder", args)
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
	if status, _, said := gpuRun(t, "--help"); status != 0 || !strings.HasPrefix(said, "Checks and times ag_gemm on all GPUs") || strings.Contains(said, "pipefail") {
		t.Errorf("--help: status %d, %s", status, said)
	}
	for _, args := range [][]string{{"--parts", "wrong"}, {"--ranks", "3"}, {"--ranks", "4"}, {"--seconds", "x"}, {"--seconds"}, {"--nothing"}, {"--dry-run=08"},
		{"--ranks", "02"}, {"--parts", ""}, {"--parts", ","}, {"--shapes", ""}, {"--shapes", "foo"}, {"--shapes", "64,32,16 64,32"}, {"--seconds", "99999999999999999999"}} {
		if status, results, said := gpuRun(t, args...); status != 2 || len(results) > 0 || !strings.Contains(said, "gpu-8: ") {
			t.Errorf("%q: status %d, %s", args, status, said)
		}
	}
}

// Each world of the plans is there once.
func TestGPUScriptListsEachWorldOnce(t *testing.T) {
	for ranks, want := range map[string]string{"1": "1x1", "2": "1x2 2x1", "4": "1x4 2x2", "8": "1x8 2x4 4x2"} {
		_, _, said := gpuRun(t, "--cpu", "--ranks", ranks, "--shapes", "64,32,16", "--dry-run")
		var worlds []string
		for _, m := range regexp.MustCompile(`mkrun plan --nodes (\d) --ppn (\d)`).FindAllStringSubmatch(said, -1) {
			worlds = append(worlds, m[1]+"x"+m[2])
		}
		if got := strings.Join(worlds, " "); got != want {
			t.Errorf("%s ranks: %s, want %s\n%s", ranks, got, want, said)
		}
	}
}

// What the model is not made for is told in words.
func TestModelSaysWhatItTakes(t *testing.T) {
	readScripts(t)
	for _, args := range [][]string{nil, {"0"}, {"1"}, {"x"}, {"2", "3"}, {"2"}} {
		out, err := exec.CommandContext(t.Context(), "python3", append([]string{"../../scripts/gpu/model.py"}, args...)...).CombinedOutput()
		good := len(args) == 1 && args[0] == "2"
		if (err == nil) != good || strings.Contains(string(out), "Traceback") || !good && !strings.Contains(string(out), "model.py: one argument") {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}

// The plans of four ranks run on the CPU engine.
func TestGPUScriptOnCPU(t *testing.T) {
	status, results, said := gpuRun(t, "--cpu", "--ranks", "4", "--shapes", "256,64,64")
	if status != 0 || !strings.Contains(said, "ok 6\n") {
		t.Errorf("status %d\n%s\n%s", status, said, results["logs.txt"])
	}
	for _, world := range []string{"--nodes 1 --ppn 4", "--nodes 2 --ppn 2"} {
		if !strings.Contains(results["parts.tsv"], "launch "+world+" --engine cpu --check") {
			t.Errorf("%s did not run:\n%s", world, results["parts.tsv"])
		}
	}
}

// checkRun runs the script for one or two GPUs in a tree of its own, with programs that only say that all is well; the first
// command line that begins with `fails` fails. A run before has left its files. It returns the exit status, the lines of
// steps.tsv and what was said, with an N for the seconds that a step took.
func checkRun(t *testing.T, gpus int, fails string, args ...string) (status int, steps, said string) {
	t.Helper()
	readScripts(t)
	scripts, err := filepath.Abs("../../scripts")
	if err != nil {
		t.Fatal(err)
	}
	root, bin := t.TempDir(), t.TempDir()
	const well = `echo "$(basename $0) $*"; case "$(basename $0) $* on ${CUDA_VISIBLE_DEVICES:-all}" in FAILS*) exit 1 ;; esac; echo "1 passed, 0 failed"`
	program := func(path, text string) {
		t.Helper()
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	failing := func(text string) string {
		return strings.ReplaceAll(text, "FAILS", strings.ReplaceAll(fails, " ", `\ `))
	}
	for _, path := range []string{"bin/mkrun", "build/gpu_ag_gemm", "build/gpu_measure", "build/example_ag_gemm", "build/libmkernel.so", "build/plans/written"} {
		program(filepath.Join(root, path), failing(well))
	}
	for _, name := range []string{"table.txt", "gemm-eager.txt"} {
		program(filepath.Join(root, "build/gpu-check", name), "0 failed")
	}
	program(filepath.Join(bin, "nvidia-smi"), fmt.Sprintf(`[ "$1" = -L ] || exit 0; for i in $(seq %d); do echo "GPU $i: H200"; done`, gpus))
	program(filepath.Join(bin, "nvidia-cuda-mps-control"), `echo "$* $(test -t 0 || cat)" >> "`+root+`/mps"`)
	const sanitizer = `case "compute-sanitizer $*" in FAILS*) ;; *) echo "ERROR SUMMARY: 0 errors"; exit ;; esac
while [ $# -gt 0 ] && [ "$1" != --error-exitcode ]; do shift; done
echo "ERROR SUMMARY: 1 errors"
exit "${2:-0}"`
	program(filepath.Join(bin, "compute-sanitizer"), failing(sanitizer))
	program(filepath.Join(bin, "python3"), `case "$*" in *report.py*) exec /usr/bin/env -i PATH="$OLDPATH" python3 "$@" ;; esac`)
	if err := os.Symlink(scripts, filepath.Join(root, "scripts")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{filepath.Join(root, "scripts/gpu-check.sh")}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "OLDPATH="+os.Getenv("PATH"))
	text, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(filepath.Join(root, "build/gpu-check/steps.tsv"))
	if strings.Contains(string(data), "shared\tok") { // the daemon was started, and told to go
		if mps, err := os.ReadFile(filepath.Join(root, "mps")); err != nil || string(mps) != "-d \n quit\n" {
			t.Errorf("MPS: %q, %v", mps, err)
		}
	}
	steps = regexp.MustCompile(`(?m)^(\S+\t\S+\t)\d+\t`).ReplaceAllString(string(data), "${1}N\t")
	said = regexp.MustCompile(`, after \d+ s: `).ReplaceAllString(string(text), ", after N s: ")
	return cmd.ProcessState.ExitCode(), steps, said
}

// A signal ends the command in progress with all that it started, and then the script, at once.
func TestGPUScriptsEndAtOnce(t *testing.T) {
	readScripts(t)
	scripts, err := filepath.Abs("../../scripts")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{"gpu-8.sh", "gpu-check.sh"} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			t.Run(fmt.Sprint(script, " ", sig), func(t *testing.T) {
				root := t.TempDir()
				for name, text := range map[string]string{
					"build/gpu_ag_gemm": "sleep 100 & echo up >&3; wait", "build/gpu_measure": "", "build/libmkernel.so": "", "build/plans/written": "", "bin/mkrun": "",
					"path/nvidia-smi": "[ \"$1\" != -L ] || echo 'GPU 0: H200'",
				} {
					err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755)
					if err == nil {
						err = os.WriteFile(filepath.Join(root, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if err := os.Symlink(scripts, filepath.Join(root, "scripts")); err != nil {
					t.Fatal(err)
				}
				alive, held, err := os.Pipe() // all processes hold it
				if err != nil {
					t.Fatal(err)
				}
				defer alive.Close()
				args := []string{filepath.Join(root, "scripts", script), filepath.Join(root, "out")}
				if script == "gpu-8.sh" {
					args = append(args, "--root", root, "--parts", "right")
				}
				var said bytes.Buffer
				cmd := exec.CommandContext(t.Context(), "bash", args...)
				cmd.Env = append(os.Environ(), "PATH="+filepath.Join(root, "path")+":"+os.Getenv("PATH"))
				cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &said, &said, []*os.File{held}
				if err := errors.Join(cmd.Start(), held.Close(), alive.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
					t.Fatal(err)
				}
				if up := make([]byte, 3); true {
					_, err = io.ReadFull(alive, up)
				}
				if err == nil {
					err = cmd.Process.Signal(sig)
				}
				if err == nil {
					_, err = io.ReadAll(alive)
				}
				if err != nil {
					_ = cmd.Process.Kill()
				}
				_ = cmd.Wait()
				if err != nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "interrupted; ") {
					t.Errorf("%v, %v\n%s", err, cmd.ProcessState, said.String())
				}
			})
		}
	}
}

// One GPU is enough; what fails is told and the rest goes on; what no time is left for is said.
func TestCheckScriptRuns(t *testing.T) {
	for gpus, fuzz := range map[int]string{1: "4 of 4", 2: "6 of 6"} { // two GPUs: nodes of one each, too
		status, steps, said := checkRun(t, gpus, "nothing")
		if status != 0 || !strings.Contains(steps, "shared-nodes\tok\tN\tbuild/gpu_ag_gemm 4 brief 2 2 1 efa\n") || strings.Count(said, "\n") > 60 ||
			!strings.Contains(said, "check  fuzz          "+fuzz+" in ") {
			t.Errorf("%d GPUs: status %d\n%s\n%s", gpus, status, said, steps)
		}
	}
	status, steps, said := checkRun(t, 1, "gpu_ag_gemm 4 brief 2 2")
	if status != 1 || !strings.Contains(said, "check  shared-nodes  3 of 5 in ") || !strings.Contains(said, "failed shared-nodes, after N s: build/gpu_ag_gemm 4 brief 2 2 1 efa\n") ||
		!strings.Contains(steps, "racecheck\tok\t") {
		t.Errorf("status %d\n%s\n%s", status, said, steps)
	}
	status, steps, said = checkRun(t, 1, "compute-sanitizer --tool racecheck")
	if status != 1 || !strings.Contains(steps, "memcheck\tok\tN\t") || !strings.Contains(steps, "racecheck\tfailed\tN\t") {
		t.Errorf("status %d\n%s\n%s", status, said, steps)
	}
	// Where there are more GPUs two are used, so that ranks do share them.
	if status, steps, said := checkRun(t, 8, "gpu_ag_gemm 4 brief on 0,1"); status != 1 || !strings.Contains(steps, "shared\tfailed\tN\tbuild/gpu_ag_gemm 4 brief\n") {
		t.Errorf("status %d\n%s\n%s", status, said, steps)
	}
	t.Run("GPUs that CUDA hides", func(t *testing.T) {
		t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-7")
		if status, steps, said := checkRun(t, 8, "gpu_ag_gemm 2 brief on 0"); status != 1 || !strings.Contains(steps, "right\tok\tN\tbuild/gpu_ag_gemm 1\n") ||
			strings.Contains(steps, "right\tok\tN\tbuild/gpu_ag_gemm 2\n") || !strings.Contains(steps, "shared\tfailed\tN\tbuild/gpu_ag_gemm 2 brief\n") {
			t.Errorf("status %d\n%s\n%s", status, said, steps)
		}
		t.Setenv("CUDA_VISIBLE_DEVICES", "")
		if status, _, said := checkRun(t, 8, "nothing"); status != 2 || said != "gpu-check: no GPU here\n" {
			t.Errorf("none is shown: status %d, %s", status, said)
		}
	})
	status, steps, said = checkRun(t, 1, "nothing", "--seconds", "2")
	if status != 1 || strings.Contains(steps, "\tok\t") || !strings.Contains(said, "skipped right, after N s: build/gpu_ag_gemm 1\n") {
		t.Errorf("status %d\n%s\n%s", status, said, steps)
	}
	for _, args := range [][]string{{"--seconds", "x"}, {"--seconds"}, {"--nothing"}, {"a", "b"}, {"--dry-run=08"}, {"--dry-run=0"}} {
		if status, steps, said := checkRun(t, 1, "nothing", args...); status != 2 || steps != "" || !strings.Contains(said, "gpu-check: ") {
			t.Errorf("%q: status %d, %s", args, status, said)
		}
	}
	if status, _, said := checkRun(t, 0, "nothing"); status != 2 || said != "gpu-check: no GPU here\n" {
		t.Errorf("no GPU: status %d, %s", status, said)
	}
}
