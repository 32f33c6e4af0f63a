package launch

import (
	"fmt"
	"strings"
	"testing"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/topology"
)

// eightGPUs is a host with two sockets of eight cores with two threads each, and four GPUs at either.
func eightGPUs() *topology.Node {
	cpus := []string{"0-7,16-23", "8-15,24-31"}
	n := &topology.Node{Host: "big", Tree: topology.TreeNone}
	for i := range 2 {
		n.NUMA = append(n.NUMA, topology.NUMANode{ID: i, CPUs: cpus[i], HasCPU: true})
	}
	for i := range 8 {
		numa := i / 4
		n.GPUs = append(n.GPUs, topology.GPU{Index: i, PCI: -1, Dev: i, CUDA: i, UUID: fmt.Sprintf("GPU-%d0000000-aaaa", i), NUMA: &numa, CPUs: cpus[numa]})
	}
	n.GPUs[7].MIG = []topology.MIG{{UUID: "MIG-one"}, {UUID: "MIG-two"}}
	n.System.Allowed = "0-31"
	return n
}

func twoThreads(cpu int) topology.CPUSet { return topology.CPUSet{cpu % 16, cpu%16 + 16} }

func startOf(ranks int, set func(*pb.Start)) *pb.Start {
	s := &pb.Start{}
	for rank := range ranks {
		s.Ranks = append(s.Ranks, &pb.RankSpec{Rank: int32(rank), LocalRank: int32(rank)})
	}
	set(s)
	return s
}

func TestSeats(t *testing.T) {
	tests := []struct {
		name    string
		set     func(*pb.Start)
		visible string // of all ranks
		ranks   int
		want    []string // CPUs / GPU / CUDA_VISIBLE_DEVICES
	}{
		{"auto: near the GPU", func(s *pb.Start) { s.Bind = BindAuto }, "", 8,
			[]string{"0-7,16-23/0/", "0-7,16-23/1/", "0-7,16-23/2/", "0-7,16-23/3/", "8-15,24-31/4/", "8-15,24-31/5/", "8-15,24-31/6/", "8-15,24-31/7/"}},
		{"none", func(s *pb.Start) { s.Bind = BindNone }, "", 2, []string{"/0/", "/1/"}},
		{"the user's GPUs, in the user's order", func(s *pb.Start) { s.Bind, s.Gpus = BindNUMA, "5,1" }, "5,1", 2, []string{"8-15,24-31/5/", "0-7,16-23/1/"}},
		{"P74: by shortened UUID", func(s *pb.Start) { s.Bind, s.Gpus = BindAuto, "GPU-6,GPU-2" }, "GPU-6,GPU-2", 2, []string{"8-15,24-31/6/", "0-7,16-23/2/"}},
		{"P74: MIG instances, one for each rank", func(s *pb.Start) { s.Bind, s.Gpus, s.GpuIsolate = BindAuto, "MIG-two,MIG-one", true }, "MIG-two,MIG-one", 2,
			[]string{"8-15,24-31/MIG-two/MIG-two", "8-15,24-31/MIG-one/MIG-one"}},
		{"isolated", func(s *pb.Start) { s.Bind, s.GpuIsolate = BindNone, true }, "", 3,
			[]string{"/0/GPU-00000000-aaaa", "/1/GPU-10000000-aaaa", "/2/GPU-20000000-aaaa"}},
		{"cores shared out", func(s *pb.Start) { s.Bind = BindCore }, "0,1,4", 3, []string{"0-3,16-19/0/", "4-7,20-23/1/", "8-15,24-31/4/"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			visible := make([]string, tt.ranks)
			for i := range visible {
				visible[i] = tt.visible
			}
			start := startOf(tt.ranks, tt.set)
			share := start.Bind == BindCore
			if share {
				start.Bind = BindNUMA // cores are this host's own below; here those of the example
			}
			seats, notices, err := seatRanks(eightGPUs(), start, visible, make([]bool, tt.ranks))
			if share {
				notices = append(notices, shareCores(seats, twoThreads)...)
			}
			if err != nil || len(notices) > 0 {
				t.Fatalf("%v, notices %q", err, notices)
			}
			for i, s := range seats {
				gpu := s.gpu
				for n := range 8 {
					if gpu == fmt.Sprintf("GPU-%d0000000-aaaa", n) {
						gpu = fmt.Sprint(n)
					}
				}
				if got := s.cpus.String() + "/" + gpu + "/" + s.visible; got != tt.want[i] {
					t.Errorf("rank %d: %s, want %s", i, got, tt.want[i])
				}
			}
		})
	}
}

