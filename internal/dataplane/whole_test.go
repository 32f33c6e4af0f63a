package dataplane

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A library that ends anywhere before its end is refused. (Its loader would not, and die.)
func TestLibrariesThatAreCutShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lib.so")
	compile := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path)
	compile.Stdin = strings.NewReader("int table[4096] = {1};\n")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := Whole(path); err != nil {
		t.Errorf("a whole library is refused: %v", err)
	}
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "short.so")
	for size := 0; size < len(all); size += 1 + len(all)/50 {
		if err := os.WriteFile(short, all[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Whole(short); err == nil || !strings.Contains(err.Error(), "no whole library") {
			t.Errorf("%d bytes of %d: %v", size, len(all), err)
		}
	}

	// Stripped of its section headers, so that only the segments tell.
	headers := bytes.Clone(all)
	copy(headers[0x28:0x30], make([]byte, 8)) // e_shoff
	copy(headers[0x3c:0x40], make([]byte, 4)) // e_shnum, e_shstrndx
	for size, whole := range map[int]bool{len(all): true, 9000: false} {
		if err := os.WriteFile(short, headers[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Whole(short); (err == nil) != whole {
			t.Errorf("without section headers, %d bytes of %d: %v", size, len(all), err)
		}
	}
}
