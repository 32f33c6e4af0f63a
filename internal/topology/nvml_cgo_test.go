//go:build cgo

package topology

import (
	"encoding/binary"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"
)

// fakeGPU is an H200 whose links lead to hidden switches; link 17 is down.
func fakeGPU(bus uint32) *mock.Device {
	no := nvml.ERROR_NOT_SUPPORTED
	return &mock.Device{
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Bus: bus, PciDeviceId: 0x233510de}, nvml.SUCCESS
		},
		GetNameFunc:                  func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetUUIDFunc:                  func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetSerialFunc:                func() (string, nvml.Return) { return "", no },
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS },
		GetModuleIdFunc:              func() (int, nvml.Return) { return 3, nvml.SUCCESS },
		GetNumaNodeIdFunc:            func() (int, nvml.Return) { return 0, no },
		GetCurrPcieLinkGenerationFunc: func() (int, nvml.Return) {
			return 1, nvml.SUCCESS
		},
		GetCurrPcieLinkWidthFunc:     func() (int, nvml.Return) { return 16, nvml.SUCCESS },
		GetMaxPcieLinkGenerationFunc: func() (int, nvml.Return) { return 5, nvml.SUCCESS },
		GetMaxPcieLinkWidthFunc:      func() (int, nvml.Return) { return 16, nvml.SUCCESS },
		GetNvLinkStateFunc:           func(int) (nvml.EnableState, nvml.Return) { return nvml.FEATURE_DISABLED, no },
		GetNvLinkCapabilityFunc: func(int, nvml.NvLinkCapability) (uint32, nvml.Return) {
			return 1, nvml.SUCCESS
		},
		GetNvLinkRemoteDeviceTypeFunc: func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		},
		GetNvLinkRemotePciInfoFunc: func(int) (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Domain: 0xffffffff, Bus: 0xff, Device: 0xff}, nvml.SUCCESS
		},
		GetFieldValuesFunc: func(values []nvml.FieldValue) nvml.Return {
			for i := range values {
				v := &values[i]
				if v.FieldId != nvml.FI_DEV_NVLINK_GET_STATE || v.ScopeId >= 18 {
					v.NvmlReturn = uint32(no)
					continue
				}
				up := uint64(1)
				if v.ScopeId == 17 {
					up = 0
				}
				binary.LittleEndian.PutUint64(v.Value[:], up)
			}
			return nvml.SUCCESS
		},
		GetMigModeFunc:      func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_DISABLE, 0, nvml.SUCCESS },
		GetEccModeFunc:      func() (nvml.EnableState, nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, 0, nvml.SUCCESS },
		GetRemappedRowsFunc: func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.SUCCESS },
		GetTotalEccErrorsFunc: func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
			return 2, nvml.SUCCESS
		},
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: 4711, UsedGpuMemory: 1 << 30}, {Pid: 4712, UsedGpuMemory: ^uint64(0)}}, nvml.SUCCESS
		},
		GetCurrentClocksThrottleReasonsFunc: func() (uint64, nvml.Return) { return 0x41, nvml.SUCCESS },
	}
}

func TestReadNVML(t *testing.T) {
	lib := &mock.Interface{
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "580.82.07", nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return 2, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if i == 1 {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return fakeGPU(0x18), nvml.SUCCESS
		},
		ErrorStringFunc: func(r nvml.Return) string { return "Insufficient Resources" },
	}
	fabric := func(nvml.Device) (nvml.GpuFabricInfo_v2, nvml.Return) {
		return nvml.GpuFabricInfo_v2{State: 3, Status: uint32(nvml.ERROR_INSUFFICIENT_RESOURCES), ClusterUuid: [16]uint8{1}, CliqueId: 4, HealthMask: 1 | 2<<2 | 5<<8}, nvml.SUCCESS
	}
	var s nvmlState
	readNVML(lib, &s, fabric)
	if len(s.GPUs) != 1 || s.Driver != "580.82.07" {
		t.Fatalf("%d GPUs, driver %q: the lost one must be left out", len(s.GPUs), s.Driver)
	}
	got := s.GPUs[0]
	want := nvmlGPU{GPU: GPU{BDF: "0000:18:00.0", PCI: -1, CUDA: -1, Module: 3, Name: "NVIDIA H200", UUID: "GPU-1", Vendor: vendorNVIDIA, Device: 0x2335, SM: 90, MaxLinks: 18,
		Links:   []NVLink{{Peer: PeerSwitch, Count: 17, Down: 1}},
		Fabric:  &Fabric{State: "completed", Status: "insufficient resources", Cluster: "01000000000000000000000000000000", Clique: 4, Health: []string{"degraded bandwidth", "insufficient NVLinks"}},
		Health:  &GPUHealth{ECC: true, Uncorrected: 2, Throttle: []string{"hardware thermal slowdown"}},
		Holders: []Holder{{PID: 4711, Memory: 1 << 30}, {PID: 4712}}}, Gen: 1, Width: 16, MaxGen: 5, MaxWidth: 16}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Ampere has no field values for link states: the call for each link is asked.
func TestLinkStatesBeforeHopper(t *testing.T) {
	d := fakeGPU(0x18)
	d.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
	d.GetNvLinkStateFunc = func(l int) (nvml.EnableState, nvml.Return) {
		if l >= 12 {
			return nvml.FEATURE_DISABLED, nvml.ERROR_INVALID_ARGUMENT
		}
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	for _, sm := range []int{80, 90} {
		if links, most := nvmlLinks(d, sm); most != 12 || len(links) != 1 || links[0].Count != 12 || links[0].Down != 0 {
			t.Errorf("sm %d: %+v of %d", sm, links, most)
		}
	}
}

// With MIG on, processes hold an instance, not the GPU.
func TestHoldersOfInstances(t *testing.T) {
	d := fakeGPU(0x18)
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 3, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 2 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc: func() (string, nvml.Return) { return []string{"MIG-a", "MIG-b"}[i], nvml.SUCCESS },
			GetNameFunc: func() (string, nvml.Return) { return "", nvml.ERROR_NOT_SUPPORTED },
			GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
				return [][]nvml.ProcessInfo{nil, {{Pid: 5}}}[i], []nvml.Return{nvml.ERROR_NO_PERMISSION, nvml.SUCCESS}[i]
			},
		}, nvml.SUCCESS
	}
	g, ok := nvmlDevice(&mock.Interface{ErrorStringFunc: func(nvml.Return) string { return "" }}, d, 0,
		func(nvml.Device) (nvml.GpuFabricInfo_v2, nvml.Return) { return nvml.GpuFabricInfo_v2{}, nvml.SUCCESS })
	want := []MIG{{UUID: "MIG-a"}, {UUID: "MIG-b", Holders: []Holder{{PID: 5}}}}
	if diff := cmp.Diff(want, g.MIG); !ok || diff != "" || g.Holders != nil {
		t.Errorf("%v, holders of the whole %v (-want +got):\n%s", ok, g.Holders, diff)
	}
}
