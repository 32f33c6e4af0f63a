package cuda_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/mknet"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/plan"
)

// built is a file that `make net` builds.
func built(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../../build/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make net builds it", err)
	}
	return path
}

// needNICs makes the library on host memory send through libmknet.so: over the fake verbs library, over fake EFA devices,
// and over libfabric's own provider tcp.
func needNICs(t *testing.T, backend string) {
	t.Helper()
	t.Setenv("HOSTLIB_MKNET", built(t, mknet.Library))
	mknet.Path = built(t, mknet.Library)
	switch backend {
	case "ibverbs":
		t.Setenv("HOSTLIB_VERBS", built(t, "net/fakeverbs.so"))
	case "efa":
		t.Setenv("EFA_HOME", filepath.Dir(filepath.Dir(built(t, "net/fake-efa/lib/libefa.so.1"))))
	case "ofi":
		if _, err := mknet.Usable(mknet.Options{Backend: "ofi", World: 1}); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("scripts/setup.sh net installs libfabric: %v", err)
			}
			t.Skip(err)
		}
	}
}

// Nodes that NICs join: the same plan, the same bits as through memory, and every rank says what it sent by. NICs that do
// not know device memory get it by way of the host's.
func TestRunsThePlanOverNICs(t *testing.T) {
	for _, tt := range []struct {
		net engine.Net
		why []string
	}{
		{
			net: engine.Net{Backend: "ibverbs", RDMA: engine.RDMA{QueuePairs: 2, MTU: 1024, DeadPeer: time.Second, TrafficClass: 104}},
			why: []string{"ibverbs: fake0: RoCE v2", "MTU 1024", "2 queue pairs per peer", "0.94 s (7 x 4.096 us x 2^15", "traffic class 104", "heap dma-buf"},
		},
		{
			net: engine.Net{Backend: "efa", RDMA: engine.RDMA{QueuePairs: 2, ServiceLevel: 8}},
			why: []string{"efa: rdmap0s31: EFA (device 0xefa2)", "; rdmap1s31: EFA", "2 queue pairs of 512 sends", "heap dma-buf"},
		},
		{
			net: engine.Net{Backend: "ofi", Provider: "tcp"},
			why: []string{"ofi: tcp;ofi_rxm ", "in software, flags raised by the receiver", "the heap is bounced through pinned memory", "libfabric is given host memory only"},
		},
		{
			net: engine.Net{Backend: "emu", Reorder: true, Seed: 7},
			why: []string{"emu 0: unordered link of the memory's speed, 0 us and up to 300 us more", "pieces of 1048576 bytes"},
		},
		{net: emu("efa"), why: []string{"emu 0: unordered link of 25 GB/s, 8 us and up to 4 us more", "emu 1: unordered link of 25 GB/s"}},
		{
			net: engine.Net{Backend: "emu", DropAfter: 1000000, Latency: time.Microsecond},
			why: []string{"emu 0: ordered link of the memory's speed, 1 us, pieces of 1048576 bytes, write 1000000 is lost"},
		},
	} {
		t.Run(tt.net.Backend, func(t *testing.T) {
			needNICs(t, tt.net.Backend)
			for _, world := range []plan.World{plan.Uniform(2, 1), {PPN: []int{2, 1}}, plan.Uniform(2, 2)} {
				s := spec(plan.Shape{M: 70, N: 40, K: 40}, 1)
				s.World = world
				want, errs := run(t, s, onHostlib)
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				s.Net = tt.net
				if err := s.Validate(); err != nil {
					t.Fatal(err)
				}
				got, errs := run(t, s, onHostlib)
				if err := errors.Join(errs...); err != nil {
					t.Fatalf("%v: %v", world, err)
				}
				for rank := range got {
					if got[rank].Status != operator.Pass || got[rank].OutputHash != want[rank].OutputHash {
						t.Errorf("%v, rank %d: %+v, want the bits %s", world, rank, got[rank], want[rank].OutputHash)
					}
					for _, part := range tt.why {
						if got[rank].Net != tt.net.Backend || !strings.Contains(got[rank].NetWhy, part) {
							t.Errorf("%v, rank %d: net %s, %q lacks %q", world, rank, got[rank].Net, got[rank].NetWhy, part)
						}
					}
				}
			}
		})
	}
}

