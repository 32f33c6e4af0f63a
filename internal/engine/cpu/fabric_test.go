package cpu

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/mknet"
	"github.com/mkrun/mkrun/internal/plan"
)

// needLibrary makes the tests use the library that `make net` builds.
func needLibrary(t *testing.T) {
	t.Helper()
	path, err := filepath.Abs("../../../build/" + mknet.Library)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make net builds it", err)
	}
	mknet.Path = path
}

// needNICs puts the fake verbs library in the place of libibverbs.
func needNICs(t *testing.T) {
	t.Helper()
	needLibrary(t)
	path, err := filepath.Abs("../../../build/net/fakeverbs.so")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make net builds it", err)
	}
	mknet.VerbsPath = path
	t.Cleanup(func() { mknet.VerbsPath = "" })
}

// Ranks over NICs: those near them, which rails join; others that can be used where those cannot; the settings of queue
// pairs; and the same bits as over TCP, also when it runs again after a failure.
func TestFabricOverNICs(t *testing.T) {
	needNICs(t)
	s := plan.Shape{M: 150, N: 72, K: 64}
	p := makePlan(t, "ag_gemm", plan.SumOptions{Chunks: 3}, 1, 1)
	want, _ := openJob(t, p, s, options{}).epochs(t, 2, s, engine.BF16, 5)
	near := func(rank int) engine.NICs {
		return engine.NICs{Devices: []string{[]string{"fake2", "fake3"}[rank]}, Rails: []int{7}, Rule: "the only nearest rail"}
	}
	for name, tt := range map[string]struct {
		net  engine.Net
		nics func(rank int) engine.NICs
		why  []string
	}{
		"all":      {net: engine.Net{Backend: "ibverbs"}, why: []string{"ibverbs: fake0: RoCE v2", "; fake3: RoCE v2", "after 7.5 s (7 x 4.096 us x 2^18"}},
		"auto":     {net: engine.Net{Backend: "auto"}, why: []string{"all ranks have it; ibverbs: fake0"}},
		"near":     {net: engine.Net{Backend: "ibverbs"}, nics: near, why: []string{"ibverbs: fake2: RoCE v2", "why these NICs: the only nearest rail"}},
		"override": {net: engine.Net{Backend: "ibverbs", Devices: "fake1,fake0"}, nics: near, why: []string{"ibverbs: fake1: RoCE v2", "; fake0: RoCE v2"}},
		"near ones are not there": {
			net:  engine.Net{Backend: "ibverbs"},
			nics: func(int) engine.NICs { return engine.NICs{Devices: []string{"mlx5_9"}, Rails: []int{0}, Rule: "near"} },
			why:  []string{"fake3", "why these NICs: all that can be used, since those near the rank cannot: of the NICs mlx5_9, 0 can be used"},
		},
		"settings": {
			net: engine.Net{Backend: "ibverbs", RDMA: engine.RDMA{QueuePairs: 3, MTU: 512, TrafficClass: 26, ServiceLevel: 4, DeadPeer: time.Second, Retries: 3, RNRRetries: 7, Relaxed: true}},
			why: []string{"MTU 512, 3 queue pairs per peer", "after 0.54 s (4 x 4.096 us x 2^15", "7 tries without a receive, traffic class 26, service level 4, relaxed ordering"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // in one process, one after the other
				job := openJob(t, p, s, options{net: tt.net, edit: func(rank int, cfg *engine.Config) {
					if tt.nics != nil {
						cfg.NICs = tt.nics(rank)
					}
				}})
				_, why := job.ranks[0].(engine.Networked).Network()
				for _, part := range tt.why {
					if !strings.Contains(why, part) {
						t.Errorf("%q lacks %q", why, part)
					}
				}
				got, _ := job.epochs(t, 2, s, engine.BF16, 5)
				for epoch := range want {
					for rank := range want[epoch] {
						if !slices.Equal(got[epoch][rank], want[epoch][rank]) {
							t.Errorf("epoch %d of rank %d has other bits than over tcp", epoch, rank)
						}
					}
				}
			}
		})
	}
}

// haveOFI reports whether libfabric is here. Where tests must not be left out, its lack is a failure.
func haveOFI(t *testing.T) bool {
	t.Helper()
	if _, err := mknet.Usable(mknet.Options{Backend: "ofi", World: 1}); err != nil {
		t.Logf("without ofi: %v", err)
		if os.Getenv("CI") != "" {
			t.Error("scripts/setup.sh net installs libfabric")
		}
		return false
	}
	return true
}

