package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The compiler that make cuda takes, and what is said of those it does not take. (The pinned one is pretended.)
func TestCUDACompilerThatIsTaken(t *testing.T) {
	const script = "../../scripts/cuda-toolchain.sh"
	if _, err := os.Stat(script); err != nil { // so that go test knows that the result depends on it
		t.Fatal(err)
	}
	compiler := func(version string) string {
		home := t.TempDir()
		writeCompiler(t, home, version)
		return home
	}
	tools := t.TempDir()
	pinned := filepath.Join(tools, "cuda-13.0.88", "nvidia", "cu13")
	writeCompiler(t, pinned, "13.0")
	if err := os.WriteFile(filepath.Join(tools, "cuda-13.0.88", ".complete"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old, new9, new10, broken, empty := compiler("11.8"), compiler("12.9"), compiler("12.10"), compiler(""), t.TempDir()
	programs := t.TempDir() // those that the script runs, and no compiler of this machine
	for _, name := range []string{"dirname", "readlink", "sed"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(programs, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct{ home, path, want, said string }{
		"none":              {"", empty, pinned, ""},
		"new CUDA_HOME":     {new9, old, new9, ""},
		"new on PATH":       {"", new10, new10, ""},
		"old CUDA_HOME":     {old, empty, pinned, "CUDA_HOME, " + old + ", has no bin/nvcc that runs and is 12.9 or newer: not used"},
		"broken CUDA_HOME":  {broken, new9, new9, "CUDA_HOME, " + broken + ", has no bin/nvcc"},
		"no such CUDA_HOME": {"/none", empty, pinned, "CUDA_HOME, /none, has no bin/nvcc"},
		"old on PATH":       {"", old, pinned, "nvcc on PATH, " + old + "/bin/nvcc, does not run or is older than 12.9: not used"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "bash", script)
			cmd.Env = []string{"PATH=" + filepath.Join(tt.path, "bin") + ":" + programs, "MKRUN_TOOLS=" + tools, "CUDA_HOME=" + tt.home}
			var said bytes.Buffer
			cmd.Stderr = &said
			out, err := cmd.Output()
			if got := strings.TrimSpace(string(out)); err != nil || got != tt.want {
				t.Errorf("%q (%v), want %q; it said %q", got, err, tt.want, said.String())
			}
			if !strings.Contains(said.String(), tt.said) || tt.said == "" && said.Len() > 0 {
				t.Errorf("it said %q, want %q", said.String(), tt.said)
			}
		})
	}
}

// writeCompiler makes an nvcc that only knows its version; one without a version does not run.
func writeCompiler(t *testing.T, home, version string) {
	t.Helper()
	script := "#!/bin/sh\nexit 1\n"
	if version != "" {
		script = fmt.Sprintf("#!/bin/sh\necho 'Cuda compilation tools, release %s, V%s.1'\n", version, version)
	}
	if err := os.MkdirAll(filepath.Join(home, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "bin", "nvcc"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}
