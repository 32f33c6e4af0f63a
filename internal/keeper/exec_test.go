package keeper

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/stdio"
)

// A folder of PATH that the user may not search has nothing in it, as for a shell: the program is not found (127)
// rather than not executable (126).
func TestFolderThatMayNotBeSearched(t *testing.T) {
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(closed, "prog"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(closed, 0o700) })
	if os.Getuid() == 0 { // root may search everything, unless this thread looks at files as somebody else
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setfsuid(0) }()
	}
	_, fail := resolve(wireRank{Argv: []string{"prog"}, Env: []string{"PATH=" + closed}, Dir: "/"})
	if fail == nil || fail.status != stdio.StatusNotFound {
		t.Errorf("got %+v, want status %d", fail, stdio.StatusNotFound)
	}
}
