//go:build cgo

package mknet

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A file that is there and is not this version's library is refused by what it is.
func TestOtherLibrariesAreRefused(t *testing.T) {
	for source, want := range map[string]string{
		"unsigned mknet_version(void) { return 77; }": "it has version 77 of the interface, this mkrun speaks version 3",
		"unsigned mknet_version(void) { return 3; }":  "it has no function mknet_usable",
		"int other;": "it has no function mknet_version",
	} {
		path := filepath.Join(t.TempDir(), Library)
		compile := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path)
		compile.Stdin = strings.NewReader(source)
		if out, err := compile.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, err := open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", source, err, want)
		}
	}
	short := filepath.Join(t.TempDir(), Library)
	if err := os.WriteFile(short, []byte("\x7fELF, cut short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(short); err == nil || !strings.Contains(err.Error(), "cannot be used: it is no whole library") {
		t.Errorf("a file that is cut short: got %v", err)
	}
}
