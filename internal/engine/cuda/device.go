package cuda

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/internal/count"
)

// Device is a GPU that this process sees.
type Device struct {
	Ordinal      int // among those that CUDA shows this process
	Name         string
	UUID         string // "GPU-...", as nvidia-smi writes it and CUDA_VISIBLE_DEVICES takes it
	Major, Minor int    // compute capability
	SMs          int
	Cooperative  bool // cooperative launches work
	ClockKHz     int  // highest SM clock
	Driver       int  // newest CUDA the driver can run: 1000 * major + 10 * minor
	Bytes        int64
}

// String names a device for people.
func (d Device) String() string { return fmt.Sprintf("GPU %d (%s)", d.Ordinal, d.Name) }

// Fits says why the kernels cannot run on a device, or nil.
func (d Device) Fits() error {
	switch {
	case d.Major != 9 || d.Minor != 0:
		return fmt.Errorf("%v has compute capability %d.%d; the kernels are built for 9.0 (H100, H200)", d, d.Major, d.Minor)
	case !d.Cooperative:
		return fmt.Errorf("%v has no cooperative launches, which the kernels need", d)
	}
	return nil
}

// Seat is the GPU that a rank gets.
type Seat struct {
	Name   string  // for CUDA_VISIBLE_DEVICES: its UUID, or what the user wrote
	Device *Device // nil if this process does not see it: a GPU instance (MIG), or one of another host
}

// Visible says what CUDA_VISIBLE_DEVICES is for each rank, and which of the GPUs it shows is the rank's own. All ranks see the GPUs
// of all: copy engines reach the memory of a GPU that CUDA does not show them, but not over NVLink (a sixth of the speed
// on two H200s). Of GPU instances a process can see but one.
func Visible(seats []Seat) (visible []string, own []int) {
	var shown []string
	for _, s := range seats {
		if !s.instance() && !slices.Contains(shown, s.Name) {
			shown = append(shown, s.Name)
		}
	}
	for _, s := range seats {
		if s.instance() {
			visible, own = append(visible, s.Name), append(own, 0)
			continue
		}
		visible, own = append(visible, strings.Join(shown, ",")), append(own, slices.Index(shown, s.Name))
	}
	return visible, own
}

func (s Seat) instance() bool { return strings.HasPrefix(s.Name, "MIG-") }

// Assign gives each of a number of ranks of this host a GPU, of those that are wanted (all, if that is empty) and in
// that order: a number counts the devices, a UUID may be shortened as long as it fits one, and the UUID of a GPU instance
// (MIG-...) is taken as it is. Where there are fewer GPUs than ranks, neighbours share one if share is set, else that is an error.
func Assign(devices []Device, wanted []string, ranks int, share bool) ([]Seat, error) {
	var seats []Seat
	for _, w := range wanted {
		seat, err := find(devices, strings.TrimSpace(w))
		if err != nil {
			return nil, err
		}
		for _, other := range seats {
			if other.Name == seat.Name {
				return nil, fmt.Errorf("--gpus names %s twice; --share-gpus lets ranks share a GPU", w)
			}
		}
		seats = append(seats, seat)
	}
	if len(wanted) == 0 {
		for i := range devices {
			seats = append(seats, Seat{Name: devices[i].UUID, Device: &devices[i]})
		}
	}
	switch {
	case len(seats) == 0:
		return nil, fmt.Errorf("the driver shows no GPU to this process")
	case ranks > len(seats) && !share:
		return nil, fmt.Errorf("%d ranks on %s: give each rank a GPU of its own, or let them share with --share-gpus (slow without MPS)", ranks, count.Of(len(seats), "GPU"))
	}
	taken := make([]Seat, ranks)
	for i := range taken {
		at := i
		if ranks > len(seats) {
			at = i * len(seats) / ranks
		}
		taken[i] = seats[at]
	}
	return taken, nil
}

// find is the seat that one word of --gpus names.
func find(devices []Device, word string) (Seat, error) {
	if strings.HasPrefix(word, "MIG-") {
		return Seat{Name: word}, nil
	}
	if n, err := strconv.Atoi(word); err == nil {
		if n < 0 || n >= len(devices) {
			return Seat{}, fmt.Errorf("--gpus: there is no GPU %d; this process sees %s", n, count.Of(len(devices), "GPU"))
		}
		return Seat{Name: devices[n].UUID, Device: &devices[n]}, nil
	}
	if !strings.HasPrefix(word, "GPU-") {
		return Seat{}, fmt.Errorf("--gpus: %q is neither a number nor starts with GPU- or MIG-", word)
	}
	var found *Device
	for i := range devices {
		if !strings.HasPrefix(strings.ToLower(devices[i].UUID), strings.ToLower(word)) {
			continue
		}
		if found != nil {
			return Seat{}, fmt.Errorf("--gpus: %q fits several GPUs", word)
		}
		found = &devices[i]
	}
	if found == nil {
		return Seat{}, fmt.Errorf("--gpus: %q is the UUID of no GPU that this process sees", word)
	}
	return Seat{Name: found.UUID, Device: found}, nil
}
