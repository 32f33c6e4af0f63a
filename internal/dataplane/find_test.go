package dataplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	root := t.TempDir()
	bin := filepath.Join(root, "bin")
	touch := func(dir string) string {
		t.Helper()
		path := filepath.Join(root, dir, Library)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}

	_, err := find("", bin)
	for _, want := range []string{Library, bin, filepath.Join(root, "build"), filepath.Join(root, "lib"), Env} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with no library the error is %v, want it to name %s", err, want)
		}
	}

	// Each place that is filled comes before those filled earlier.
	for _, dir := range []string{"lib", "build", "bin", "elsewhere"} {
		want, env := touch(dir), ""
		if dir == "elsewhere" {
			env = want
		}
		if got, err := find(env, bin); err != nil || got != want {
			t.Errorf("with %s filled: %q, %v; want %q", dir, got, err, want)
		}
	}

	if got, err := find(filepath.Join(root, "none.so"), bin); err == nil || !strings.Contains(err.Error(), "none.so") {
		t.Errorf("a variable that names no file gives %q, %v; want an error that names it", got, err)
	}
	if got, err := find(root, bin); err == nil {
		t.Errorf("a variable that names a folder gives %q, want an error", got)
	}
}
