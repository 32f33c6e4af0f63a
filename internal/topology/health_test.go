package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// knownFaulty are the files of the corpus that describe a broken machine, with the code that must be
// found. All others are healthy: any degradation found in them is a false alarm.
var knownFaulty = map[string]string{"nccl-xml/azure-nc96v4.xml": "nvlink-self"}

func TestCorpusHealth(t *testing.T) {
	for _, a := range answers(t) {
		if !slices.Contains(scored, a.Kind) {
			continue
		}
		list := CheckNodes([]*Eval{NewEval(load(t, a.File))}, nil)
		if code := knownFaulty[a.File]; code != "" {
			if !slices.ContainsFunc(list, func(f Finding) bool { return f.Code == code && f.Severity == Degraded }) {
				t.Errorf("%s: %s was not found in %v", a.File, code, list)
			}
			continue
		}
		if !Healthy(list) {
			t.Errorf("%s is healthy, but: %v", a.File, list)
		}
	}
}

// Machines of the table are recognised in the corpus without a complaint.
func TestCorpusExpect(t *testing.T) {
	for name, files := range map[string][]string{
		"p4d":      {"lstopo/aws-p4d.24xlarge.xml", "nccl-xml/aws-p4d.24xlarge.xml"},
		"p5":       {"lstopo/aws-p5.48xlarge.xml"},
		"p5en":     {"lstopo/aws-p5en.48xlarge.xml"},
		"p6-b200":  {"lstopo/aws-p6-b200.48xlarge.xml"},
		"ndv5":     {"nccl-xml/azure-ndv5.xml"},
		"a3-ultra": {"smi/gcp-a3-ultra-h200.txt"},
		"h100-8":   {"nccl-xml/oci-bm.gpu.h100.8.xml", "smi/aws-p5.48xlarge.txt"},
		"h200-8":   {"smi/gcp-a3-ultra-h200.txt"},
	} {
		x, err := ParseExpectation(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if list := x.Check(NewEval(load(t, f))); !Healthy(list) {
				t.Errorf("%s is a %s, but: %v", f, name, list)
			}
		}
	}
	x, err := ParseExpectation("h200-8")
	if err != nil {
		t.Fatal(err)
	}
	list := x.Check(NewEval(load(t, "lstopo/aws-g6.48xlarge.xml")))
	if Healthy(list) {
		t.Error("8 x L4 pass for 8 x H200")
	}
}

