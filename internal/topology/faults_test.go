package topology

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The tests of this file carry the numbers of publicly reported faults of other tools; each holds
// what is right.

func findings(t *testing.T, e *Eval, code string) []Finding {
	t.Helper()
	var list []Finding
	for _, f := range e.Health() {
		if f.Code == code {
			list = append(list, f)
		}
	}
	return list
}

func hasNote(n *Node, part string) bool {
	return slices.ContainsFunc(n.Notes, func(x Note) bool { return strings.Contains(x.What, part) })
}

// 32 EFA, 32 ENA and GPUs overflow NCCL's 256 elements: unused functions are left out.
func TestT1ExportStaysSmall(t *testing.T) {
	n := load(t, "lstopo/aws-p5.48xlarge.xml")
	var b bytes.Buffer
	if err := NewEval(n).WriteNCCL(&b); err != nil {
		t.Fatal(err)
	}
	if elements := strings.Count(b.String(), "<") - strings.Count(b.String(), "</"); elements >= 256 {
		t.Errorf("%d elements", elements)
	}
	if got := strings.Count(b.String(), "<net "); got != 32 {
		t.Errorf("%d NICs written, want the 32 EFA", got)
	}
	// More rails than fit are an error, not a file that NCCL refuses.
	port := n.PCI[n.GPUs[0].PCI].Parent
	for i := range 150 {
		n.NICs = append(n.NICs, NIC{Name: fmt.Sprintf("x%d", i), RDMA: "x", BDF: fmt.Sprintf("0001:%02x:00.0", i), PCI: len(n.PCI), Vendor: vendorMellanox})
		n.PCI = append(n.PCI, Device{ID: fmt.Sprintf("0001:%02x:00.0", i), Parent: port, Kind: KindDevice})
	}
	if err := NewEval(n).WriteNCCL(&b); err == nil {
		t.Error("200 NICs were written")
	}
}

// An empty link target is a link to something unknown, not an error.
func TestT2EmptyLinkTarget(t *testing.T) {
	e := evalOf(t, strings.ReplaceAll(strings.ReplaceAll(small, `target="0000:13:00.0" count="18" tclass="0x030200"`, `target="" count="18" tclass=""`),
		`target="0000:12:00.0" count="18" tclass="0x030200"`, `target="fffffff:ffff:ff" count="18" tclass="0x068000"`))
	for i := range 2 {
		if links, ok := e.NVLinks(i); !ok || links != 18 {
			t.Errorf("GPU%d has %d links (%v)", i, links, ok)
		}
	}
	if l, _ := e.GPULevel(0, 1); l != "NV18" {
		t.Errorf("level %s", l)
	}
}

// Settings that override what is discovered are named.
func TestT4StaleTopologyFile(t *testing.T) {
	h := h200()
	c := h.captured()
	h.files.files["/etc/nccl.conf"] = "# old\nNCCL_TOPO_FILE=/etc/old.xml\n"
	c.Env = settings(h.files)
	if list := findings(t, NewEval(assemble(h.files, c)), "override"); len(list) != 1 || !strings.Contains(list[0].What, "/etc/old.xml") {
		t.Errorf("found %v", list)
	}
}

// A container that sees one GPU: the peers are hidden, not unlinked.
func TestT5HiddenPeers(t *testing.T) {
	h := h200()
	h.nvml.GPUs = h.nvml.GPUs[:1]
	e := NewEval(h.node())
	if list := findings(t, e, "hidden"); len(list) != 1 || !strings.Contains(list[0].What, "7 of 8 GPUs are hidden by isolation") {
		t.Errorf("found %v", list)
	}
	if list := findings(t, e, "nvlink-count"); len(list) > 0 {
		t.Errorf("hidden GPUs are called broken: %v", list)
	}
	var matrix strings.Builder
	e.WriteMatrix(&matrix, Style{})
	if title := e.Title(Style{}); !strings.Contains(title, "(7 hidden)") || strings.Count(matrix.String(), "(hidden)") != 7 {
		t.Errorf("hidden GPUs are not said to be:\n%s\n%s", title, matrix.String())
	}
	if p, err := Place([]*Eval{e}, 1); err != nil || p.Ranks[0].GPU != 0 {
		t.Errorf("rank 0 is not on the visible GPU: %v %v", p, err)
	}
	if _, err := Place([]*Eval{e}, 2); err == nil {
		t.Error("two ranks were placed on one visible GPU")
	}
}

