package launch

import (
	"slices"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/plan"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/topology"
)

// withNICs puts a rail next to each pair of GPUs.
func withNICs(n *topology.Node) *topology.Node {
	n.Details.NICs = true
	names := []string{"GPU0", "GPU1", "GPU2", "GPU3", "GPU4", "GPU5", "GPU6", "GPU7", "mlx5_3", "mlx5_2", "mlx5_1", "mlx5_0"}
	m := &topology.Matrix{Names: names, Level: make([][]string, len(names))}
	for i := range names {
		m.Level[i] = make([]string, len(names))
		for j := range names {
			switch {
			case i == j:
				m.Level[i][j] = "X"
			case i < 8 && j < 8:
				m.Level[i][j] = "NV18"
			case min(i, j) < 8 && min(i, j)/2 == max(i, j)-8:
				m.Level[i][j] = "PIX"
			default:
				m.Level[i][j] = "SYS"
			}
		}
	}
	n.Matrix = m
	for _, name := range names[8:] {
		n.NICs = append(n.NICs, topology.NIC{Name: name, RDMA: name, BDF: name, PCI: -1, Ports: []topology.Port{{State: "ACTIVE", Layer: "InfiniBand", Rate: 400000}}})
	}
	return n
}

func TestPreview(t *testing.T) {
	job := &Job{
		World: plan.World{PPN: []int{8, 2, 1}}, Bind: BindAuto,
		Hosts: []Host{{Name: "here", Address: "127.0.0.1"}, {Name: "far", By: ReachSSH, Target: "far"}, {Name: "here", Address: "127.0.0.2", Devices: []int{5}}},
	}
	places, notices, err := job.preview(withNICs(eightGPUs()))
	if err != nil || len(notices) != 0 {
		t.Fatalf("%v, %q", err, notices)
	}
	for rank, p := range places {
		if rank == 8 || rank == 9 {
			if p != nil {
				t.Errorf("rank %d is on another machine, but its place is %+v", rank, *p)
			}
			continue
		}
		gpu := rank
		if rank == 10 {
			gpu = 5
		}
		nic := "mlx5_" + string(rune('3'-gpu/2))
		if cpus := []string{"0-7,16-23", "8-15,24-31"}[gpu/4]; p.CPUs != cpus || !strings.HasPrefix(p.GPU, "GPU-"+string(rune('0'+gpu))) || !slices.Equal(p.NICs, []string{nic}) {
			t.Errorf("rank %d: %+v, want GPU %d, CPUs %s, NIC %s", rank, *p, gpu, cpus, nic)
		}
	}
	job.GPUs = "9"
	if _, _, err := job.preview(withNICs(eightGPUs())); err == nil || !strings.Contains(err.Error(), "no GPU's number") {
		t.Errorf("%v", err)
	}
}

// A job that is all on other machines does not look at this one.
func TestPreviewOfOtherMachines(t *testing.T) {
	job := &Job{World: plan.World{PPN: []int{2}}, Hosts: []Host{{Name: "far", By: ReachSSH, Target: "far"}}}
	places, _, err := job.Preview(t.Context())
	if err != nil || len(places) != 2 || places[0] != nil || places[1] != nil {
		t.Errorf("%v, %v", places, err)
	}
}

func TestSeatsNameTheirNICs(t *testing.T) {
	seats, _, err := seatRanks(withNICs(eightGPUs()), startOf(4, func(*pb.Start) {}), make([]string, 4), make([]bool, 4))
	if err != nil {
		t.Fatal(err)
	}
	if text := seats[3].text(); !strings.Contains(text, "NICs mlx5_2") {
		t.Errorf("rank 3: %s", text)
	}
}
