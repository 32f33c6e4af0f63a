package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mkrun/mkrun/internal/engine/cuda"
)

// planeState is what the data plane library says when it is opened.
type planeState struct {
	unusable error // it cannot be opened, or is of another interface version
	noGPUs   error // the driver's refusal
	devices  []cuda.Device
	apart    []string // pairs of GPUs that cannot reach each other's memory
}

// openDataPlane opens the library and asks it for the GPUs.
func openDataPlane(path string) planeState {
	lib, err := cuda.OpenLibrary(path)
	if err != nil {
		return planeState{unusable: err}
	}
	var s planeState
	if s.devices, s.noGPUs = lib.Devices(); s.noGPUs != nil {
		return s
	}
	for i := range s.devices {
		for j := range s.devices[:i] {
			there, err1 := lib.Reaches(j, i)
			back, err2 := lib.Reaches(i, j)
			if s.noGPUs = errors.Join(err1, err2); s.noGPUs != nil {
				return s
			}
			if !there || !back {
				s.apart = append(s.apart, fmt.Sprintf("%d and %d", j, i))
			}
		}
	}
	return s
}

// dataPlane looks at the library and, where there are GPUs, at what it can do with them.
func (r *Report) dataPlane(ctx context.Context, h host) {
	path, err := h.dataPlane()
	if err != nil {
		r.bad("data-plane", Warn, "nothing, for the CPU engine; for --engine cuda build it with `make cuda`", "no CUDA data plane: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, nvmlTimeout)
	defer cancel()
	answer := make(chan planeState, 1)
	go func() { answer <- h.openPlane(path) }()
	select {
	case s := <-answer:
		r.planeFindings(path, s)
	case <-ctx.Done():
		r.bad("data-plane", Warn, "look at dmesg for NVRM and Xid messages", "the CUDA data plane %s is here, but the driver did not answer it: %v", path, context.Cause(ctx))
	}
}

func (r *Report) planeFindings(path string, s planeState) {
	if s.unusable != nil {
		r.bad("data-plane", Warn, "build mkrun and the data plane from one source, with gcc and CGO_ENABLED=1: `make build cuda`", "%v", s.unusable)
		return
	}
	r.ok("data-plane", "CUDA data plane %s, interface version %d", path, cuda.ABI)
	if len(s.devices) == 0 && s.noGPUs == nil || len(r.GPUs) == 0 && s.noGPUs != nil {
		return // the finding about GPUs says why there are none
	}
	if s.noGPUs != nil {
		r.bad("cuda-gpus", Warn, "update the driver, or build the data plane with an older CUDA", "the CUDA data plane cannot use the GPUs: %v", s.noGPUs)
		return
	}
	var unfit []string
	for _, d := range s.devices {
		if err := d.Fits(); err != nil {
			unfit = append(unfit, err.Error())
		}
	}
	switch {
	case len(unfit) > 0:
		r.bad("cuda-gpus", Warn, "choose GPUs that fit with --gpus", "not every GPU can run the kernels: %s", strings.Join(unfit, "; "))
	case len(s.apart) > 0:
		r.bad("cuda-gpus", Warn, "use GPUs that reach each other (`mkrun topo` shows the links, --gpus chooses); virtual machines and ACS can stand in the way of PCIe",
			"no peer access between GPUs %s: ranks on them cannot run one operator", strings.Join(s.apart, ", "))
	case len(s.devices) == 1:
		r.ok("cuda-gpus", "one GPU for --engine cuda, with %d SMs to use", s.devices[0].SMs)
	default:
		r.ok("cuda-gpus", "%d GPUs for --engine cuda, with %d SMs each to use and peer access between all of them", len(s.devices), s.devices[0].SMs)
	}
}

// blocksCUDA reports whether a finding keeps the CUDA engine from running here at all.
func (r *Report) blocksCUDA(f Finding) bool {
	return f.Severity == Fail || f.Severity == Warn && (f.Code == "gpu" || f.Code == "data-plane")
}
