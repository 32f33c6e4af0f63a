//go:build cgo

package doctor

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"
)

// mockDevice is a GPU that answers everything; what it lacks answers "not supported" when small.
func mockDevice(small bool) *mock.Device {
	extra := nvml.SUCCESS
	if small {
		extra = nvml.ERROR_NOT_SUPPORTED
	}
	return &mock.Device{
		GetNameFunc:                  func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetUUIDFunc:                  func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetPciInfoFunc:               func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{Bus: 0x18}, nvml.SUCCESS },
		GetMemoryInfoFunc:            func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 141 * gib}, nvml.SUCCESS },
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS },
		GetMigModeFunc:               func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, extra },
		GetEccModeFunc: func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
			return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, extra
		},
		GetTotalEccErrorsFunc: func(kind nvml.MemoryErrorType, since nvml.EccCounterType) (uint64, nvml.Return) {
			if kind != nvml.MEMORY_ERROR_TYPE_UNCORRECTED || since != nvml.VOLATILE_ECC {
				return 99, nvml.SUCCESS
			}
			return 2, extra
		},
	}
}

func mockLibrary(devices ...*mock.Device) *mock.Interface {
	return &mock.Interface{
		SystemGetDriverVersionFunc:     func() (string, nvml.Return) { return "580.82.07", nvml.SUCCESS },
		SystemGetCudaDriverVersionFunc: func() (int, nvml.Return) { return 13010, nvml.SUCCESS },
		DeviceGetCountFunc:             func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if devices[i] == nil {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return devices[i], nvml.SUCCESS
		},
		ErrorStringFunc: func(r nvml.Return) string { return map[nvml.Return]string{nvml.ERROR_GPU_IS_LOST: "GPU is lost"}[r] },
	}
}

func TestReadDevices(t *testing.T) {
	got, err := readDevices(mockLibrary(mockDevice(false), mockDevice(true)))
	if err != nil {
		t.Fatal(err)
	}
	full := GPU{Index: 0, Name: "NVIDIA H200", UUID: "GPU-1", PCI: "0000:18:00.0", MemoryBytes: 141 * gib,
		Capability: "9.0", MIG: true, ECC: true, Uncorrected: 2}
	small := full
	small.Index, small.MIG, small.ECC, small.Uncorrected = 1, false, false, 0
	want := gpuState{driver: "580.82.07", cuda: "13.1", devices: []GPU{full, small}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(gpuState{})); diff != "" {
		t.Errorf("readDevices (-want +got):\n%s", diff)
	}

	if _, err := readDevices(mockLibrary(mockDevice(false), nil)); err == nil || !strings.Contains(err.Error(), "opening GPU 1: GPU is lost") {
		t.Errorf("a lost GPU gives %v, want an error that names it", err)
	}
}

func TestProblemOf(t *testing.T) {
	for ret, want := range map[nvml.Return]gpuProblem{
		nvml.SUCCESS:                       gpuNone,
		nvml.ERROR_LIBRARY_NOT_FOUND:       gpuNoLibrary,
		nvml.ERROR_DRIVER_NOT_LOADED:       gpuNoDriver,
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: gpuMismatch,
		nvml.ERROR_UNKNOWN:                 gpuOtherError,
	} {
		if got := problemOf(ret); got != want {
			t.Errorf("problemOf(%d) = %d, want %d", ret, got, want)
		}
	}
}
