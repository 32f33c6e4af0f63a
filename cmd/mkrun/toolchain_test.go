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
		"old CUDA_HOME":     {old, empty, pinned, "CUDA_HOME: nvcc in " + old + " is 11.8, and 12.9 or newer is needed: not used"},
		"broken CUDA_HOME":  {broken, new9, new9, "CUDA_HOME: there is no bin/nvcc that runs in " + broken + ": not used"},
		"no such CUDA_HOME": {"/none", empty, pinned, "CUDA_HOME: there is no bin/nvcc that runs in /none: not used"},
		"old on PATH":       {"", old, pinned, "PATH: nvcc in " + old + " is 11.8, and 12.9 or newer is needed: not used"},
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

// make cuda compiles with the compiler of now, also one in a folder whose name has a blank, and compiles nothing twice.
func TestCUDACompilerThatChanges(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"cuda", "scripts"} {
		from, err := filepath.Abs("../../" + name)
		if err == nil {
			err = os.Symlink(from, filepath.Join(root, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"../../cuda/cuda.mk", "../../scripts/cuda-toolchain.sh"} { // read by others: so that a change is seen
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	compiler := func(name string) string { // one that writes where it is
		home := filepath.Join(t.TempDir(), name)
		writeCompiler(t, home, "13.0")
		const text = `#!/bin/sh
[ "$1" != --version ] || { echo 'Cuda compilation tools, release 13.0, V13.0.1'; exit; }
while [ "$1" != -o ]; do shift; done
echo "$0" > "$2"
echo "ptxas info    : Used 8 registers" >&2
`
		if err := os.WriteFile(filepath.Join(home, "bin", "nvcc"), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return home
	}
	first, second := compiler("cuda"), compiler("cuda of today")
	const object = "build/cuda/kernels/hold.o"
	for i, home := range []string{first, second, second, first} {
		cmd := exec.CommandContext(t.Context(), "make", "-f", "cuda/cuda.mk", object)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CUDA_HOME="+home)
		out, err := cmd.CombinedOutput()
		by, _ := os.ReadFile(filepath.Join(root, object))
		if err != nil || strings.TrimSpace(string(by)) != home+"/bin/nvcc" {
			t.Errorf("compiled by %q, want %s (%v)\n%s", by, home, err, out)
		}
		if again := i == 2; again == strings.Contains(string(out), "/bin/nvcc") {
			t.Errorf("round %d:\n%s", i, out)
		}
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
