package mknet

import (
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/ports"
)

func TestDeadPeer(t *testing.T) {
	for _, tt := range []struct {
		within  time.Duration
		retries int
		want    int
	}{
		{7516193 * time.Microsecond, 0, 18}, // 4.096 us x 2^18 x 7 is 7.516192768 s
		{7516192 * time.Microsecond, 0, 17},
		{10 * time.Second, 6, 18},
		{time.Second, 6, 15},
		{time.Second, 1, 16},
		{67108864 * time.Nanosecond, 3, 12},
		{67108863 * time.Nanosecond, 3, 11},
		{57344 * time.Nanosecond, 6, 1},
	} {
		if got, err := timeoutExponent(tt.within, tt.retries); err != nil || got != tt.want {
			t.Errorf("%v with %d retries: %d (%v), want %d", tt.within, tt.retries, got, err, tt.want)
		}
	}
	for _, within := range []time.Duration{-time.Second, time.Microsecond, 57343 * time.Nanosecond, 1 << 62} {
		if _, err := timeoutExponent(within, 6); err == nil || !strings.Contains(err.Error(), "give 57.344µs to 17h6m") {
			t.Errorf("%v: %v", within, err)
		}
	}
	// Every exponent is reached by its own bound, with every number of retries.
	for retries := 1; retries <= 6; retries++ {
		for exponent := 1; exponent <= maxExponent; exponent++ {
			bound := timeoutUnit << exponent * time.Duration(retries+1)
			if got, err := timeoutExponent(bound, retries); err != nil || got != exponent {
				t.Errorf("%v with %d retries: %d (%v), want %d", bound, retries, got, err, exponent)
			}
		}
	}
}

