package request

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/count"
	"github.com/mkrun/mkrun/internal/dataplane"
	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cuda"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/plan"
)

// chosen is the engine that a request gets.
type chosen struct {
	name, why string
	library   *cuda.Library // on this host, for cuda; nil if the ranks are elsewhere
	seats     []cuda.Seat   // by rank, for cuda
}

// ChooseEngine says which engine a value of --engine means on this host for one rank of an operator that all engines
// have, and why.
func ChooseEngine(name string) (engineName, why string, err error) {
	c, err := Request{Operator: "ag_gemm", World: plan.Uniform(1, 1), Engine: name}.choose()
	return c.name, c.why, err
}

// choose says which engine the request gets, and why. "auto" is CUDA where the library, the driver and a GPU for every
// rank are there; else, and where the CUDA engine cannot run the operator on this world, the CPU.
func (r Request) choose() (chosen, error) {
	switch r.Engine {
	case operator.EngineCPU:
		if flag := r.cudaFlag(); flag != "" {
			return chosen{}, fmt.Errorf("%s means nothing to --engine cpu", flag)
		}
		return chosen{name: operator.EngineCPU, why: "asked for"}, nil
	case operator.EngineCUDA:
		c, err := r.chooseCUDA()
		if err != nil {
			return chosen{}, fmt.Errorf("--engine cuda: %w; 'mkrun doctor' says more; --engine cpu runs the same plans", err)
		}
		c.why = "asked for; " + c.why
		return c, nil
	case "auto":
		c, missing := r.chooseCUDA()
		flag := r.cudaFlag()
		switch {
		case missing == nil:
			return c, nil
		case flag != "":
			return chosen{}, fmt.Errorf("%s asks for GPUs: %w; 'mkrun doctor' says more", flag, missing)
		default:
			return chosen{name: operator.EngineCPU, why: missing.Error()}, nil
		}
	}
	return chosen{}, fmt.Errorf("unknown engine %q; known: auto, cpu, cuda", r.Engine)
}

// cudaFlag is a flag that was given and that only the CUDA engine knows, or "".
func (r Request) cudaFlag() string {
	switch {
	case r.GPUs != nil:
		return "--gpus"
	case r.CUDA.ShareGPUs:
		return "--share-gpus"
	case r.CUDA.Mover != "":
		return "--mover"
	}
	return ""
}

// chooseCUDA finds the library and a GPU for every rank, or says what is missing.
func (r Request) chooseCUDA() (chosen, error) {
	if err := cuda.Supports(r.Operator); err != nil {
		return chosen{}, err
	}
	if err := cuda.CheckWorld(r.World); err != nil {
		return chosen{}, err
	}
	if r.World.Nodes() > 1 && r.Remote && (r.Net.Backend == "" || r.Net.Backend == operator.NetAuto || r.Net.Backend == cuda.NetEmu) {
		return chosen{}, errors.New("between hosts the CUDA engine sends by NICs: name them, as in --net ibverbs")
	}
	if r.Remote {
		return r.chooseRemote()
	}
	if os.Getenv(dataplane.Env) == "" { // a library that was named is asked itself
		devices, err := filepath.Glob("/dev/nvidia[0-9]*")
		if err != nil {
			return chosen{}, fmt.Errorf("looking for GPUs: %w", err)
		}
		if len(devices) == 0 {
			return chosen{}, errors.New("no GPU: looked for /dev/nvidia0 and the like")
		}
	}
	lib, err := cuda.OpenLibrary("")
	if err != nil {
		return chosen{}, err
	}
	devices, err := devicesOf(lib)
	if err != nil {
		return chosen{}, err
	}
	if r.GPUs == nil && r.World.Size() > 1 && os.Getenv("CUDA_VISIBLE_DEVICES") == "" { // else the user chose an order
		devices = bySlot(context.Background(), devices)
	}
	seats, err := cuda.Assign(devices, r.GPUs, r.World.Size(), r.CUDA.ShareGPUs)
	if err != nil {
		return chosen{}, err
	}
	if err := checkSeats(lib, seats); err != nil {
		return chosen{}, err
	}
	return chosen{name: operator.EngineCUDA, why: describeSeats(seats), library: lib, seats: seats}, nil
}