// A card for storage on a root port of its own, of the same product as the rails, is no rail; that its second port is
// not cabled, or that it is slower, is no fault. What a rail's card lacks is one.
func TestStorageCards(t *testing.T) {
	const dual, far = "pci0000:a8/0000:a8:01.0/0000:a9:00.", "pci0000:f0/0000:f0:01.0/0000:f1:00."
	card := func(h *host, base string, numa int, rate string, states ...string) {
		for fn, state := range states {
			dir := base + fmt.Sprint(fn)
			h.pci(dir, "0x020700", vendorMellanox, 0x1021, numa, nil)
			h.rdma(fmt.Sprintf("mlx5_%d%d", 2+numa, fn), dir, "InfiniBand", rate, state, fmt.Sprintf("a088:c203:00ee:%d%03d", numa, fn))
		}
	}
	const up, down, ndr, hdr = "4: ACTIVE", "1: DOWN", "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)"
	for name, tt := range map[string]struct {
		build func(*host)
		want  []string // code and NIC of each degradation
	}{
		"second port not cabled":  {func(h *host) { card(h, dual, 0, ndr, up, down) }, nil},
		"on both sockets":         {func(h *host) { card(h, dual, 0, ndr, up, down); card(h, far, 1, ndr, up, down) }, nil},
		"slower":                  {func(h *host) { card(h, dual, 0, hdr, up) }, nil},
		"not cabled at all":       {func(h *host) { card(h, dual, 0, ndr, down, down) }, nil},
		"both ports":              {func(h *host) { card(h, dual, 0, ndr, up, up) }, nil},
		"a rail down beside it":   {func(h *host) { card(h, dual, 0, ndr, up, down); h.lose(1, "down") }, []string{"nic-down mlx5_6"}},
		"a rail slow beside it":   {func(h *host) { card(h, dual, 0, hdr, up, down); h.lose(1, "slow") }, []string{"nic-rate mlx5_6"}},
		"rails with second ports": {func(h *host) { secondPorts(h, -1) }, nil},
		"one of them cabled not":  {func(h *host) { secondPorts(h, 5) }, []string{"nic-down mlx5_d5"}},
	} {
		h := h200()
		tt.build(h)
		e := NewEval(h.node())
		var got []string
		for _, f := range e.Health() {
			if f.Severity == Degraded {
				got = append(got, f.Code+" "+f.Where)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: found %q, want %q", name, got, tt.want)
		}
		for i, c := range e.Node.NICs {
			if (strings.Contains(c.BDF, "a9:00") || strings.Contains(c.BDF, "f1:00")) && e.Role(i).Role == RoleRail {
				t.Errorf("%s: %s is a rail", name, c.Name)
			}
		}
	}
}

// secondPorts gives each rail's card a second port: all are up but one, or all are down (-1).
func secondPorts(h *host, down int) {
	for i := range 8 {
		state := "4: ACTIVE"
		if down < 0 || i == down {
			state = "1: DOWN"
		}
		root := 0x10 * (i + 1)
		dir := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0/0000:%02x:01.0/0000:%02x:00.1", root, root, root+1, root+2, root+4)
		h.pci(dir, "0x020700", vendorMellanox, 0x1021, i/4, nil)
		h.rdma(fmt.Sprintf("mlx5_d%d", i), dir, "InfiniBand", "400 Gb/sec (4X NDR)", state, fmt.Sprintf("a088:c203:0067:e%03x", i*16+1))
	}
}

// What NVML says of a GPU, and whether it degrades the node.
func TestHealthOfGPUs(t *testing.T) {
	mig := []MIG{{UUID: "MIG-1", Name: "1g.18gb"}}
	for name, tt := range map[string]struct {
		change func(*nvmlGPU)
		code   string
		sev    Severity
	}{
		"healthy":               {func(*nvmlGPU) {}, "", ""},
		"ECC":                   {func(g *nvmlGPU) { g.Health.Uncorrected = 3 }, "gpu-ecc", Degraded},
		"a row not remapped":    {func(g *nvmlGPU) { g.Health.RemapFailed, g.Health.RemapWaits = true, true }, "gpu-remap", Degraded},
		"a row that waits":      {func(g *nvmlGPU) { g.Health.RemapWaits = true }, "gpu-remap", Warning},
		"throttled":             {func(g *nvmlGPU) { g.Health.Throttle = []string{"hardware thermal"} }, "gpu-throttle", Degraded},
		"links to itself":       {func(g *nvmlGPU) { g.Links = []NVLink{{Target: g.BDF, Peer: PeerGPU, Count: 18}} }, "nvlink-self", Degraded},
		"few links":             {func(g *nvmlGPU) { g.Links[0].Count = 16 }, "nvlink-count", Degraded},
		"no links":              {func(g *nvmlGPU) { g.Links = nil }, "nvlink-count", Degraded},
		"MIG, links turned off": {func(g *nvmlGPU) { g.MIG, g.Links = mig, nil }, "", ""},
		"MIG, links on":         {func(g *nvmlGPU) { g.MIG = mig }, "", ""},
	} {
		h := h200()
		tt.change(&h.nvml.GPUs[4])
		var want, got []Finding
		if tt.code != "" {
			want = []Finding{{Code: tt.code, Severity: tt.sev, Where: "GPU4"}}
		}
		for _, f := range NewEval(h.node()).Health() {
			got = append(got, Finding{Code: f.Code, Severity: f.Severity, Where: f.Where})
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: found %v, want %v", name, got, want)
		}
	}
}
