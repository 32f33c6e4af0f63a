package mknet

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
)

// What the emulated link of --net-reorder does.
const (
	maxJitter    = 300 * time.Microsecond // the most by which a piece is late, if nothing else is asked for
	maxReordered = 8 << 10                // bytes of a piece: about what a datagram network carries at once
)

// OptionsFor are a rank's settings for a backend: what was asked for, else the NICs near the rank.
func OptionsFor(cfg engine.Config, backend string, job uint64) (Options, error) {
	o := Options{Backend: backend, Rank: cfg.Rank, World: cfg.Plan.World.Size(), Job: job, Timeout: CommandTime(cfg.WaitTimeout), CPUs: cfg.NICs.ProxyCPUs}
	r := cfg.Net.RDMA
	o.RDMA = RDMA{
		Devices: cfg.Net.Devices, GID: cfg.Net.GID, QueuePairs: r.QueuePairs, MTU: r.MTU, TrafficClass: r.TrafficClass, ServiceLevel: r.ServiceLevel,
		Retries: r.Retries, RNRRetries: r.RNRRetries, Relaxed: r.Relaxed, Library: VerbsPath,
	}
	if ChoosesNear(cfg.Net, backend) && len(cfg.NICs.Devices) > 0 {
		o.RDMA.Devices = strings.Join(cfg.NICs.Devices, ",")
		words := make([]string, 0, len(cfg.NICs.Rails))
		for _, rail := range cfg.NICs.Rails {
			words = append(words, strconv.Itoa(rail))
		}
		o.Rails = strings.Join(words, ",")
	}
	if r.DeadPeer != 0 {
		var err error
		if o.RDMA.Timeout, err = timeoutExponent(r.DeadPeer, r.Retries); err != nil {
			return o, err
		}
	}
	o.RDMA.EFAHome = os.Getenv("EFA_HOME")
	o.OFI = OFI{
		Provider: cfg.Net.Provider, Devices: cfg.Net.Devices, Address: cfg.Host(),
		FirstPort: cfg.Ports.First, LastPort: cfg.Ports.Last, Hardware: cfg.Net.Backend == "auto",
	}
	if backend == "ofi" {
		o.Rails = "" // they are those of RDMA devices; libfabric's NICs have other names
	}
	n := cfg.Net
	o.Emu = Emu{
		Bandwidth: n.BandwidthGBs * 1e9 / float64(max(1, n.EmuNICs)), Latency: n.Latency, Unordered: n.Reorder, Seed: n.Seed,
		NICs: n.EmuNICs, DropAfter: n.DropAfter,
	}
	if n.Reorder {
		o.Emu.Jitter, o.Emu.Piece = cmp.Or(n.Jitter, maxJitter), maxReordered
	}
	return o, nil
}

// Links are the emulated links that have a name: about as fast as a GPU's NICs of that kind.
var Links = map[string]engine.Net{
	"cx7": {BandwidthGBs: 50, Latency: 2 * time.Microsecond},
	"efa": {BandwidthGBs: 50, Latency: 8 * time.Microsecond, Reorder: true, Jitter: 4 * time.Microsecond, EmuNICs: 2},
}

// maxEmuNICs is how many NICs of a rank the library can emulate.
const maxEmuNICs = 8

// CheckLink says what is wrong with an emulated link.
func CheckLink(n engine.Net) error {
	switch {
	case n.Latency < 0:
		return fmt.Errorf("--net-latency %v: the latency of the emulated network must not be negative", n.Latency)
	case n.Jitter < 0:
		return fmt.Errorf("--net-jitter %v: the jitter of the emulated network must not be negative", n.Jitter)
	case n.Jitter != 0 && !n.Reorder:
		return fmt.Errorf("--net-jitter %v: it is links with --net-reorder whose messages overtake each other", n.Jitter)
	case n.EmuNICs < 0 || n.EmuNICs > maxEmuNICs:
		return fmt.Errorf("%d emulated NICs of a rank: give a number from 1 to %d", n.EmuNICs, maxEmuNICs)
	case n.OfEmu() && n.Backend != "emu":
		return fmt.Errorf("--net %s loses no messages and has no emulated NICs: --net emu has", cmp.Or(n.Backend, "tcp"))
	}
	return nil
}

// CommandTime is what a command may take of the time of a wait: the network says which way failed before someone who waits
// for what it should have brought, or for its end, says no more than that.
func CommandTime(wait time.Duration) time.Duration { return wait / 4 * 3 }

// ChoosesNear reports whether ranks choose among NICs by distance: those of RDMA backends, unless NICs were named.
func ChoosesNear(net engine.Net, backend string) bool {
	return (backend == "ibverbs" || backend == "efa") && net.Devices == ""
}

const (
	defaultRetries = 6
	timeoutUnit    = 4096 * time.Nanosecond
	maxExponent    = 31
)

// CheckRDMA says what is wrong with settings of queue pairs.
func CheckRDMA(r engine.RDMA) error {
	in := func(what string, value, least, most int) error {
		if value != 0 && (value < least || value > most) {
			return fmt.Errorf("--net-%s %d: give a number from %d to %d", what, value, least, most)
		}
		return nil
	}
	for _, err := range []error{
		in("qps", r.QueuePairs, 1, 8), in("traffic-class", r.TrafficClass, 0, 255), in("service-level", r.ServiceLevel, 0, 15),
		in("retries", r.Retries, 1, 6), in("rnr-retries", r.RNRRetries, 1, 7),
	} {
		if err != nil {
			return err
		}
	}
	switch r.MTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		return fmt.Errorf("--net-mtu %d: there are 256, 512, 1024, 2048 and 4096 bytes", r.MTU)
	}
	if r.DeadPeer != 0 {
		_, err := timeoutExponent(r.DeadPeer, r.Retries)
		return err
	}
	return nil
}

// timeoutExponent is the time-out of a packet as NICs count it, 4.096 us x 2^exponent, with which a peer that is gone is
// reported within a time: after the first try and all retries. Devices may take up to four times as long.
func timeoutExponent(within time.Duration, retries int) (int, error) {
	if retries == 0 {
		retries = defaultRetries
	}
	least, most := timeoutUnit*2*time.Duration(retries+1), timeoutUnit<<maxExponent*time.Duration(retries+1)
	if within < least || within > most {
		return 0, fmt.Errorf("--net-dead-peer %v with %d retries: give %v to %v", within, retries, least, most.Round(time.Second))
	}
	// The quotient is exact enough: a power of two is hit by its own bound.
	return int(math.Floor(math.Log2(float64(within) / float64(timeoutUnit*time.Duration(retries+1))))), nil
}
