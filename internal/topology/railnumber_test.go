package topology

import (
	"fmt"
	"slices"
	"testing"
)

func numbersByName(n *Node) map[string]int {
	byName := map[string]int{}
	for c, number := range NewEval(n).RailNumbers() {
		byName[n.NICs[c].Name] = number
	}
	return byName
}

// Rails keep their numbers where a node lacks one of them, so that nodes agree without having met.
func TestRailNumbers(t *testing.T) {
	whole := numbersByName(h200().node())
	for i := range 8 {
		if got, ok := whole[fmt.Sprintf("mlx5_%d", 7-i)]; !ok || got != i {
			t.Errorf("the rail of GPU slot %d: %v", i, whole)
		}
	}
	for i := range 8 {
		n := h200().node()
		gone := fmt.Sprintf("mlx5_%d", i)
		n.NICs = slices.DeleteFunc(n.NICs, func(c NIC) bool { return c.Name == gone })
		without := numbersByName(n)
		if len(without) != len(whole)-1 {
			t.Errorf("without %s: %v", gone, without)
		}
		for name, number := range without {
			if number != whole[name] {
				t.Errorf("without %s: %s has number %d, with it %d", gone, name, number, whole[name])
			}
		}
	}
}

func TestLocalPlacesKnowTheirRails(t *testing.T) {
	places, err := NewEval(h200().node()).LocalPlaces(8, "")
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range places {
		if !slices.Equal(p.Rails, []int{i}) || p.NICRule != "the only nearest rail" {
			t.Errorf("rank %d: rails %v, %q", i, p.Rails, p.NICRule)
		}
	}
	// Without GPUs, ranks take those near the CPUs that they are given.
	n := h200().node()
	n.GPUs = nil
	if places, err = NewEval(n).LocalPlaces(4, ""); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for i, p := range places {
		if len(p.NICs) != 2 || len(p.Rails) != 2 || p.NICRule != fmt.Sprintf("rails of NUMA node %d: 4 for 2 ranks, number %d of them takes 2", i/2, i%2) {
			t.Errorf("rank %d: %v %v, %q", i, p.NICs, p.Rails, p.NICRule)
		}
		for _, r := range p.Rails {
			if seen[r] {
				t.Errorf("rail %d has two ranks", r)
			}
			seen[r] = true
		}
	}
}

func TestProxyCPUs(t *testing.T) {
	near := func(list string) CPUSet {
		set, err := ParseCPUList(list)
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	tests := []struct {
		name, allowed string
		nics          [][]string
		bound         []string
		want          []string
	}{
		{"unbound: near the NIC", "0-223", [][]string{{"mlx5_7"}, {"mlx5_0"}}, []string{"", ""}, []string{"0-55,112-167", "56-111,168-223"}},
		{"bound elsewhere on the node: what is left near the NIC", "0-223", [][]string{{"mlx5_7"}, {"mlx5_6"}}, []string{"0-7", "8-15"}, []string{"16-55,112-167", "16-55,112-167"}},
		{"only what may be used", "0-9", [][]string{{"mlx5_7"}}, []string{"0-7"}, []string{"8-9"}},
		{"all near it are taken: free ones elsewhere", "0-60", [][]string{{"mlx5_7"}}, []string{"0-55"}, []string{"56-60"}},
		{"none is free: near the NIC", "0-55", [][]string{{"mlx5_7"}}, []string{"0-55"}, []string{"0-55"}},
		{"none near it may be used: those that may", "0-9", [][]string{{"mlx5_0"}}, []string{""}, []string{"0-9"}},
		{"NICs of both sockets", "0-223", [][]string{{"mlx5_7", "mlx5_0"}}, []string{"0-200"}, []string{"201-223"}},
		{"no NIC", "0-223", [][]string{nil}, []string{""}, []string{""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := h200().node()
			n.System.Allowed = tt.allowed
			var bound []CPUSet
			for _, b := range tt.bound {
				set := CPUSet(nil)
				if b != "" {
					set = near(b)
				}
				bound = append(bound, set)
			}
			for i, got := range NewEval(n).ProxyCPUs(tt.nics, bound) {
				if got.String() != tt.want[i] {
					t.Errorf("rank %d: %s, want %s", i, got, tt.want[i])
				}
			}
		})
	}
}