// Two GPUs and two NICs below one switch: each GPU its own.
func TestT7TieGivesEachItsOwn(t *testing.T) {
	for name, text := range map[string]string{"xml": small, "matrix": smallMatrix} {
		uses := evalOf(t, text).Uses()
		if len(uses[0].NICs) != 1 || len(uses[1].NICs) != 1 || uses[0].NICs[0] == uses[1].NICs[0] {
			t.Errorf("%s: %v and %v", name, uses[0].NICs, uses[1].NICs)
		}
	}
	e := evalOf(t, small)
	if a, b := e.NCCLUse(0), e.NCCLUse(1); len(a) != 1 || len(b) != 1 || a[0] == b[0] {
		t.Errorf("as NCCL: %v and %v", a, b)
	}
}

// Every rail is used, whatever the ties.
func TestT8AllRailsUsed(t *testing.T) {
	for _, f := range []string{"smi/gcp-a3-ultra-h200.txt", "nccl-xml/azure-ndv4.xml", "lstopo/aws-p5en.48xlarge.xml", "nccl-xml/amd-mi300x-vm.xml", "lstopo/aws-p5.48xlarge.xml", "lstopo/aws-p6-b200.48xlarge.xml"} {
		e := NewEval(load(t, f))
		used := map[int]int{}
		for _, u := range e.Uses() {
			for _, c := range u.NICs {
				used[c]++
			}
		}
		for i := range e.Node.NICs {
			if want := e.Role(i).Role == RoleRail; want != (used[i] == 1) {
				t.Errorf("%s: %s (%s) is used by %d GPUs", f, e.Node.NICs[i].Name, e.Role(i).Role, used[i])
			}
		}
	}
}

// Both vocabularies are there, with a legend.
func TestT10BothVocabularies(t *testing.T) {
	e := NewEval(load(t, "smi/gcp-a3-ultra-h200.txt"))
	l, _ := e.NICLevel(0, 2)
	p, _, _ := e.NICPath(0, 2)
	if l != LevelNODE || p != PathPHB {
		t.Errorf("%s / %s, want NODE / PHB", l, p)
	}
	var b strings.Builder
	e.WriteMatrix(&b, Style{})
	if !strings.Contains(b.String(), "NCCL has no NODE") {
		t.Error("the legend does not explain NODE")
	}
}

// Six NICs for eight GPUs: all are listed, all are used, every GPU has one.
func TestT11FewerNICsThanGPUs(t *testing.T) {
	h := h200()
	for _, i := range []int{2, 5} {
		delete(h.files.links, fmt.Sprintf("/sys/class/infiniband/mlx5_%d", 7-i))
		delete(h.files.links, fmt.Sprintf("/sys/bus/pci/devices/0000:%02x:00.0", 0x10*(i+1)+4))
	}
	e := NewEval(h.node())
	if len(e.Node.NICs) != 7 {
		t.Fatalf("%d NICs listed", len(e.Node.NICs))
	}
	used := map[int]bool{}
	for i, u := range e.Uses() {
		if len(u.NICs) == 0 {
			t.Errorf("GPU%d has no NIC", i)
		}
		for _, c := range u.NICs {
			used[c] = true
		}
		if (u.Relay >= 0) != (i == 2 || i == 5) {
			t.Errorf("GPU%d: relay %d", i, u.Relay)
		}
	}
	if len(used) != 6 {
		t.Errorf("%d rails used", len(used))
	}
}

