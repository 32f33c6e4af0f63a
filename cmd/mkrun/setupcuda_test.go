package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// compilers makes folders, whose names have a blank, with an nvcc in each that says to be of a version; "" for one that does not run.
func compilers(t *testing.T, versions ...string) (roots []string) {
	t.Helper()
	for _, version := range versions {
		root := filepath.Join(t.TempDir(), "a cuda")
		writeCompiler(t, root, version)
		roots = append(roots, root)
	}
	return roots
}

// scriptRun runs a script with only these programs in its PATH beside some that every system has, and one that says what it was asked.
func scriptRun(t *testing.T, script string, programs map[string]string, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	path := t.TempDir()
	for _, name := range []string{"sed", "dirname", "readlink", "mktemp", "mkdir", "rm", "bash", "env", "id", "cat"} {
		file, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(file, filepath.Join(path, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(path, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file, err := filepath.Abs("../../scripts/" + script)
	if err != nil {
		t.Fatal(err)
	}
	for _, read := range []string{file, "../../scripts/cuda-toolchain.sh"} { // so that a change is seen
		if _, err := os.ReadFile(read); err != nil {
			t.Fatal(err)
		}
	}
	var out, said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), file, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append([]string{"PATH=" + path, "MKRUN_TOOLS=" + t.TempDir()}, env...), &out, &said
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), said.String()
}

// The compiler of CUDA_HOME is taken if it serves; what is wrong with one that does not, and what to do without network, is said.
func TestCUDACompiler(t *testing.T) {
	roots := compilers(t, "12.8", "12.9", "13.1", "9.2", "")
	for i, want := range []string{"nvcc in " + roots[0] + " is 12.8, and 12.9 or newer is needed", "", "", "nvcc in " + roots[3] + " is 9.2, and", "there is no bin/nvcc that runs in " + roots[4]} {
		status, stdout, stderr := scriptRun(t, "cuda-toolchain.sh", nil, []string{"CUDA_HOME=" + roots[i]}, "--have")
		if want == "" && (status != 0 || stdout != roots[i]+"\n" || stderr != "") || want != "" && (status != 1 || stdout != "" || !strings.Contains(stderr, "CUDA_HOME: "+want)) {
			t.Errorf("%s: status %d, %q, %q", roots[i], status, stdout, stderr)
		}
	}
	status, stdout, stderr := scriptRun(t, "cuda-toolchain.sh", map[string]string{"python3": "echo no network; exit 1", "sleep": ""}, nil)
	if status != 1 || stdout != "" || !strings.Contains(stderr, "could not be installed: pip's words are above. Without network set CUDA_HOME to a CUDA of 12.9 or newer") {
		t.Errorf("without network: status %d, %q, %q", status, stdout, stderr)
	}
}

// Where a compiler serves, pip is not asked for.
func TestSetupForCUDA(t *testing.T) {
	roots := compilers(t, "13.0", "12.0")
	programs := map[string]string{"g++": "cat >/dev/null", "python3": "exit 1"} // a compiler reads what it is given
	if status, _, stderr := scriptRun(t, "setup.sh", programs, []string{"CUDA_HOME=" + roots[0]}, "cuda"); status != 0 {
		t.Errorf("status %d, %s", status, stderr)
	}
	if status, _, stderr := scriptRun(t, "setup.sh", programs, []string{"CUDA_HOME=" + roots[1]}, "cuda"); status != 1 || !strings.Contains(stderr, "apt-get install -y python3-pip") {
		t.Errorf("too old: status %d, %s", status, stderr)
	}
}
