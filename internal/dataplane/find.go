// Package dataplane finds the CUDA data plane library, libmkernel.so.
package dataplane

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Library is the file name of the data plane, Env the variable that names another file.
const (
	Library = "libmkernel.so"
	Env     = "MKRUN_LIB"
)

// Find returns the absolute path of the data plane library. It looks at, in this order:
//
//   - the file that MKRUN_LIB names; when the variable is set, nowhere else
//   - the folder of the mkrun binary
//   - ../build from there (a source tree) and ../lib (an installation)
//
// When there is none, the error lists where it looked.
func Find() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the folder of the mkrun binary: %w", err)
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real
	}
	return find(os.Getenv(Env), filepath.Dir(exe))
}

func find(env, exeDir string) (string, error) {
	if env != "" {
		abs, err := filepath.Abs(env)
		if err != nil {
			return "", fmt.Errorf("%s=%s: %w", Env, env, err)
		}
		if !isFile(abs) {
			return "", fmt.Errorf("%s=%s names no file; looked nowhere else", Env, env)
		}
		return abs, nil
	}
	dirs := []string{exeDir, filepath.Join(exeDir, "../build"), filepath.Join(exeDir, "../lib")}
	for _, dir := range dirs {
		if path := filepath.Join(dir, Library); isFile(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is in none of %s, and %s is not set", Library, strings.Join(dirs, ", "), Env)
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}
