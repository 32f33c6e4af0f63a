package cuda_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/engine/cuda"
	"github.com/mkrun/mkrun/internal/engine/cuda/cudatest"
)

func TestLibrariesThatCannotBeUsed(t *testing.T) {
	other, err := cudatest.Build(t.TempDir(), "HOSTLIB_VERSION=99")
	if err != nil {
		t.Fatal(err)
	}
	noLibrary := filepath.Join(t.TempDir(), "libmkernel.so")
	if err := os.WriteFile(noLibrary, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	// gcc makes libraries of whatever is in the standard input.
	compiled := func(source string) string {
		path := filepath.Join(t.TempDir(), "libmkernel.so")
		cmd := exec.CommandContext(t.Context(), "gcc", "-x", "c", "-shared", "-fPIC", "-I../../../cuda/include", "-", "-o", path)
		cmd.Stdin = strings.NewReader(source)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return path
	}
	for name, tt := range map[string]struct{ path, want string }{
		"another version":  {other, "has version 99 of the interface"},
		"no file":          {"/no/such/libmkernel.so", "no such file or directory"},
		"no library":       {noLibrary, "cannot be used: it is no whole library"},
		"no data plane":    {compiled("int x;"), "it has no function mk_version"},
		"without function": {compiled("#include \"mkernel.h\"\nuint32_t mk_version(void) { return MK_VERSION; }"), "it has no function mk_device_count"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := cuda.OpenLibrary(tt.path); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestDevices(t *testing.T) {
	t.Setenv("HOSTLIB_GPUS", "3")
	lib, err := cuda.OpenLibrary(hostlib)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := lib.Devices()
	if err != nil || len(devices) != 3 {
		t.Fatalf("%d devices (%v), want 3", len(devices), err)
	}
	d := devices[2]
	if d.Ordinal != 2 || d.UUID != "GPU-00000000-0000-0000-0000-000000000002" || d.Major != 9 || d.Minor != 0 || d.SMs != 4 ||
		d.Bytes != 16<<30 || d.Driver != 13000 || d.ClockKHz != 1000000 {
		t.Errorf("the last device is %+v", d)
	}
	if err := d.Fits(); err != nil {
		t.Errorf("it does not fit: %v", err)
	}
	t.Setenv("HOSTLIB_GPUS", "-1")
	if _, err := lib.Devices(); err == nil || !strings.Contains(err.Error(), "driver") {
		t.Errorf("without a driver the error is %v", err)
	}
}
