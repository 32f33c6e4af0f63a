package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// lose takes the NIC below the i-th switch of h200 away.
func (h *host) lose(i int, how string) {
	nic := fmt.Sprintf("0000:%02x:00.0", 0x10*(i+1)+4)
	root := 0x10 * (i + 1)
	port := fmt.Sprintf("/sys/devices/pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0/0000:%02x:01.0/%s/infiniband/mlx5_%d/ports/1", root, root, root+1, root+2, nic, 7-i)
	switch how {
	case "down":
		h.files.files[port+"/state"] = "1: DOWN\n"
	case "slow":
		h.files.files[port+"/rate"] = "200 Gb/sec (4X HDR)\n"
	case "gone":
		delete(h.files.links, fmt.Sprintf("/sys/class/infiniband/mlx5_%d", 7-i))
		delete(h.files.links, "/sys/bus/pci/devices/"+nic)
	case "blocked":
		delete(h.files.links, fmt.Sprintf("/sys/class/infiniband/mlx5_%d", 7-i))
	case "gpu":
		gpu := fmt.Sprintf("0000:%02x:00.0", 0x10*(i+1)+3)
		delete(h.files.links, "/sys/bus/pci/devices/"+gpu)
		h.nvml.GPUs = slices.DeleteFunc(h.nvml.GPUs, func(g nvmlGPU) bool { return g.BDF == gpu })
	}
}

// layout is NCCL's XML of a machine with some GPUs and NICs below each of four switches, without the NICs in lost.
func layout(host string, gpus, nics int, lost ...int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<system version="1"><cpu host_hash="%s" numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">`, host)
	for s := range 4 {
		fmt.Fprintf(&b, `<pci busid="0000:%x0:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">`, s+1)
		for g := range gpus {
			fmt.Fprintf(&b, `<pci busid="0000:%x%x:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="%d" sm="90"/></pci>`, s+1, g+1, s*gpus+g)
		}
		for k := range nics {
			if dev := s*nics + k; !slices.Contains(lost, dev) {
				fmt.Fprintf(&b, `<pci busid="0000:%x%x:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_%d" dev="%d" speed="400000" port="1" guid="0x%d"/></nic></pci>`, s+1, k+9, dev, dev, dev+1)
			}
		}
		b.WriteString("</pci>")
	}
	b.WriteString("</cpu></system>")
	return b.String()
}

// A node that lacks a rail leaves a gap: the rails after it stay what they are, and only those that lack are named.
func TestRailsKeepTheirPlaces(t *testing.T) {
	small := func(gpus, nics int, lost ...int) func() *Eval {
		return func() *Eval { return evalOf(t, layout("0x1", gpus, nics, lost...)) }
	}
	big := func(how string, lost ...int) func() *Eval {
		return func() *Eval {
			h := h200()
			for _, i := range lost {
				h.lose(i, how)
			}
			return NewEval(h.node())
		}
	}
	for name, tt := range map[string]struct {
		rails int
		whole func() *Eval
		odd   func() *Eval
		lacks map[int]string // by rail, the host that lacks it
	}{
		"nothing":              {8, big(""), big(""), nil},
		"port down":            {8, big(""), big("down", 1), map[int]string{1: "odd"}},
		"first port down":      {8, big(""), big("down", 0), map[int]string{0: "odd"}},
		"port slow":            {8, big(""), big("slow", 6), map[int]string{6: "odd"}},
		"off the bus":          {8, big(""), big("gone", 3), map[int]string{3: "odd"}},
		"blocked":              {8, big(""), big("blocked", 2), map[int]string{2: "odd"}},
		"two neighbours":       {8, big(""), big("down", 4, 5), map[int]string{4: "odd", 5: "odd"}},
		"a whole socket":       {8, big(""), big("down", 0, 1, 2, 3), map[int]string{0: "odd", 1: "odd", 2: "odd", 3: "odd"}},
		"one here, one there":  {8, big("down", 1), big("gone", 5), map[int]string{1: "whole", 5: "odd"}},
		"a GPU off the bus":    {8, big(""), big("gpu", 2), map[int]string{2: "odd"}},
		"tie of two":           {8, small(2, 2), small(2, 2, 2), map[int]string{2: "odd"}},
		"tie of two, second":   {8, small(2, 2), small(2, 2, 3), map[int]string{3: "odd"}},
		"tie, both":            {8, small(2, 2), small(2, 2, 2, 3), map[int]string{2: "odd", 3: "odd"}},
		"one GPU, four NICs":   {16, small(1, 4), small(1, 4, 5), map[int]string{5: "odd"}},
		"shared by two":        {4, small(2, 1), small(2, 1, 1), map[int]string{1: "odd"}},
		"fewer NICs than GPUs": {8, small(3, 2), small(3, 2, 4), map[int]string{4: "odd"}},
	} {
		for _, times := range []int{1, 5} {
			var evals []*Eval
			for range times {
				evals = append(evals, tt.whole())
				evals[len(evals)-1].Node.Host = "whole"
			}
			evals = append(evals, tt.odd())
			evals[times].Node.Host = "odd"
			if times%2 == 1 && times > 1 {
				slices.Reverse(evals)
			}
			rails := Rails(evals)
			if len(rails) != tt.rails {
				t.Fatalf("%s, %d whole: %d rails, want %d", name, times, len(rails), tt.rails)
			}
			for _, r := range rails {
				for _, m := range r.Members {
					if m.NIC.BDF != r.Members[0].NIC.BDF {
						t.Errorf("%s, %d whole: rail %d is %s and %s", name, times, r.Rail, r.Members[0].NIC.BDF, m.NIC.BDF)
					}
				}
				want := []string{}
				if host := tt.lacks[r.Rail]; host == "odd" {
					want = []string{"missing on odd"}
				} else if host != "" {
					want = []string{"missing on " + strings.TrimSuffix(strings.Repeat("whole, ", times), ", ")}
				}
				if !slices.Equal(r.Problems, want) {
					t.Errorf("%s, %d whole: rail %d: %q, want %q", name, times, r.Rail, r.Problems, want)
				}
			}
		}
	}
}

// A picture of several nodes numbers the rails as the table does.
func TestRailNumbersInPictures(t *testing.T) {
	h := h200()
	h.lose(1, "down")
	b := NewEval(h.node())
	b.Node.Host = "odd"
	numbers := railNumbers([]*Eval{NewEval(h200().node()), b})
	for c, nic := range b.Node.NICs[:8] {
		r, ok := numbers[1][c]
		if ok == (c == 1) || ok && r != c {
			t.Errorf("%s is rail %d (%v), want %d", nic.BDF, r, ok, c)
		}
	}
}

// Machines of another build are matched by order, as ever.
func TestRailsOfOtherBuilds(t *testing.T) {
	a, b := evalOf(t, layout("0x1", 1, 2)), evalOf(t, strings.ReplaceAll(layout("0x2", 2, 2), "busid=\"0000:", "busid=\"0001:"))
	a.Node.Host, b.Node.Host = "a", "b"
	rails := Rails([]*Eval{a, b})
	if len(rails) != 8 {
		t.Fatalf("%d rails", len(rails))
	}
	for i, r := range rails {
		if len(r.Members) != 2 || r.Members[0].NIC.Name != r.Members[1].NIC.Name || r.Members[0].NIC.Name != fmt.Sprintf("mlx5_%d", i) {
			t.Errorf("rail %d: %+v", i, r.Members)
		}
	}
}