// P73: only CPUs that may be used are taken; where none of those is near, the rank stays unbound and that is said.
func TestP73BindingStaysWithinTheAllowedCPUs(t *testing.T) {
	n := eightGPUs()
	n.System.Allowed = "2-3,18-19"
	seats, notices, err := seatRanks(n, startOf(8, func(s *pb.Start) { s.Bind = BindAuto }), make([]string, 8), make([]bool, 8))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range seats {
		want := ""
		if i < 4 {
			want = "2-3,18-19"
		}
		if s.cpus.String() != want {
			t.Errorf("rank %d is bound to %q, want %q", i, s.cpus, want)
		}
	}
	if len(notices) != 4 || !strings.Contains(notices[0], "only 2-3,18-19 may be used") {
		t.Errorf("notices %q", notices)
	}
	// More ranks than cores is no error either.
	if notices := shareCores(seats[:4], twoThreads); len(notices) != 1 || seats[0].cpus.String() != "2-3,18-19" {
		t.Errorf("notices %q, CPUs %s", notices, seats[0].cpus)
	}
	n.GPUs = nil
	seats, _, err = seatRanks(n, startOf(2, func(s *pb.Start) { s.Bind = BindAuto }), make([]string, 2), make([]bool, 2))
	if err != nil || len(seats[0].cpus) != 0 {
		t.Errorf("without GPUs auto binds to %s (%v)", seats[0].cpus, err)
	}
}

// P74: what CUDA would not take is refused by name, before anything starts where that can be.
func TestP74GPUsThatCannotBeChosen(t *testing.T) {
	for list, want := range map[string]string{
		"0,x": `"x" is neither`, "-1": `"-1" is neither`, "0,,1": `"" is neither`, "MIG-one,MIG-two": "only one MIG instance",
	} {
		if err := CheckGPUs(list, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--gpus %s: %v, want %q", list, err, want)
		}
	}
	for _, list := range []string{"", "0", "3,1", "GPU-3fa4, 2", "MIG-one", "MIG-GPU-30000000-aaaa/1/0"} {
		if err := CheckGPUs(list, false); err != nil {
			t.Errorf("--gpus %s: %v", list, err)
		}
	}
	if err := CheckGPUs("MIG-one,MIG-two", true); err != nil {
		t.Error(err)
	}
	for list, want := range map[string]string{"9": "is no GPU's number", "GPU-f": "is the UUID of no GPU", "MIG-none": "no MIG instance", "1,1": "named twice"} {
		_, _, err := seatRanks(eightGPUs(), startOf(1, func(s *pb.Start) { s.Gpus = list }), []string{list}, []bool{false})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--gpus %s: %v, want %q", list, err, want)
		}
	}
	// The same in the environment, unasked, costs the binding only.
	seats, notices, err := seatRanks(eightGPUs(), startOf(1, func(s *pb.Start) { s.Bind = BindAuto }), []string{"GPU-f"}, []bool{false})
	if err != nil || len(notices) != 1 || len(seats[0].cpus) != 0 {
		t.Errorf("%v, notices %q", err, notices)
	}
}

func TestCountGPUs(t *testing.T) {
	n := eightGPUs()
	n.GPUs[0].Hidden = true
	for _, tt := range []struct {
		list, visible string
		want          int
		problem       string
	}{
		{"", "", 7, ""}, {"", "3,1", 2, ""}, {"GPU-6", "3,1", 1, ""}, {"MIG-one", "", 1, ""}, {"9", "", 0, "is no GPU's number"}, {"", "-1", 0, "no GPU that may be used"},
	} {
		got, err := countGPUs(n, tt.list, tt.visible)
		if got != tt.want || (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("--gpus %q, CUDA_VISIBLE_DEVICES=%q: %d, %v; want %d, %q", tt.list, tt.visible, got, err, tt.want, tt.problem)
		}
	}
}