// chooseRemote leaves the looking to the ranks: this host need not have what theirs has.
func (r Request) chooseRemote() (chosen, error) {
	if r.Engine != operator.EngineCUDA {
		return chosen{}, errors.New("what GPUs another host has is not known here: ask for them with --engine cuda")
	}
	c := chosen{name: operator.EngineCUDA, why: "its host will say whether it can"}
	for _, ranks := range r.World.PPN { // each host has its own
		wanted := r.GPUs
		if wanted == nil {
			for i := range ranks {
				wanted = append(wanted, strconv.Itoa(i))
			}
		}
		if len(wanted) < ranks && !r.CUDA.ShareGPUs {
			return chosen{}, fmt.Errorf("%s and --gpus names %s: name one for each, or let them share with --share-gpus", count.Of(ranks, "rank"), count.Of(len(wanted), "GPU"))
		}
		for local := range ranks {
			at := local
			if len(wanted) < ranks {
				at = local * len(wanted) / ranks
			}
			c.seats = append(c.seats, cuda.Seat{Name: wanted[at]})
		}
	}
	return c, nil
}

// driverPatience bounds the driver's first answer: without persistence mode it wakes every GPU.
const driverPatience = 30 * time.Second

func devicesOf(lib *cuda.Library) ([]cuda.Device, error) {
	type answer struct {
		devices []cuda.Device
		err     error
	}
	got := make(chan answer, 1)
	go func() {
		devices, err := lib.Devices()
		got <- answer{devices, err}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), driverPatience)
	defer cancel()
	select {
	case a := <-got:
		return a.devices, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the NVIDIA driver did not answer within %v; look at dmesg for NVRM and Xid messages", driverPatience)
	}
}

// checkSeats says which GPU cannot run the kernels, or cannot reach that of another rank.
func checkSeats(lib *cuda.Library, seats []cuda.Seat) error {
	for i, s := range seats {
		if s.Device == nil {
			continue // an instance (MIG), which the rank itself looks at
		}
		if err := s.Device.Fits(); err != nil {
			return err
		}
		for _, o := range seats[:i] {
			if o.Device == nil || o.Device.Ordinal == s.Device.Ordinal {
				continue
			}
			for _, pair := range [][2]*cuda.Device{{o.Device, s.Device}, {s.Device, o.Device}} {
				reaches, err := lib.Reaches(pair[0].Ordinal, pair[1].Ordinal)
				if err != nil {
					return err
				}
				if !reaches {
					return fmt.Errorf("%v cannot reach the memory of %v: no peer access between them; 'mkrun topo' shows the links", pair[0], pair[1])
				}
			}
		}
	}
	return nil
}

// describeSeats says which GPUs are used.
func describeSeats(seats []cuda.Seat) string {
	var names []string
	ranks := map[string]int{}
	for _, s := range seats {
		if ranks[s.Name]++; ranks[s.Name] > 1 {
			continue
		}
		name := s.Name
		if s.Device != nil {
			name = s.Device.String()
		}
		names = append(names, name)
	}
	text := strings.Join(names, ", ")
	if len(names) < len(seats) {
		text += fmt.Sprintf(", shared by %d ranks", len(seats))
		if !hasMPS() {
			text += " in turns: no MPS daemon is running"
		}
	}
	return text
}

// hasMPS reports whether CUDA's multi-process service, with which kernels of several processes run side by side, was
// started here: its control pipe is there.
func hasMPS() bool {
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	_, err := os.Stat(filepath.Join(dir, "control"))
	return err == nil
}

// checkDeviceMemory says, before anything starts, which GPU is too small for its ranks.
func (c *chosen) checkDeviceMemory(spec operator.RunSpec, p *plan.Plan) error {
	if c.library == nil {
		return nil
	}
	need := map[*cuda.Device]float64{}
	ranks := map[*cuda.Device]int{}
	for rank, s := range c.seats {
		if s.Device == nil {
			continue
		}
		n, err := c.library.DeviceMemory(engine.Config{Rank: rank, Plan: p, Shape: spec.Shape, DType: spec.DType})
		if err != nil {
			return fmt.Errorf("sizing M=%d N=%d K=%d: %w", spec.Shape.M, spec.Shape.N, spec.Shape.K, err)
		}
		need[s.Device] += float64(n)
		ranks[s.Device]++
	}
	for _, s := range c.seats {
		if d := s.Device; d != nil && need[d] > float64(d.Bytes) {
			return fmt.Errorf("not enough GPU memory: M=%d N=%d K=%d needs %.1f GiB for %s on %v, which has %.1f GiB",
				spec.Shape.M, spec.Shape.N, spec.Shape.K, need[d]/(1<<30), count.Of(ranks[d], "rank"), *d, float64(d.Bytes)/(1<<30))
		}
	}
	return nil
}
