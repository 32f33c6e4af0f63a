package launch

import (
	"slices"
	"testing"

	"github.com/mkrun/mkrun/internal/plan"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// What ranks are told: RDMA names, numbers that nodes of the same build agree on, why, and where the proxy runs.
func TestRanksAreToldTheirNICs(t *testing.T) {
	n := withNICs(eightGPUs())
	for i := range n.NICs {
		n.NICs[i].RDMA = "rocep" + n.NICs[i].Name[5:]
		n.NICs[i].NUMA = n.GPUs[2*i].NUMA
	}
	start := startOf(4, func(s *pb.Start) { s.Bind = BindCore })
	seats, _, err := seatRanks(n, start, make([]string, 4), make([]bool, 4))
	if err != nil {
		t.Fatal(err)
	}
	told := networks(start, seats)
	for rank, want := range []struct{ nic, proxy string }{{"rocep3", ""}, {"rocep3", ""}, {"rocep2", ""}, {"rocep2", ""}} {
		got := told[int32(rank)]
		if got == nil || !slices.Equal(got.GetNics(), []string{want.nic}) || !slices.Equal(got.GetRails(), []int32{int32(rank / 2 * 2)}) || got.GetRule() == "" {
			t.Fatalf("rank %d: %v", rank, got)
		}
		// All cores of their socket are shared out among the ranks, so the proxy goes to the other.
		if got.GetProxyCpus() != "8-15,24-31" {
			t.Errorf("rank %d: its proxy runs on %q", rank, got.GetProxyCpus())
		}
	}
}

// NICs that the user named take the place of those near a rank, also for the question where its proxy runs. Those that this
// node has not are the engine's to refuse.
func TestNamedNICsDecideWhereProxiesRun(t *testing.T) {
	n := withNICs(eightGPUs())
	for i := range n.NICs {
		n.NICs[i].RDMA = "rocep" + n.NICs[i].Name[5:]
		n.NICs[i].NUMA = n.GPUs[2*i].NUMA
	}
	proxies := func(devices string) (told map[int32]*pb.RankNetwork) {
		start := startOf(4, func(s *pb.Start) { s.Bind, s.NetDevices = BindNone, devices })
		seats, _, err := seatRanks(n, start, make([]string, 4), make([]bool, 4))
		if err != nil {
			t.Fatal(err)
		}
		return networks(start, seats)
	}
	near := proxies("")
	const far = "8-15,24-31" // of rocep0; all ranks are near the other socket
	for rank, got := range near {
		if got.GetProxyCpus() != "0-7,16-23" {
			t.Fatalf("rank %d: %v", rank, got)
		}
	}
	for rank, got := range proxies("rocep0:2,rocep99") {
		if !slices.Equal(got.GetNics(), []string{"rocep0"}) || got.GetRails() != nil || got.GetRule() != "named by --net-devices" || got.GetProxyCpus() != far {
			t.Errorf("rank %d: %v, want a proxy on %s", rank, got, far)
		}
	}
	for rank, got := range proxies("rocep99") {
		if got.String() != near[rank].String() {
			t.Errorf("rank %d: %v, want %v", rank, got, near[rank])
		}
	}
}

// Ranks for which GPUs were chosen take the NICs of those, also where each is alone on its (pretended) node.
func TestChosenGPUsDecide(t *testing.T) {
	job := &Job{
		World: plan.World{PPN: []int{1, 1}}, Session: true, RankGPUs: []string{"2,7", "2,7"}, RankDevices: []int{0, 1},
		Hosts: []Host{{Name: "node0", Address: "127.0.0.1"}, {Name: "node1", Address: "127.0.0.2"}},
	}
	places, _, err := job.preview(withNICs(eightGPUs()))
	if err != nil {
		t.Fatal(err)
	}
	for rank, nic := range []string{"mlx5_2", "mlx5_0"} {
		if !slices.Equal(places[rank].NICs, []string{nic}) {
			t.Errorf("rank %d: %v, want %s", rank, places[rank].NICs, nic)
		}
	}
}
