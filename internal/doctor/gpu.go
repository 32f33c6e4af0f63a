package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// GPU is one device that the driver shows.
type GPU struct {
	Index       int    `json:"index"`
	Name        string `json:"name"`
	UUID        string `json:"uuid"`
	PCI         string `json:"pci"`
	MemoryBytes uint64 `json:"memory_bytes"`
	Capability  string `json:"compute_capability"` // e.g. "9.0"
	MIG         bool   `json:"mig"`
	ECC         bool   `json:"ecc"`
	Uncorrected uint64 `json:"uncorrected_ecc_errors"` // since the driver was loaded
}

// gpuProblem is why the driver library gave no devices.
type gpuProblem int

const (
	gpuNone       gpuProblem = iota // no problem
	gpuNotBuilt                     // this binary has no NVML
	gpuNoLibrary                    // libnvidia-ml.so.1 is not there
	gpuNoDriver                     // the kernel module is not loaded
	gpuMismatch                     // library and kernel module differ
	gpuOtherError                   // anything else: see err
)

// gpuState is what NVML says.
type gpuState struct {
	problem gpuProblem
	err     string
	driver  string // e.g. "580.82.07"
	cuda    string // newest CUDA the driver can run, e.g. "13.0"
	devices []GPU
}

// nvmlTimeout bounds the driver's first answer: without persistence mode it wakes every GPU.
const nvmlTimeout = 30 * time.Second

// oldestCapability is that of Hopper: the kernels use its TMA and wgmma.
const oldestCapability = "9.0"

func (r *Report) gpus(ctx context.Context, h host) {
	ctx, cancel := context.WithTimeout(ctx, nvmlTimeout)
	defer cancel()
	answer := make(chan gpuState, 1)
	go func() { answer <- h.openGPUs() }()
	select {
	case s := <-answer:
		r.gpuFindings(h, s)
	case <-ctx.Done():
		r.bad("gpu", Warn, "look at dmesg for NVRM and Xid messages; nvidia-smi probably hangs as well",
			"the NVIDIA driver did not answer: %v", context.Cause(ctx))
	}
}

func (r *Report) gpuFindings(h host, s gpuState) {
	onBus := len(h.pciDevices(func(vendor, _, class string) bool {
		return vendor == "0x10de" && strings.HasPrefix(class, "0x03") // display controllers, 3D ones included
	}))
	const cpuOnly = "nothing, for the CPU engine; for --engine cuda "
	switch s.problem {
	case gpuNone:
	case gpuNotBuilt:
		r.bad("gpu", Warn, "build mkrun with CGO_ENABLED=1 and gcc to see GPUs",
			"this mkrun was built without NVML; the PCI bus shows %d NVIDIA GPUs", onBus)
		return
	case gpuNoLibrary:
		action := cpuOnly + "use a machine with NVIDIA GPUs and their driver"
		if onBus > 0 {
			action = "install the NVIDIA driver; in a container: start it with the GPUs (--gpus all)"
		}
		r.bad("gpu", Warn, action, "no NVIDIA driver library (looked for libnvidia-ml.so.1 in %s); the PCI bus shows %d NVIDIA GPUs",
			loaderPath(), onBus)
		return
	case gpuNoDriver:
		r.bad("gpu", Warn, "load the kernel module (modprobe nvidia), or look at dmesg why it does not load",
			"the NVIDIA library is here, but the driver is not loaded; the PCI bus shows %d NVIDIA GPUs", onBus)
		return
	case gpuMismatch:
		r.bad("gpu", Warn, "reboot, or reload the nvidia modules: the driver was updated under a running kernel module",
			"the NVIDIA library and the loaded kernel module are of different versions")
		return
	default:
		r.bad("gpu", Warn, "look at what nvidia-smi says", "the NVIDIA driver gives an error: %s", s.err)
		return
	}
	r.Driver = s.driver
	r.GPUs = append(r.GPUs, s.devices...)
	if len(s.devices) == 0 {
		r.bad("gpu", Warn, cpuOnly+"give the container or job its GPUs", "driver %s shows no GPU", s.driver)
		return
	}
	var old, mig, noECC, broken []string
	for _, g := range s.devices {
		label := fmt.Sprintf("GPU %d", g.Index)
		if capabilityLess(g.Capability, oldestCapability) {
			old = append(old, fmt.Sprintf("%s (%s, %s)", label, g.Name, g.Capability))
		}
		if g.MIG {
			mig = append(mig, label)
		}
		if !g.ECC {
			noECC = append(noECC, label)
		}
		if g.Uncorrected > 0 {
			broken = append(broken, fmt.Sprintf("%s (%d)", label, g.Uncorrected))
		}
	}
	if len(old) > 0 {
		r.bad("gpu", Warn, "use Hopper GPUs (H100, H200) or newer", "compute capability below %s: %s", oldestCapability, strings.Join(old, ", "))
	} else {
		r.ok("gpu", "%s, driver %s, CUDA up to %s", gpuNames(s.devices), s.driver, s.cuda)
	}
	if len(mig) > 0 {
		r.bad("gpu-mig", Warn, "GPU instances have no peer access: turn MIG off (nvidia-smi -mig 0) to use several GPUs", "MIG is on: %s", strings.Join(mig, ", "))
	}
	if len(noECC) > 0 {
		r.bad("gpu-ecc", Warn, "turn ECC on (nvidia-smi -e 1, then reset) if results matter", "ECC is off: %s", strings.Join(noECC, ", "))
	}
	if len(broken) > 0 {
		r.bad("gpu-ecc", Warn, "results of these GPUs cannot be trusted: drain and reset them", "uncorrected memory errors since the driver was loaded: %s", strings.Join(broken, ", "))
	}
}

// capabilityLess compares two compute capabilities.
func capabilityLess(a, b string) bool {
	var aMajor, aMinor, bMajor, bMinor int
	_, errA := fmt.Sscanf(a, "%d.%d", &aMajor, &aMinor)
	_, errB := fmt.Sscanf(b, "%d.%d", &bMajor, &bMinor)
	if errA != nil || errB != nil {
		return false
	}
	return aMajor < bMajor || aMajor == bMajor && aMinor < bMinor
}

// gpuNames writes "8 x NVIDIA H200", in order of first appearance.
func gpuNames(devices []GPU) string {
	counts := map[string]int{}
	var names []string
	for _, g := range devices {
		if counts[g.Name]++; counts[g.Name] == 1 {
			names = append(names, g.Name)
		}
	}
	for i, n := range names {
		names[i] = fmt.Sprintf("%d x %s", counts[n], n)
	}
	return strings.Join(names, ", ")
}

// loaderPath says where the dynamic linker looks for libraries.
func loaderPath() string {
	const standard = "the dynamic linker's cache and standard folders"
	if p := os.Getenv("LD_LIBRARY_PATH"); p != "" {
		return "LD_LIBRARY_PATH=" + p + ", " + standard
	}
	return standard
}