// NCCL takes the fastest path first: a far 400G NIC beats a near 100G one. mkrun says so beside its
// own choice.
func TestT13BandwidthFirst(t *testing.T) {
	text := strings.Replace(small, `name="mlx5_0" dev="0" speed="400000"`, `name="mlx5_0" dev="0" speed="100000"`, 1)
	e := evalOf(t, text)
	for g := range 2 {
		if use := e.NCCLUse(g); len(use) != 1 || e.Node.NICs[use[0]].Name != "mlx5_1" {
			t.Errorf("GPU%d: NCCL would take %v", g, nameList(e.Node, use))
		}
	}
	if r := e.Role(0); r.Role != RoleFrontend {
		t.Errorf("the 100G NIC beside a 400G one is a %s", r.Role)
	}
}

// The bit-reversed ties of NCCL: four GPUs and four NICs take 0, 2, 1, 3.
func TestNCCLTies(t *testing.T) {
	for l, want := range map[int][]int{2: {0, 1}, 4: {0, 2, 1, 3}, 8: {0, 4, 2, 6, 1, 5, 3, 7}} {
		for i, w := range want {
			if got := reverseBits(i, l); got != w {
				t.Errorf("GPU %d of %d takes %d, want %d", i, l, got, w)
			}
		}
	}
	// 2 GPUs and 4 NICs: two each.
	e := NewEval(load(t, "lstopo/aws-p5en.48xlarge.xml"))
	if a, b := e.NCCLUse(0), e.NCCLUse(1); len(a) != 2 || len(b) != 2 || slices.Equal(a, b) {
		t.Errorf("GPU0 takes %v, GPU1 %v", a, b)
	}
}

// A Grace GPU reaches the NIC of its own socket over C2C.
func TestT14C2C(t *testing.T) {
	const text = `<system version="1"><cpu numaid="0" arch="arm64" vendor="ARM">
<pci busid="0009:01:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90" gdr="1"><c2c bw="44712" count="10"/></gpu></pci>
<pci busid="0002:01:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1"/></nic></pci></cpu>
<cpu numaid="1" arch="arm64" vendor="ARM"><pci busid="0012:01:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_1" dev="1" speed="400000" port="1" guid="0x2"/></nic></pci></cpu></system>`
	e := evalOf(t, text)
	near := e.Nearest(0)
	if near.Path != PathP2C || len(near.NICs) != 1 || e.Node.NICs[near.NICs[0]].Name != "mlx5_0" {
		t.Errorf("nearest: %s %v", near.Path, nameList(e.Node, near.NICs))
	}
}

// A virtual machine without switches, with device numbers in another order: a four-way tie, one NIC each.
func TestT16FlatVirtualMachine(t *testing.T) {
	e := NewEval(load(t, "nccl-xml/amd-mi300x-vm.xml"))
	if near := e.Nearest(0); near.Path != PathPHB || len(near.NICs) != 4 {
		t.Errorf("%s, %d NICs", near.Path, len(near.NICs))
	}
	if l, _ := e.GPULevel(0, 1); strings.HasPrefix(string(l), "NV") {
		t.Errorf("xGMI is called %s", l)
	}
}

// Unreadable link speeds are unknown, nothing more.
func TestT17NoLinkSpeed(t *testing.T) {
	h := h200()
	maps.DeleteFunc(h.files.files, func(p, _ string) bool {
		return strings.HasSuffix(p, "_link_speed") || strings.HasSuffix(p, "_link_width")
	})
	e := NewEval(h.node())
	if near := e.Nearest(0); near.Level != LevelPIX || !Healthy(e.Health()) {
		t.Errorf("%+v %v", near, e.Health())
	}
}

// Uneven rails are said.
func TestT19UnevenRails(t *testing.T) {
	a, h := NewEval(h200().node()), h200()
	delete(h.files.links, "/sys/class/infiniband/mlx5_0")
	delete(h.files.links, "/sys/bus/pci/devices/0000:84:00.0")
	b := h.node()
	b.Host = "other"
	problems := 0
	for _, r := range Rails([]*Eval{a, NewEval(b)}) {
		problems += len(r.Problems)
	}
	if problems == 0 {
		t.Error("8 rails against 7 are called alike")
	}
	if list := CheckNodes([]*Eval{a, NewEval(b)}, nil); Healthy(list) {
		t.Error("8 rails against 7 are called healthy")
	}
}