func emu(mode string) engine.Net {
	net := mknet.Links[mode]
	net.Backend = "emu"
	return net
}

// NICs that are not there, or that do not fit what is asked for, are an error before anything runs, in plain words.
func TestNICsThatAreNotThere(t *testing.T) {
	for backend, tt := range map[string]struct {
		net  engine.Net
		want string
	}{
		"ibverbs": {engine.Net{Devices: "mlx5_7"}, "rank 0 (host memory): of the NICs mlx5_7, 0 can be used"},
		"efa":     {engine.Net{Devices: "rdmap9s31"}, "rank 0 (host memory): of the NICs rdmap9s31, 0 can be used"},
		"ofi":     {engine.Net{Provider: "psm9"}, "the provider psm9 is not here, or not one that can write to memory of peers"},
	} {
		t.Run(backend, func(t *testing.T) {
			needNICs(t, backend)
			s := spec(plan.Shape{M: 70, N: 40, K: 40}, 1)
			s.World = plan.Uniform(2, 1)
			s.Net = tt.net
			s.Net.Backend = backend
			_, errs := run(t, s, onHostlib)
			if !slices.ContainsFunc(errs, func(err error) bool { return err != nil && strings.Contains(err.Error(), tt.want) }) {
				t.Errorf("%v", errs)
			}
		})
	}
}

// A network library that never comes back is given up in time for all ranks to say so. (Its threads stay in it.)
func TestALibraryThatHangs(t *testing.T) {
	needNICs(t, "ibverbs")
	dir := t.TempDir()
	source, library := filepath.Join(dir, "hang.c"), filepath.Join(dir, "libhang.so")
	text := "int pause(void);\n"
	for _, name := range []string{
		"ibv_get_device_list", "ibv_free_device_list", "ibv_open_device", "ibv_close_device", "ibv_query_device", "ibv_query_port", "ibv_query_pkey",
		"_ibv_query_gid_table", "ibv_alloc_pd", "ibv_dealloc_pd", "ibv_reg_mr", "ibv_dereg_mr", "ibv_create_cq", "ibv_destroy_cq", "ibv_create_qp",
		"ibv_modify_qp", "ibv_query_qp", "ibv_destroy_qp", "ibv_get_async_event", "ibv_ack_async_event", "ibv_wc_status_str", "ibv_event_type_str",
	} {
		text += "void *" + name + "(void) { for (;;) pause(); }\n"
	}
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", source, "-o", library).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("HOSTLIB_VERBS", library)
	s := spec(plan.Shape{M: 70, N: 40, K: 40}, 1)
	s.World = plan.Uniform(2, 1)
	s.Net = engine.Net{Backend: "ibverbs"}
	s.WaitTimeout = 12 * time.Second
	_, errs := run(t, s, onHostlib)
	for rank, err := range errs {
		if want := " (host memory): ibverbs did not open its NICs within 6 s: " + library + ", or a driver under it, hangs."; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d says %v, want %s", rank, err, want)
		}
	}
}

func TestNetworksThatTheCUDAEngineHasNot(t *testing.T) {
	for want, net := range map[string]engine.Net{
		"--net tcp: the CUDA engine sends between nodes by NICs, or by emu on one host":           {Backend: "tcp"},
		"--net-jitter 1ns: it is links with --net-reorder":                                        {Backend: "emu", Jitter: 1},
		"--net efa has no connections: of the settings of queue pairs it takes --net-qps":         {Backend: "efa", RDMA: engine.RDMA{MTU: 1024}},
		"--net ofi has no queue pairs; --net-qps":                                                 {Backend: "ofi", RDMA: engine.RDMA{QueuePairs: 2}},
		"--net efa is a real network; bandwidth, latency and order are emulated with emu and tcp": {Backend: "efa", BandwidthGBs: 1},
		"--net-provider tcp names a provider of libfabric, which --net ofi uses":                  {Backend: "efa", Provider: "tcp"},
	} {
		s := spec(plan.Shape{M: 70, N: 40, K: 40}, 1)
		s.World = plan.Uniform(2, 1)
		s.Net = net
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", net, err, want)
		}
	}
}