func TestCheckRDMA(t *testing.T) {
	good := []engine.RDMA{{}, {QueuePairs: 8, MTU: 4096, TrafficClass: 255, ServiceLevel: 15, Retries: 6, RNRRetries: 7, DeadPeer: time.Second, Relaxed: true}}
	for _, r := range good {
		if err := CheckRDMA(r); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for want, r := range map[string]engine.RDMA{
		"--net-qps 9: give a number from 1 to 8":              {QueuePairs: 9},
		"--net-qps -1":                                        {QueuePairs: -1},
		"--net-mtu 1500: there are 256, 512, 1024":            {MTU: 1500},
		"--net-traffic-class 256: give a number from 0 to 25": {TrafficClass: 256},
		"--net-service-level 16":                              {ServiceLevel: 16},
		"--net-retries 7: give a number from 1 to 6":          {Retries: 7},
		"--net-rnr-retries 8":                                 {RNRRetries: 8},
		"--net-dead-peer 1µs with 6 retries":                  {DeadPeer: time.Microsecond},
	} {
		if err := CheckRDMA(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", r, err, want)
		}
	}
}

func TestOptionsFor(t *testing.T) {
	cfg := engine.Config{
		Rank: 1, Plan: &plan.Plan{World: plan.Uniform(2, 1)}, WaitTimeout: time.Second,
		NICs: engine.NICs{Devices: []string{"mlx5_3", "mlx5_4"}, Rails: []int{3, 4}, ProxyCPUs: "8-15"},
	}
	o, err := OptionsFor(cfg, "ibverbs", 5)
	if err != nil || o.RDMA.Devices != "mlx5_3,mlx5_4" || o.Rails != "3,4" || o.CPUs != "8-15" || o.Rank != 1 || o.World != 2 || o.Job != 5 {
		t.Errorf("%+v, %v", o, err)
	}
	// Others have NICs of their own, which these numbers do not fit.
	for _, backend := range []string{"emu", "ofi"} {
		if o, err := OptionsFor(cfg, backend, 5); err != nil || o.RDMA.Devices != "" || o.Rails != "" || o.CPUs != "8-15" {
			t.Errorf("%s: %+v, %v", backend, o, err)
		}
	}
	cfg.Net.Devices = "mlx5_0"
	cfg.Net.RDMA = engine.RDMA{DeadPeer: time.Second, Retries: 2, Relaxed: true, MTU: 1024}
	o, err = OptionsFor(cfg, "ibverbs", 5)
	if err != nil || o.RDMA.Devices != "mlx5_0" || o.Rails != "" || o.RDMA.Timeout != 16 || o.RDMA.Retries != 2 || !o.RDMA.Relaxed || o.RDMA.MTU != 1024 {
		t.Errorf("%+v, %v", o, err)
	}
	cfg.Net.RDMA.DeadPeer = 1
	if _, err = OptionsFor(cfg, "ibverbs", 5); err == nil {
		t.Error("a time of 1 ns passed")
	}
}

// An emulated link: the bandwidth is a rank's, whatever NICs it has.
func TestOptionsForEmu(t *testing.T) {
	cfg := engine.Config{Plan: &plan.Plan{World: plan.Uniform(2, 1)}, WaitTimeout: time.Second}
	for name, tt := range map[string]struct {
		net  engine.Net
		want Emu
	}{
		"as fast as memory":       {engine.Net{}, Emu{}},
		"cx7":                     {Links["cx7"], Emu{Bandwidth: 50e9, Latency: 2 * time.Microsecond}},
		"efa":                     {Links["efa"], Emu{Bandwidth: 25e9, Latency: 8 * time.Microsecond, Unordered: true, Jitter: 4 * time.Microsecond, NICs: 2, Piece: maxReordered}},
		"any jitter, and a loss":  {engine.Net{Reorder: true, Seed: 7, DropAfter: 9}, Emu{Unordered: true, Seed: 7, Jitter: maxJitter, Piece: maxReordered, DropAfter: 9}},
		"jitter of another value": {engine.Net{Reorder: true, Jitter: time.Millisecond}, Emu{Unordered: true, Jitter: time.Millisecond, Piece: maxReordered}},
	} {
		cfg.Net = tt.net
		if o, err := OptionsFor(cfg, "emu", 5); err != nil || o.Emu != tt.want {
			t.Errorf("%s: %+v, %v, want %+v", name, o.Emu, err, tt.want)
		}
	}
}

func TestCheckLink(t *testing.T) {
	for _, n := range []engine.Net{{}, Links["cx7"], {Backend: "tcp", Latency: 1, Reorder: true, Jitter: time.Second}, {Backend: "emu", EmuNICs: 8, DropAfter: 1}} {
		if !n.OfEmu() {
			n.Backend = "tcp"
		}
		if err := CheckLink(n); err != nil {
			t.Errorf("%+v: %v", n, err)
		}
	}
	for want, n := range map[string]engine.Net{
		"--net-latency -1ns: the latency":                                     {Latency: -1},
		"--net-jitter -1ns: the jitter":                                       {Jitter: -1, Reorder: true},
		"--net-jitter 1µs: it is links with --net-reorder":                    {Jitter: time.Microsecond},
		"9 emulated NICs of a rank: give a number from 1 to 8":                {Backend: "emu", EmuNICs: 9},
		"-1 emulated NICs of a rank":                                          {Backend: "emu", EmuNICs: -1},
		"--net tcp loses no messages and has no emulated NICs: --net emu has": {DropAfter: 1},
		"--net auto loses no messages and has no emulated NICs":               {Backend: "auto", EmuNICs: 2},
	} {
		if err := CheckLink(n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", n, err, want)
		}
	}
}

// libfabric has names and addresses of its own for NICs; a command's time ends before the waits for it.
func TestOptionsForOFI(t *testing.T) {
	t.Setenv("EFA_HOME", "/opt/efa")
	cfg := engine.Config{
		Plan: &plan.Plan{World: plan.Uniform(2, 1)}, WaitTimeout: time.Second, ListenAddr: "10.0.0.2", Ports: ports.Range{First: 20000, Last: 20010},
		NICs: engine.NICs{Devices: []string{"mlx5_3"}, Rails: []int{3}}, Net: engine.Net{Backend: "ofi", Provider: "tcp"},
	}
	o, err := OptionsFor(cfg, "ofi", 5)
	if want := (OFI{Provider: "tcp", Address: "10.0.0.2", FirstPort: 20000, LastPort: 20010}); err != nil || o.OFI != want || o.Rails != "" || o.RDMA.EFAHome != "/opt/efa" {
		t.Errorf("%+v, %v", o, err)
	}
	if o.Timeout >= cfg.WaitTimeout || o.Timeout <= cfg.WaitTimeout/2 {
		t.Errorf("a command may take %v of %v", o.Timeout, cfg.WaitTimeout)
	}
	cfg.Net = engine.Net{Backend: "auto", Devices: "eth1"}
	cfg.ListenAddr = ""
	if o, err = OptionsFor(cfg, "ofi", 5); err != nil || !o.OFI.Hardware || o.OFI.Devices != "eth1" || o.OFI.Address != "127.0.0.1" {
		t.Errorf("%+v, %v", o, err)
	}
}
