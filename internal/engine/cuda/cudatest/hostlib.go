// Package cudatest builds, for tests, a library with the data plane's C interface that works on host memory. What it
// pretends to have and the faults it can make are said in the environment: see internal/engine/cuda/testdata/hostlib.c.
package cudatest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build compiles the library into dir and returns its path. Macros are NAME=VALUE, e.g. HOSTLIB_VERSION=99 for one of
// another interface version.
func Build(dir string, macros ...string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "libmkernel.so")
	args := []string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", filepath.Join(root, "cuda/include"),
		filepath.Join(root, "internal/engine/cuda/testdata/hostlib.c"), "-ldl", "-o", path}
	for _, m := range macros {
		args = append(args, "-D"+m)
	}
	if out, err := exec.CommandContext(context.Background(), "gcc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("compiling the data plane on host memory: %w\n%s", err, out)
	}
	return path, nil
}

// moduleRoot is the folder of go.mod above the working directory, which for a test is that of its package.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", fmt.Errorf("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}
