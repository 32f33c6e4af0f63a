//go:build cgo

package measure

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/topology"
)

// build compiles testdata/links.c as a data plane library.
func build(t *testing.T, defines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libmkernel.so")
	args := []string{"-shared", "-fPIC", "-Wall", "-I../../cuda/include", "testdata/links.c", "-o", path}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func TestFiguresArriveInTheirPlaces(t *testing.T) {
	m, err := Open(build(t))
	if err != nil {
		t.Fatal(err)
	}
	uuids, err := m.UUIDs()
	if want := []string{"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"}; err != nil || !slices.Equal(uuids, want) {
		t.Errorf("%v, %v", uuids, err)
	}
	paths, err := m.Pair(0, 1)
	want := [2]topology.MeasuredPath{
		{Direct: true, CopyGBs: 1, BothGBs: 2, StoreGBs: 3, LoadUS: 4, SignalUS: 5, Words: 6, WrongCopy: 8, WrongStore: 10, WrongLoad: 12},
		{CopyGBs: 1.5, BothGBs: 2.5, StoreGBs: 3.5, LoadUS: 4.5, SignalUS: 5.5, Words: 7, WrongCopy: 9, WrongStore: 11, WrongLoad: 13},
	}
	if err != nil || paths != want {
		t.Errorf("%+v, %v", paths, err)
	}
	host, err := m.HostLink(1)
	if want := (topology.MeasuredHost{ToDeviceGBs: 1, ToHostGBs: 2, BothToDeviceGBs: 3, BothToHostGBs: 4, SignalUS: 5, Words: 6, WrongToDevice: 7, WrongToHost: 8}); err != nil || host != want {
		t.Errorf("%+v, %v", host, err)
	}
	if _, err := m.Pair(0, 2); err == nil || err.Error() != "device 2 does not exist" {
		t.Errorf("%v", err)
	}
	if _, err := m.HostLink(2); err == nil || err.Error() != "lost signal 7" {
		t.Errorf("%v", err)
	}
}

func TestLibrariesThatCannotMeasure(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.so")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, path := range map[string]string{
		"cannot open shared object file": "/nowhere/libmkernel.so",
		"text.so":                        text,
		"has no function mk_measure_pair: build it from the same source": build(t, "LINKS_OLD"),
		"has version 77 of the interface":                                build(t, "LINKS_VERSION=77"),
	} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	m, err := Open(build(t, "LINKS_NO_DRIVER"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.UUIDs(); err == nil || err.Error() != "no NVIDIA driver" {
		t.Errorf("%v", err)
	}
}