// Rails are matched by position: other names on the other node change nothing.
func TestT20RailsByPosition(t *testing.T) {
	a, h := NewEval(h200().node()), h200()
	for i := range 4 { // swap the names of two NICs, four times
		x, y := fmt.Sprintf("/sys/class/infiniband/mlx5_%d", i), fmt.Sprintf("/sys/class/infiniband/mlx5_%d", 7-i)
		h.files.links[x], h.files.links[y] = h.files.links[y], h.files.links[x]
		for _, n := range []string{x, y} {
			target := "/sys/" + strings.TrimPrefix(h.files.links[n], "../../")
			name := n[strings.LastIndex(n, "/")+1:]
			old := target[:strings.LastIndex(target, "/")+1]
			for p, s := range maps.Clone(h.files.files) {
				if strings.HasPrefix(p, target+"/") {
					h.files.files[old+name+strings.TrimPrefix(p, target)] = s
				}
			}
			h.files.links[n] = strings.TrimSuffix(h.files.links[n], target[strings.LastIndex(target, "/"):]) + "/" + name
		}
	}
	b := NewEval(h.node())
	b.Node.Host = "other"
	for _, r := range Rails([]*Eval{a, b}) {
		if len(r.Problems) > 0 || len(r.Members) != 2 || r.Members[0].NIC.BDF != r.Members[1].NIC.BDF {
			t.Errorf("rail %d: %+v", r.Rail, r)
		}
		if r.Members[0].NIC.Name == r.Members[1].NIC.Name {
			t.Errorf("rail %d: the names should differ in this test", r.Rail)
		}
	}
}

// NIC number and GPU number have nothing to do with each other: reversed names, more RDMA devices than GPUs.
func TestT22IndexIsNoIdentity(t *testing.T) {
	e := NewEval(h200().node())
	for i, u := range e.Uses() {
		if got := e.Node.NICs[u.NICs[0]].RDMA; got != fmt.Sprintf("mlx5_%d", 7-i) {
			t.Errorf("GPU%d uses %s", i, got)
		}
	}
	e = NewEval(load(t, "nccl-xml/oci-bm.gpu.h100.8.xml")) // 16 RDMA devices
	for i, u := range e.Uses() {
		if len(u.NICs) != 2 {
			t.Errorf("GPU%d uses %d of 16 devices", i, len(u.NICs))
		}
	}
}

// Unknown keys in mkrun's own format are errors.
func TestT23UnknownKeys(t *testing.T) {
	if _, err := Parse("f", []byte(`{"schema":"mkrun.topo/1","nodes":[{"gpus":[{"cuda:0":1}]}]}`)); err == nil || !strings.Contains(err.Error(), `unknown key "cuda:0"`) {
		t.Error(err)
	}
}

// NUMA -1, a missing node and a node that does not exist are unknown, no crash.
func TestT25InvalidNUMA(t *testing.T) {
	for _, numa := range []string{"-1\n", "77\n", "\n"} {
		h := h200()
		for p := range h.files.files {
			if strings.HasSuffix(p, "/numa_node") {
				h.files.files[p] = numa
			}
		}
		e := NewEval(h.node())
		if near := e.Nearest(0); near.Level != LevelPIX {
			t.Errorf("%q: %+v", numa, near)
		}
		p, err := Place([]*Eval{e}, 8)
		if err != nil || p.Ranks[0].CPUs != "" {
			t.Errorf("%q: bound to %q, %v", numa, p.Ranks[0].CPUs, err)
		}
	}
}

// Renamed NICs are NICs.
func TestT28RenamedNICs(t *testing.T) {
	h := h200()
	target := h.files.links["/sys/class/infiniband/mlx5_7"]
	delete(h.files.links, "/sys/class/infiniband/mlx5_7")
	h.files.links["/sys/class/infiniband/roce_rail0"] = target
	e := NewEval(h.node())
	if u := e.Uses()[0]; len(u.NICs) != 1 || e.Node.NICs[u.NICs[0]].RDMA != "roce_rail0" {
		t.Errorf("GPU0 uses %s", nameList(e.Node, u.NICs))
	}
}

