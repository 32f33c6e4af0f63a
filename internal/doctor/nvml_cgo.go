//go:build cgo

package doctor

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// openNVML asks the driver library for the devices. Linking it costs nothing until here: the
// library is opened at run time.
func openNVML() gpuState {
	lib := nvml.New()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return gpuState{problem: problemOf(ret), err: lib.ErrorString(ret)}
	}
	defer func() { _ = lib.Shutdown() }()
	s, err := readDevices(lib)
	if err != nil {
		return gpuState{problem: gpuOtherError, err: err.Error()}
	}
	return s
}

func problemOf(ret nvml.Return) gpuProblem {
	switch ret {
	case nvml.SUCCESS:
		return gpuNone
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return gpuNoLibrary
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return gpuNoDriver
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return gpuMismatch
	}
	return gpuOtherError
}

func readDevices(lib nvml.Interface) (gpuState, error) {
	var s gpuState
	if v, ret := lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		s.driver = v
	}
	if v, ret := lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		s.cuda = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return s, errors.New("counting GPUs: " + lib.ErrorString(ret))
	}
	for i := range n {
		dev, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return s, fmt.Errorf("opening GPU %d: %s", i, lib.ErrorString(ret))
		}
		g := GPU{Index: i}
		if g.Name, ret = dev.GetName(); ret != nvml.SUCCESS {
			return s, fmt.Errorf("asking GPU %d for its name: %s", i, lib.ErrorString(ret))
		}
		// What a GPU does not support (ECC and MIG of small ones) stays zero.
		if v, ret := dev.GetUUID(); ret == nvml.SUCCESS {
			g.UUID = v
		}
		if v, ret := dev.GetPciInfo(); ret == nvml.SUCCESS {
			g.PCI = fmt.Sprintf("%04x:%02x:%02x.0", v.Domain, v.Bus, v.Device)
		}
		if v, ret := dev.GetMemoryInfo(); ret == nvml.SUCCESS {
			g.MemoryBytes = v.Total
		}
		if major, minor, ret := dev.GetCudaComputeCapability(); ret == nvml.SUCCESS {
			g.Capability = fmt.Sprintf("%d.%d", major, minor)
		}
		if current, _, ret := dev.GetMigMode(); ret == nvml.SUCCESS {
			g.MIG = current == nvml.DEVICE_MIG_ENABLE
		}
		if current, _, ret := dev.GetEccMode(); ret == nvml.SUCCESS {
			g.ECC = current == nvml.FEATURE_ENABLED
		}
		if v, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
			g.Uncorrected = v
		}
		s.devices = append(s.devices, g)
	}
	return s, nil
}
