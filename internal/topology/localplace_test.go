package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func gpusOf(places []RankPlace) string {
	var words []string
	for _, p := range places {
		words = append(words, fmt.Sprint(p.GPU))
	}
	return strings.Join(words, " ")
}

func nicsOf(places []RankPlace) string {
	var words []string
	for _, p := range places {
		var names []string
		for _, c := range p.NICs {
			names = append(names, c.Name)
		}
		words = append(words, strings.Join(names, "+"))
	}
	return strings.Join(words, " ")
}

func TestLocalPlaces(t *testing.T) {
	uuid := func(i int) string { return fmt.Sprintf("GPU-3fa4b2c1-0000-4000-8000-00000000aa%02x", i) }
	tests := []struct {
		name, visible string
		ranks         int
		gpus, nics    string
	}{
		{"one rank per GPU", "", 8, "0 1 2 3 4 5 6 7", "mlx5_7 mlx5_6 mlx5_5 mlx5_4 mlx5_3 mlx5_2 mlx5_1 mlx5_0"},
		{"fewer", "", 3, "0 1 2", "mlx5_7 mlx5_6 mlx5_5"},
		{"more: neighbours share", "", 16, "0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7", "mlx5_7 mlx5_7 mlx5_6 mlx5_6 mlx5_5 mlx5_5 mlx5_4 mlx5_4 mlx5_3 mlx5_3 mlx5_2 mlx5_2 mlx5_1 mlx5_1 mlx5_0 mlx5_0"},
		{"the user's order", "6,2", 2, "6 2", "mlx5_1 mlx5_5"},
		{"by UUID", uuid(5) + "," + uuid(1), 2, "5 1", "mlx5_2 mlx5_6"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			places, err := NewEval(h200().node()).LocalPlaces(tt.ranks, tt.visible)
			if err != nil {
				t.Fatal(err)
			}
			if g, c := gpusOf(places), nicsOf(places); g != tt.gpus || c != tt.nics {
				t.Errorf("GPUs %s, NICs %s; want %s, %s", g, c, tt.gpus, tt.nics)
			}
			for local, p := range places {
				numa, cpus := p.GPU/4, []string{"0-55,112-167", "56-111,168-223"}[p.GPU/4]
				if p.LocalRank != local || p.Rank != local || p.NUMA == nil || *p.NUMA != numa || p.CPUs != cpus || p.Device != uuid(p.GPU) {
					t.Errorf("local rank %d: %+v", local, p)
				}
			}
		})
	}
}

func TestLocalPlacesWithinTheAllowedCPUs(t *testing.T) {
	n := h200().node()
	n.System.Allowed = "8-15,120-127"
	places, err := NewEval(n).LocalPlaces(8, "")
	if err != nil {
		t.Fatal(err)
	}
	if p := places[0]; p.CPUs != "8-15,120-127" || !strings.Contains(p.Bind, "ideal: 0-55,112-167") {
		t.Errorf("near the allowed CPUs: %+v", p)
	}
	if p := places[7]; p.CPUs != "" || !strings.Contains(p.Bind, "not bound") {
		t.Errorf("far from the allowed CPUs: %+v", p)
	}
}

func TestLocalPlacesOfMIGInstances(t *testing.T) {
	n := h200().node()
	n.GPUs[3].MIG = []MIG{{UUID: "MIG-a"}, {UUID: "MIG-b"}}
	places, err := NewEval(n).LocalPlaces(3, "MIG-b,1,MIG-a")
	if err != nil {
		t.Fatal(err)
	}
	if g := gpusOf(places); g != "3 1 3" || places[0].Device != "MIG-b" || places[1].Device != n.GPUs[1].UUID || places[2].Device != "MIG-a" {
		t.Errorf("GPUs %s, devices %s %s %s", g, places[0].Device, places[1].Device, places[2].Device)
	}
}

func TestLocalPlacesWithoutGPUs(t *testing.T) {
	h := h200()
	h.nvml = nvmlState{Problem: "not here"}
	n := h.node()
	n.GPUs = nil
	for _, tt := range []struct {
		ranks      int
		numa, nics string
	}{
		{1, "[0]", "mlx5_7+mlx5_6+mlx5_5+mlx5_4"},
		{2, "[0 1]", "mlx5_7+mlx5_6+mlx5_5+mlx5_4 mlx5_3+mlx5_2+mlx5_1+mlx5_0"},
		{4, "[0 0 1 1]", "mlx5_7+mlx5_6 mlx5_5+mlx5_4 mlx5_3+mlx5_2 mlx5_1+mlx5_0"},
		{16, "[0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1]", "mlx5_7 mlx5_7 mlx5_6 mlx5_6 mlx5_5 mlx5_5 mlx5_4 mlx5_4 mlx5_3 mlx5_3 mlx5_2 mlx5_2 mlx5_1 mlx5_1 mlx5_0 mlx5_0"},
	} {
		places, err := NewEval(n).LocalPlaces(tt.ranks, "")
		if err != nil {
			t.Fatal(err)
		}
		var numa []int
		for _, p := range places {
			numa = append(numa, *p.NUMA)
			if p.GPU != -1 || p.CPUs != n.NUMA[*p.NUMA].CPUs {
				t.Errorf("%+v", p)
			}
		}
		if fmt.Sprint(numa) != tt.numa || nicsOf(places) != tt.nics {
			t.Errorf("%d ranks: NUMA nodes %v, NICs %s; want %s, %s", tt.ranks, numa, nicsOf(places), tt.numa, tt.nics)
		}
	}
	n.System.Allowed = "60-70"
	places, err := NewEval(n).LocalPlaces(2, "")
	if err != nil || places[0].CPUs != "60-70" || places[1].CPUs != "60-70" {
		t.Errorf("%+v, %v", places, err)
	}
}

func TestLocalPlacesRefuses(t *testing.T) {
	e := NewEval(h200().node())
	for visible, want := range map[string]string{"9": "is no GPU's number", "GPU-3fa4": "fits several GPUs", "MIG-x": "no MIG instance here", "0,0": "named twice"} {
		if places, err := e.LocalPlaces(1, visible); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", visible, places, err, want)
		}
	}
	if _, err := e.LocalPlaces(0, ""); err == nil {
		t.Error("no rank was placed")
	}
	if places, err := e.LocalPlaces(1, "-1"); err != nil || places[0].GPU != -1 {
		t.Errorf("no GPU wanted: %+v, %v", places, err)
	}
}

// T41, T22: placing changes nothing, and uses all rails when all GPUs are.
func TestLocalPlacesUseAllRails(t *testing.T) {
	places, err := NewEval(h200().node()).LocalPlaces(8, "")
	if err != nil {
		t.Fatal(err)
	}
	var used []string
	for _, p := range places {
		for _, c := range p.NICs {
			used = append(used, c.BDF)
		}
	}
	slices.Sort(used)
	if used = slices.Compact(used); len(used) != 8 {
		t.Errorf("%d NICs are used", len(used))
	}
}
