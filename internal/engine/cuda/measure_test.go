package cuda_test

import (
	"slices"
	"testing"

	"github.com/mkrun/mkrun/internal/engine/cuda"
	"github.com/mkrun/mkrun/internal/topology"
)

func TestMeasuredFiguresArriveInTheirPlaces(t *testing.T) {
	t.Setenv("HOSTLIB_GPUS", "2")
	m, err := cuda.OpenLibrary(hostlib)
	if err != nil {
		t.Fatal(err)
	}
	uuids, err := m.UUIDs()
	if want := []string{"GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000001"}; err != nil || !slices.Equal(uuids, want) {
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
	fans, err := m.FanOut([]int{1, 0}, []topology.MeasuredFan{{Sources: 1, Peers: 1, CTAs: 16, Depth: 4}, {Sources: 2, Peers: 1, Depth: 1}})
	if want := []topology.MeasuredFan{
		{Sources: 1, Peers: 1, CTAs: 16, Depth: 4, GBs: 1116.4, Words: 14, Wrong: 15},
		{Sources: 2, Peers: 1, Depth: 1, GBs: 2100.1, Words: 15, Wrong: 16},
	}; err != nil || !slices.Equal(fans, want) {
		t.Errorf("%+v, %v", fans, err)
	}
	if _, err := m.FanOut([]int{0, 2}, []topology.MeasuredFan{{Sources: 1, Peers: 1, Depth: 1}}); err == nil || err.Error() != "a device that does not exist" {
		t.Errorf("%v", err)
	}
	if _, err := m.Pair(0, 2); err == nil || err.Error() != "a device that does not exist" {
		t.Errorf("%v", err)
	}
	if _, err := m.HostLink(2); err == nil || err.Error() != "lost signal 7" {
		t.Errorf("%v", err)
	}
}