// fakes are files that `make net` builds.
func fakes(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../../build/net/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func emuLike(name string) engine.Net {
	net := mknet.Links[name]
	net.Backend = "emu"
	return net
}

// A message that is lost ends the call with an error that names NIC and peer, and the link says that it was to be so.
func TestEmuLosesAMessage(t *testing.T) {
	needLibrary(t)
	net := emuLike("cx7")
	net.DropAfter = 5
	j := openJob(t, agGemm(t, 1, 1, 1), small, options{net: net})
	if _, why := j.ranks[0].(engine.Networked).Network(); !strings.Contains(why, "emu 0: ordered link of 50 GB/s, 2 us, pieces of 1048576 bytes, write 5 is lost") {
		t.Error(why)
	}
	err := j.each(func(rank int) error {
		for range 3 {
			if _, err := j.ranks[rank].Run(t.Context()); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "emu 0: write 5 of ") || !strings.Contains(err.Error(), " was lost (as asked for)") {
		t.Errorf("got %v", err)
	}
}

// The same bits over every network that can run here, over several epochs, for all operators.
func TestFabricGivesTheBitsOfTCP(t *testing.T) {
	needLibrary(t)
	nets := map[string]engine.Net{
		"emu":           {Backend: "emu"},
		"emu slow":      {Backend: "emu", BandwidthGBs: 0.5, Latency: 50 * time.Microsecond},
		"emu unordered": {Backend: "emu", Reorder: true, Seed: 7},
		"emu as efa":    emuLike("efa"),
		"emu as cx7":    emuLike("cx7"),
		"efa":           {Backend: "efa"}, // two NICs, fakes
	}
	if haveOFI(t) {
		nets["ofi"] = engine.Net{Backend: "ofi", Provider: "tcp"}
	}
	t.Setenv("EFA_HOME", fakes(t, "fake-efa"))
	s := plan.Shape{M: 150, N: 72, K: 64}
	for operator := range makers {
		for _, ppn := range [][]int{{2, 2}, {1, 2, 1}} {
			p := makePlan(t, operator, plan.SumOptions{Chunks: 3}, ppn...)
			want, _ := openJob(t, p, s, options{}).epochs(t, 3, s, engine.BF16, 5)
			for name, net := range nets {
				got, stats := openJob(t, p, s, options{net: net}).epochs(t, 3, s, engine.BF16, 5)
				for epoch := range want {
					for rank := range want[epoch] {
						if !slices.Equal(got[epoch][rank], want[epoch][rank]) {
							t.Errorf("%s on %v over %s: epoch %d of rank %d has other bits than over tcp", operator, ppn, name, epoch, rank)
						}
					}
				}
				if stats[0].InterBytes == 0 {
					t.Errorf("%s on %v over %s: nothing was sent", operator, ppn, name)
				}
			}
		}
	}
}

func TestSettleOnANetwork(t *testing.T) {
	none := offer{Why: map[string]string{"efa": "no library", "ibverbs": "no library"}}
	has := func(names ...string) offer {
		o := offer{Usable: map[string]string{}, Why: map[string]string{"efa": "no device", "ibverbs": "no library"}}
		for _, n := range names {
			o.Usable[n] = "it"
		}
		return o
	}
	for _, c := range []struct {
		name, asked     string
		devices         string
		offers          []offer
		want, why, fail string
	}{
		{name: "all have it", asked: "ibverbs", offers: []offer{has("ibverbs"), has("ibverbs")}, want: "ibverbs", why: "asked for"},
		{name: "one has not", asked: "ibverbs", offers: []offer{has("ibverbs"), has()}, fail: "--net ibverbs: no ibverbs at rank 1: no library"},
		{name: "auto, the first", asked: "auto", offers: []offer{has("efa", "ibverbs"), has("efa", "ibverbs")}, want: "efa", why: "all ranks have it"},
		{name: "auto, the common one", asked: "auto", offers: []offer{has("efa", "ibverbs"), has("ibverbs")}, want: "ibverbs", why: "all ranks have it"},
		{name: "auto, NICs are named", asked: "auto", devices: "mlx5_0", offers: []offer{has("efa", "ibverbs"), has("ibverbs")}, want: "ibverbs", why: "all ranks have it"},
		{
			name: "auto, NICs are named that none has", asked: "auto", devices: "mlx5_O", offers: []offer{has(), has()},
			fail: "--net-devices mlx5_O: no network has them on all ranks: no efa at rank 0: no device; no ibverbs at rank 0: no library",
		},
		{
			name: "auto, none, at two ranks for one reason", asked: "auto",
			offers: []offer{{Usable: map[string]string{"ibverbs": "it"}, Why: none.Why}, none}, want: "tcp",
			why: "no efa at rank 0: no library; no ibverbs at rank 1: no library",
		},
		{name: "auto, none at all", asked: "auto", offers: []offer{none, has()}, want: "tcp", why: "no efa, ibverbs at rank 0: no library"},
		{name: "auto, none", asked: "auto", offers: []offer{has("efa"), has("ibverbs")}, want: "tcp", why: "no efa at rank 1: no device; no ibverbs at rank 0: no library"},
	} {
		t.Run(c.name, func(t *testing.T) {
			candidates := []string{c.asked}
			if c.asked == "auto" {
				candidates = []string{"efa", "ibverbs"}
			}
			got, err := settle(engine.Net{Backend: c.asked, Devices: c.devices}, candidates, c.offers)
			if c.fail != "" {
				if err == nil || err.Error() != c.fail {
					t.Fatalf("error %v, want %s", err, c.fail)
				}
				return
			}
			if err != nil || got.backend != c.want || got.why != c.why {
				t.Errorf("%+v, %v; want %s (%s)", got, err, c.want, c.why)
			}
		})
	}
}

// Hosts with different NICs take what they have in common. A backend that is named and that one of them has not is refused,
// with what that host has.
func TestHostsWithDifferentNICs(t *testing.T) {
	needLibrary(t)
	libraries := map[string]string{
		"efa":  fakes(t, "fake-efa/lib/libefa.so.1"),
		"roce": fakes(t, "fakeverbs.so"),
	}
	devices := map[string]string{"roce": "fake0"}
	offers := func(candidates []string, hosts ...string) (all []offer) {
		for rank, host := range hosts {
			all = append(all, offerOf(candidates, func(name string) (string, error) {
				return mknet.Usable(mknet.Options{Backend: name, Rank: rank, World: len(hosts), RDMA: mknet.RDMA{Library: libraries[host], Devices: devices[host]}})
			}))
		}
		return all
	}
	const (
		noRC  = "no RDMA device can be used: rdmap0s31: it has no reliable connections: use the efa backend; rdmap1s31: it has no reliable connections: use the efa backend"
		noEFA = "of the NICs fake0, 0 can be used: fake0: it is no EFA device (its PCI vendor is 0x15b3)"
	)
	for _, c := range []struct {
		asked           string
		hosts           []string
		want, why, fail string
	}{
		{asked: "auto", hosts: []string{"efa", "efa"}, want: "efa", why: "all ranks have it"},
		{asked: "auto", hosts: []string{"roce", "roce"}, want: "ibverbs", why: "all ranks have it"},
		{asked: "auto", hosts: []string{"efa", "roce"}, want: NetTCP, why: "no efa at rank 1: " + noEFA + "; no ibverbs at rank 0: " + noRC},
		{asked: "auto", hosts: []string{"roce", "efa"}, want: NetTCP, why: "no efa at rank 0: " + noEFA + "; no ibverbs at rank 1: " + noRC},
		{asked: "efa", hosts: []string{"efa", "roce"}, fail: "--net efa: no efa at rank 1: " + noEFA},
		{asked: "ibverbs", hosts: []string{"efa", "roce"}, fail: "--net ibverbs: no ibverbs at rank 0: " + noRC},
	} {
		t.Run(c.asked+" "+strings.Join(c.hosts, " "), func(t *testing.T) {
			candidates := []string{c.asked}
			if c.asked == "auto" {
				candidates = []string{"efa", "ibverbs"}
			}
			got, err := settle(engine.Net{Backend: c.asked}, candidates, offers(candidates, c.hosts...))
			switch {
			case c.fail != "" && (err == nil || err.Error() != c.fail):
				t.Errorf("error %v, want %s", err, c.fail)
			case c.fail == "" && (err != nil || got.backend != c.want || got.why != c.why):
				t.Errorf("%s (%s), %v; want %s (%s)", got.backend, got.why, err, c.want, c.why)
			}
		})
	}
}

// A network that cannot be used is an error before anything runs, on every rank.
func TestFabricThatIsNotThere(t *testing.T) {
	needLibrary(t)
	err := openFails(t, agGemm(t, 1, 1, 1), false, func(_ int, cfg *engine.Config) {
		cfg.Net = engine.Net{Backend: "ibverbs", Devices: "nothere0"}
	})
	if err == nil || strings.Count(err.Error(), "--net ibverbs: no ibverbs at rank 0: ") != 2 {
		t.Errorf("ranks said: %v", err)
	}
}

// A name that is mistyped is no reason to go another way in silence.
func TestAutoWithNICsThatAreNotThere(t *testing.T) {
	needNICs(t)
	err := openFails(t, agGemm(t, 1, 1, 1), false, func(_ int, cfg *engine.Config) {
		cfg.Net = engine.Net{Backend: "auto", Devices: "fake9"}
	})
	if err == nil || strings.Count(err.Error(), "--net-devices fake9: no network has them on all ranks: no efa, ibverbs at rank 0: ") != 2 ||
		!strings.Contains(err.Error(), "no efa, ibverbs at rank 0: of the NICs fake9, 0 can be used: there are fake0, fake1, fake2, fake3; no ofi at rank 0: ") {
		t.Errorf("ranks said: %v", err)
	}
}

// An abort of a rank that waits for a peer's flag over emu ends its Run; a peer's network that fails ends it too.
func TestFabricAbort(t *testing.T) {
	needLibrary(t)
	reason := errors.New("the test says so")
	for _, how := range []string{"abort", "network"} {
		j := openJob(t, agGemm(t, 1, 1, 1), small, options{net: engine.Net{Backend: "emu"}})
		in := j.ranks[0].(*instance)
		done := make(chan error)
		go func() {
			_, err := in.Run(t.Context())
			done <- err
		}()
		if how == "abort" {
			in.Abort(reason)
		} else {
			in.fabric.net.Abort(reason.Error())
		}
		if err := <-done; err == nil || !strings.Contains(err.Error(), reason.Error()) {
			t.Errorf("%s: Run gave %v", how, err)
		}
	}
}

// What takes too long in the network is the network's to tell: a command's time is over before anyone's who waits for it.
func TestFabricTellsWhichWayFailed(t *testing.T) {
	needLibrary(t)
	err := openFails(t, agGemm(t, 1, 1, 1), false, func(_ int, cfg *engine.Config) {
		cfg.Net = engine.Net{Backend: "emu", Latency: time.Hour}
		cfg.WaitTimeout = 6 * time.Second // a quarter of which, on a busy machine too, is enough to be first
	})
	if err == nil || !strings.Contains(err.Error(), "the probe to rank 1 over emu 0 (process ") || !strings.Contains(err.Error(), ") is not complete after ") {
		t.Errorf("ranks said: %v", err)
	}
}

func TestFabricNames(t *testing.T) {
	needLibrary(t)
	j := openJob(t, agGemm(t, 1, 1, 1), small, options{net: engine.Net{Backend: "emu"}})
	if name, why := j.ranks[0].(engine.Networked).Network(); name != "emu" || !strings.HasPrefix(why, "asked for; emu: emu 0: ordered link") {
		t.Errorf("network %q, %q", name, why)
	}
	if haveOFI(t) {
		j = openJob(t, agGemm(t, 1, 1, 1), small, options{net: engine.Net{Backend: "ofi"}})
		if name, why := j.ranks[0].(engine.Networked).Network(); name != "ofi" || !strings.HasPrefix(why, "asked for; ofi: tcp;ofi_rxm lo 127.0.0.1: libfabric ") {
			t.Errorf("network %q, %q", name, why)
		}
	}
	j = openJob(t, agGemm(t, 1, 1, 1), small, options{net: engine.Net{Backend: "auto"}})
	if name, why := j.ranks[0].(engine.Networked).Network(); name != "tcp" || !strings.HasPrefix(why, "no efa") {
		t.Errorf("network %q, %q", name, why)
	}
}
