package topology

import (
	"slices"
	"strings"
)

// product is what a GPU of one kind is known to have.
type product struct {
	name  string
	ids   []int
	links []int // numbers of active links that are right; the first is the usual one
}

// products list wired NVLinks, not those the chip could have: an H100 PCIe reports 18 and has 12 with
// bridges, none without.
var products = []product{
	{"P100 SXM2", []int{0x15f9}, []int{4}},
	{"V100 SXM", []int{0x1db1, 0x1db5, 0x1db8, 0x1db3}, []int{6}},
	{"A100 SXM", []int{0x20b0, 0x20b2, 0x20b3}, []int{12}},
	{"A100 PCIe", []int{0x20b5, 0x20f1}, []int{0, 12}},
	{"A800 SXM", []int{0x20f3, 0x20bd}, []int{8}},
	{"A10", []int{0x2236, 0x2237}, []int{0}},
	{"T4", []int{0x1eb8, 0x1eb4}, []int{0}},
	{"L4", []int{0x27b8}, []int{0}},
	{"L40S", []int{0x26b9}, []int{0}},
	{"H100 SXM", []int{0x2330}, []int{18}},
	{"H100 PCIe", []int{0x2331}, []int{0, 12}},
	{"H800 SXM", []int{0x2324}, []int{8}},
	{"H20", []int{0x2329}, []int{18}},
	{"H200 SXM", []int{0x2335}, []int{18}},
	{"H200 NVL", []int{0x233b}, []int{0, 18}},
	{"GH200", []int{0x2342, 0x2348}, []int{0, 18}},
	{"B200", []int{0x2901}, []int{18}},
	{"GB200", []int{0x2941}, []int{18}},
	{"B300", []int{0x3182}, []int{18}},
	{"GB300", []int{0x31c2}, []int{18}},
}

// nameHints match product names where no device id is known.
var nameHints = []struct{ part, product string }{
	{"H100 PCIe", "H100 PCIe"}, {"A100-PCIE", "A100 PCIe"}, {"A100 PCIe", "A100 PCIe"}, {"H200 NVL", "H200 NVL"}, {"GH200", "GH200"},
	{"GB300", "GB300"}, {"GB200", "GB200"}, {"B300", "B300"}, {"B200", "B200"}, {"H200", "H200 SXM"}, {"H100 80GB HBM3", "H100 SXM"},
	{"H800", "H800 SXM"}, {"A800-SXM", "A800 SXM"}, {"A100-SXM", "A100 SXM"}, {"V100-SXM", "V100 SXM"}, {"P100-SXM", "P100 SXM2"},
}

// productOf finds what a GPU is; nil if it is not in the table.
func productOf(g *GPU) *product {
	if g.Vendor != vendorNVIDIA {
		return nil
	}
	for i := range products {
		if slices.Contains(products[i].ids, g.Device) {
			return &products[i]
		}
	}
	for _, h := range nameHints {
		if strings.Contains(g.Name, h.part) {
			for i := range products {
				if products[i].name == h.product {
					return &products[i]
				}
			}
		}
	}
	return nil
}

// Machine is a product of which mkrun knows what it must have; zero values are not checked.
type Machine struct {
	Name     string
	What     string
	GPUs     int
	Products []string // of the GPUs
	Links    int      // NVLinks of each GPU
	NICs     int      // rails
	PerGPU   int      // rails that each GPU uses
	EFA      bool
	Nearest  []Level
	Sockets  int
}

// Machines are the names that --expect takes.
var Machines = []Machine{
	{Name: "a100-8", What: "8 x A100 SXM on an HGX board", GPUs: 8, Products: []string{"A100 SXM"}, Links: 12},
	{Name: "h100-8", What: "8 x H100 SXM on an HGX board", GPUs: 8, Products: []string{"H100 SXM"}, Links: 18},
	{Name: "h200-8", What: "8 x H200 SXM on an HGX board", GPUs: 8, Products: []string{"H200 SXM"}, Links: 18},
	{Name: "b200-8", What: "8 x B200 on an HGX board", GPUs: 8, Products: []string{"B200"}, Links: 18},
	{Name: "b300-8", What: "8 x B300 on an HGX board", GPUs: 8, Products: []string{"B300"}, Links: 18},
	{Name: "gb200-4", What: "a GB200 tray: 4 GPUs, 2 Grace CPUs", GPUs: 4, Products: []string{"GB200"}, Links: 18},
	{Name: "p4d", What: "AWS p4d.24xlarge", GPUs: 8, Products: []string{"A100 SXM"}, Links: 12, NICs: 4, PerGPU: 1, EFA: true, Sockets: 2},
	{Name: "p5", What: "AWS p5.48xlarge", GPUs: 8, Products: []string{"H100 SXM"}, Links: 18, NICs: 32, PerGPU: 4, EFA: true, Nearest: []Level{LevelPIX, LevelPXB}, Sockets: 2},
	{Name: "p5en", What: "AWS p5en.48xlarge", GPUs: 8, Products: []string{"H200 SXM"}, Links: 18, NICs: 16, PerGPU: 2, EFA: true, Nearest: []Level{LevelPIX, LevelPXB}, Sockets: 2},
	{Name: "p6-b200", What: "AWS p6-b200.48xlarge", GPUs: 8, Products: []string{"B200"}, Links: 18, NICs: 8, PerGPU: 1, EFA: true, Nearest: []Level{LevelPIX, LevelPXB}, Sockets: 2},
	{Name: "ndv5", What: "Azure ND H100 v5", GPUs: 8, Products: []string{"H100 SXM"}, Links: 18, NICs: 8, PerGPU: 1, Sockets: 2},
	{Name: "a3-ultra", What: "Google A3 Ultra", GPUs: 8, Products: []string{"H200 SXM"}, Links: 18, NICs: 8, PerGPU: 1, Nearest: []Level{LevelPIX, LevelPXB}, Sockets: 2},
}

// MachineNames are the names of Machines.
func MachineNames() []string {
	names := make([]string, len(Machines))
	for i, m := range Machines {
		names[i] = m.Name
	}
	return names
}