// State completed with a bad status or bad health is not healthy.
func TestT29FabricStatus(t *testing.T) {
	h := h200()
	h.nvml.GPUs[3].Fabric = &Fabric{State: "completed", Status: "insufficient resources"}
	h.nvml.GPUs[5].Fabric = &Fabric{State: "completed", Status: "success", Cluster: "deadbeef00", Health: []string{"degraded bandwidth"}}
	e := NewEval(h.node())
	if list := findings(t, e, "fabric-status"); len(list) != 1 || list[0].Where != "GPU3" {
		t.Errorf("found %v", list)
	}
	if list := findings(t, e, "fabric-health"); len(list) != 1 || list[0].Where != "GPU5" {
		t.Errorf("found %v", list)
	}
}

// NUMA nodes without CPUs are no sockets: quad GH200 lists 36.
func TestT31MemoryOnlyNodes(t *testing.T) {
	m := newMemFiles()
	for i := range 36 {
		cpus := "\n"
		if i < 4 {
			cpus = fmt.Sprintf("%d-%d\n", 72*i, 72*i+71)
		}
		m.files[fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", i)] = cpus
	}
	d := documentOf(t, readSysfs(m))
	if len(d.Nodes[0].NUMA) != 36 || d.Nodes[0].CPUNodes != 4 {
		t.Errorf("%d NUMA nodes, %d with CPUs", len(d.Nodes[0].NUMA), d.Nodes[0].CPUNodes)
	}
	n := parseOne(t, "f", "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0,3-9,11-17\t\t2\n")
	if g := n.GPUs[0]; g.NUMASet != "0,3-9,11-17" || g.MemNode == nil || *g.MemNode != 2 {
		t.Errorf("%+v", g)
	}
}

// One of eight B200 is outside the fabric: it is named, and has no NVLink peers.
func TestT32OneGPUOutsideTheFabric(t *testing.T) {
	h := h200()
	for i := range h.nvml.GPUs {
		h.nvml.GPUs[i].GPU.Device, h.nvml.GPUs[i].Name, h.nvml.GPUs[i].SM = 0x2901, "NVIDIA B200", 100
	}
	h.nvml.GPUs[6].Fabric = &Fabric{State: "in-progress"}
	h.nvml.GPUs[6].Links = []NVLink{{Peer: PeerUnknown, Down: 18}}
	e := NewEval(h.node())
	for _, code := range []string{"nvlink-count", "fabric-state"} {
		if list := findings(t, e, code); len(list) != 1 || list[0].Where != "GPU6" {
			t.Errorf("%s: %v", code, list)
		}
	}
	if l, _ := e.GPULevel(0, 6); strings.HasPrefix(string(l), "NV") {
		t.Errorf("GPU0 to GPU6 is %s", l)
	}
	if l, _ := e.GPULevel(0, 1); l != "NV18" {
		t.Errorf("GPU0 to GPU1 is %s", l)
	}
}

// A GPU whose links are down is an NVLink island of its own: the islands say so before NCCL counts one
// node too many.
func TestT34DeadLinksMakeAnIsland(t *testing.T) {
	h := h200()
	h.nvml.GPUs[4].Links = []NVLink{{Peer: PeerUnknown, Down: 18}}
	e := NewEval(h.node())
	if islands := e.Islands(); len(islands) != 2 {
		t.Errorf("islands %v", islands)
	}
	good := NewEval(h200().node())
	good.Node.Host = "good"
	third := NewEval(h200().node())
	third.Node.Host = "third"
	list := CheckNodes([]*Eval{good, e, third}, nil)
	if !slices.ContainsFunc(list, func(f Finding) bool { return f.Code == "odd-node" && f.Node == "secret-host-17" }) {
		t.Errorf("the odd node is not named: %v", list)
	}
}

// Functions that manage NVSwitches are no rails; a fabric in progress points to NVLSM.
func TestT35NVSwitchBridges(t *testing.T) {
	h := h200()
	for p := range h.files.files {
		if strings.HasSuffix(p, "0000:14:00.0/vpd") {
			h.files.files[p] = "binary SW_MNG binary"
		}
	}
	h.nvml.GPUs[0].Fabric = &Fabric{State: "in-progress"}
	e := NewEval(h.node())
	bridges := 0
	for i := range e.Node.NICs {
		if e.Role(i).Role == RoleBridge {
			bridges++
		}
	}
	if bridges != 1 {
		t.Errorf("%d bridges", bridges)
	}
	if list := findings(t, e, "fabric-state"); len(list) != 1 || !strings.Contains(list[0].Do, "NVLSM") {
		t.Errorf("found %v", list)
	}
	// Without the right to read VPD, the thin link on a Blackwell board tells.
	p6 := NewEval(load(t, "lstopo/aws-p6-b200.48xlarge.xml"))
	for i, c := range p6.Node.NICs {
		if c.Vendor == vendorMellanox && p6.Role(i).Role != RoleBridge {
			t.Errorf("%s is a %s", c.Name, p6.Role(i).Role)
		}
	}
}

// gb200 is a tray where every NIC is at NODE: two 400G rails and a BlueField of 200G.
const gb200 = `<system version="1"><cpu numaid="0" arch="arm64" vendor="ARM">
<pci busid="0008:01:00.0" class="0x030200" vendor="0x10de" device="0x2941" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="100"/></pci>
<pci busid="0000:01:00.0" class="0x020700" vendor="0x15b3" device="0x1021" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1"/></nic></pci>
<pci busid="0002:01:00.0" class="0x020700" vendor="0x15b3" device="0x1021" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_1" dev="1" speed="400000" port="1" guid="0x2"/></nic></pci>
<pci busid="0006:01:00.0" class="0x020000" vendor="0x15b3" device="0xa2dc" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_2" dev="2" speed="200000" port="1" guid="0x3"/></nic></pci>
</cpu></system>`

// Where no NIC is near, rate and role decide.
func TestT37NothingNear(t *testing.T) {
	e := evalOf(t, gb200)
	if u := e.Uses()[0]; nameList(e.Node, u.NICs) != "mlx5_0, mlx5_1" {
		t.Errorf("GPU0 uses %s: %s", nameList(e.Node, u.NICs), u.Rule)
	}
}

// A BlueField is not a rail because it looks like a ConnectX.
func TestT38BlueFieldIsNoRail(t *testing.T) {
	e := evalOf(t, gb200)
	if r := e.Role(2); r.Role != RoleFrontend || !strings.Contains(r.Why, "200 Gb/s") {
		t.Errorf("the BlueField: %+v", r)
	}
}

// GPUDirect needs nvidia_peermem or dma-buf; without either, data takes a detour that is named.
func TestGPUDirectMissing(t *testing.T) {
	for name, c := range map[string]struct {
		peermem        bool
		kernel, driver string
		warns          bool
	}{
		"peermem":    {true, "5.4.0", "NVIDIA UNIX x86_64 Kernel Module", false},
		"dma-buf":    {false, "6.8.0-41-generic", "NVIDIA UNIX Open Kernel Module for x86_64", false},
		"old kernel": {false, "5.4.0-1", "NVIDIA UNIX Open Kernel Module for x86_64", true},
		"closed":     {false, "6.8.0", "NVIDIA UNIX x86_64 Kernel Module", true},
	} {
		h := h200()
		if !c.peermem {
			delete(h.files.files, "/sys/module/nvidia_peermem/version")
		}
		h.files.files["/proc/sys/kernel/osrelease"] = c.kernel + "\n"
		h.files.files["/proc/driver/nvidia/version"] = c.driver + "\n"
		e := NewEval(h.node())
		if list := findings(t, e, "gdr"); (len(list) == 1) != c.warns {
			t.Errorf("%s: %v", name, list)
		}
		if !Healthy(e.Health()) {
			t.Errorf("%s: a detour is called degraded", name)
		}
	}
}

// Without /sys/class/infiniband an InfiniBand card is there, but not usable: that is said.
func TestNoInfinibandClass(t *testing.T) {
	h := h200()
	maps.DeleteFunc(h.files.links, func(p, _ string) bool { return strings.HasPrefix(p, "/sys/class/infiniband/") })
	e := NewEval(h.node())
	if r := e.Role(0); r.Role != RoleBlocked {
		t.Errorf("role %+v", r)
	}
	if list := findings(t, e, "nic-blocked"); len(list) != 8 {
		t.Errorf("%d findings, want one for each of 8 cards", len(list))
	}
}

// Links to switches count.
func TestT40SwitchLinksCount(t *testing.T) {
	e := NewEval(h200().node())
	if links, ok := e.NVLinks(0); !ok || links != 18 {
		t.Errorf("%d links, %v", links, ok)
	}
}

// The user's environment is read and never written.
func TestT41EnvironmentUntouched(t *testing.T) {
	t.Setenv("HIP_VISIBLE_DEVICES", "2")
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	sys := t.TempDir()
	if err := os.Mkdir(filepath.Join(sys, "devices"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := os.Environ()
	if _, err := Live(t.Context(), LiveOptions{Roots: Roots{Sys: sys, Proc: t.TempDir()}, NoNVML: true}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(before, os.Environ()) {
		t.Error("the environment was changed")
	}
}

// Both sets are said: the CPUs that are near, and those that may be used.
func TestT43Cpuset(t *testing.T) {
	h := h200()
	h.files.files["/proc/self/status"] = "Cpus_allowed_list:\t0-3,56-57\n"
	p, err := Place([]*Eval{NewEval(h.node())}, 8)
	if err != nil {
		t.Fatal(err)
	}
	if r := p.Ranks[0]; r.CPUs != "0-3" || !strings.Contains(r.Bind, "ideal: 0-55,112-167") {
		t.Errorf("%+v", r)
	}
	h.files.files["/proc/self/status"] = "Cpus_allowed_list:\t0-3\n"
	p, err = Place([]*Eval{NewEval(h.node())}, 8)
	if err != nil {
		t.Fatal(err)
	}
	if r := p.Ranks[7]; r.CPUs != "" || !strings.Contains(r.Bind, "only 0-3 may be used") {
		t.Errorf("%+v", r)
	}
}

// A vendor's masks are compared with the system's lists; masks that overlap or lost a digit are named.
func TestT44WrongMasks(t *testing.T) {
	live := h200().node()
	vendor := parseOne(t, "vendor.xml", strings.ReplaceAll(small, "0000:", "0000:"))
	n := Merge(live, vendor, "vendor.xml")
	if !hasNote(n, "the file's affinity says 0-15") {
		t.Errorf("notes %v", n.Notes)
	}
	if n.NUMA[0].CPUs != "0-55,112-167" {
		t.Errorf("the file's mask won: %s", n.NUMA[0].CPUs)
	}
	if n := load(t, "nccl-xml/azure-ndv4-superbench.xml"); !hasNote(n, "overlap") {
		t.Errorf("four equal masks: %v", n.Notes)
	}
	if n := load(t, "nccl-xml/oci-a100-b4-flattened.xml"); !hasNote(n, "a digit was lost") {
		t.Errorf("a lost digit: %v", n.Notes)
	}
	if n := parseOne(t, "f", strings.Replace(small, `affinity="0000ffff"`, `affinity="0000,00000000,0000ffff"`, 1)); n.NUMA[0].CPUs != "0-15" {
		t.Errorf("a short first group alone is no fault: %+v", n.Notes)
	}
	// Swapped masks look right alone; against the right file they differ.
	right, swapped := NewEval(load(t, "nccl-xml/azure-ndv5.xml")), NewEval(load(t, "nccl-xml/azure-ndv5-superbench.xml"))
	diffs := Diff(right, swapped)
	if !slices.ContainsFunc(diffs, func(d Difference) bool { return d.Class == "affinity" }) {
		t.Errorf("swapped masks: %v", diffs)
	}
}

// CUDA_VISIBLE_DEVICES in all its forms.
func TestT46VisibleDevices(t *testing.T) {
	gpus := []GPU{{Index: 0, UUID: "GPU-aaaa1111-0000"}, {Index: 1, UUID: "GPU-aaaa2222-0000", MIG: []MIG{{UUID: "MIG-b1"}, {UUID: "MIG-b2"}}}, {Index: 2, UUID: "GPU-cccc3333-0000"}}
	for _, c := range []struct {
		value   string
		want    []int
		problem string
	}{
		{"0,1,2", []int{0, 1, 2}, ""}, {"2,0", []int{2, 0}, ""}, {" 1 , 2 ", []int{1, 2}, ""},
		{"", nil, ""}, {"-1", nil, ""}, {"1,-1,2", []int{1}, ""}, {"all", []int{0, 1, 2}, ""}, {"NoDevFiles", nil, ""},
		{"GPU-cccc3333-0000,0", []int{2, 0}, ""}, {"GPU-c", []int{2}, ""}, {"gpu-c", nil, "neither a number"},
		{"GPU-aaaa", nil, "fits several"}, {"GPU-dddd,0", nil, "no GPU here"},
		{"MIG-b1", []int{1}, ""}, {"MIG-b1,MIG-b2", []int{1, 1}, ""}, {"MIG-zz", nil, "no MIG instance"},
		{"MIG-GPU-aaaa2222-0000/3/0", []int{1}, ""},
		{"0,7,1", []int{0}, "no GPU's number"}, {"0,0", nil, "named twice"}, {"2,GPU-c", nil, "named twice"},
		{"1,GPU-cccc3333-0000,GPU-c", nil, "named twice"}, {"MIG-b1,MIG-b1", nil, "named twice"}, {"0,x", []int{0}, "neither a number"},
	} {
		got, problem := ResolveVisible(c.value, gpus)
		if !slices.Equal(got, c.want) || (c.problem == "") != (problem == "") || !strings.Contains(problem, c.problem) {
			t.Errorf("%q: %v, %q; want %v, %q", c.value, got, problem, c.want, c.problem)
		}
	}
	h := h200()
	c := h.captured()
	c.Env["CUDA_VISIBLE_DEVICES"] = "GPU-3fa4b2c1-0000-4000-8000-00000000aa05,2"
	n := assemble(h.files, c)
	for i, want := range []int{-1, -1, 1, -1, -1, 0, -1, -1} {
		if n.GPUs[i].CUDA != want || n.GPUs[i].Hidden != (want < 0) {
			t.Errorf("GPU%d: CUDA %d, hidden %v", i, n.GPUs[i].CUDA, n.GPUs[i].Hidden)
		}
	}
}

// A driver that prints SYS inside a NUMA node is caught by the NUMA column.
func TestT47SYSInsideASocket(t *testing.T) {
	n := parseOne(t, "f", "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-31\t0\nGPU1\tSYS\t X \t0-31\t0\n")
	if !hasNote(n, "GPU0-GPU1: SYS in the matrix, but the same NUMA node") {
		t.Errorf("notes %v", n.Notes)
	}
}

// NV# in the NIC columns of a row says nothing.
func TestT49LinksInNICCells(t *testing.T) {
	e := evalOf(t, strings.ReplaceAll(smallMatrix, "NV18\tPIX\tPIX", "NV18\tNV18\tNV18"))
	if l, _ := e.NICLevel(0, 0); strings.HasPrefix(string(l), "NV") {
		t.Errorf("GPU0 to NIC0 is %s", l)
	}
	if near := e.Nearest(1); near.Level != LevelPIX {
		t.Errorf("nearest of GPU1: %+v", near)
	}
}

// Nodes in other subnets are not on one rail.
func TestT50Subnets(t *testing.T) {
	a, h := NewEval(h200().node()), h200()
	for p, s := range h.files.files {
		if strings.HasSuffix(p, "gids/0") {
			h.files.files[p] = strings.Replace(s, "fe80:0000:0000:0000", "fec0:0000:0000:0007", 1)
		}
	}
	b := h.node()
	b.Host = "other"
	for _, r := range Rails([]*Eval{a, NewEval(b)}) {
		if !slices.ContainsFunc(r.Problems, func(p string) bool { return strings.HasPrefix(p, "subnet differs") }) {
			t.Errorf("rail %d: %v", r.Rail, r.Problems)
		}
	}
}
