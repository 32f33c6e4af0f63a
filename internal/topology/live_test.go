package topology

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLiveH200(t *testing.T) {
	e := NewEval(h200().node())
	n := e.Node
	if len(n.GPUs) != 8 || len(n.NICs) != 9 || n.Host != "secret-host-17" {
		t.Fatalf("%d GPUs, %d NICs, host %q", len(n.GPUs), len(n.NICs), n.Host)
	}
	for i, u := range e.Uses() {
		if len(u.NICs) != 1 || u.Near.Level != LevelPIX || n.NICs[u.NICs[0]].RDMA != fmt.Sprintf("mlx5_%d", 7-i) {
			t.Errorf("GPU%d uses %v at %s (%s)", i, nameList(n, u.NICs), u.Near.Level, u.Rule)
		}
		if l, _ := e.GPULevel(i, (i+1)%8); l != "NV18" {
			t.Errorf("GPU%d to the next is %s", i, l)
		}
		if g := n.GPUs[i]; *g.NUMA != i/4 || g.CUDA != i || g.Hidden {
			t.Errorf("GPU%d: NUMA %d, CUDA %d, hidden %v", i, *g.NUMA, g.CUDA, g.Hidden)
		}
	}
	if r := e.Role(8); r.Role != RoleFrontend {
		t.Errorf("the 25 Gb/s Ethernet NIC is a %s", r.Role)
	}
	if list := CheckNodes([]*Eval{e}, nil); !Healthy(list) {
		t.Errorf("healthy, but: %v", list)
	}
	if x, err := ParseExpectation("h200-8"); err != nil || !Healthy(x.Check(e)) {
		t.Errorf("is no h200-8: %v", err)
	}
}

// A snapshot tells what the machine tells, and shows nothing that identifies it.
func TestSnapshot(t *testing.T) {
	h := h200()
	secrets := []string{"secret-host-17", "3fa4b2c1", "16543210987", "a088:c203", "MT1234X5678", "deadbeef"}
	rec := newRecorder(h.files)
	c := h.captured()
	before := assemble(rec, c)
	kept, m := pseudonymise(c, rec.kept)
	var b bytes.Buffer
	if err := writeSnapshot(&b, kept, m); err != nil {
		t.Fatal(err)
	}
	nodes, err := Parse("snap.tar.gz", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	a, z := NewEval(before), NewEval(nodes[0])
	if d := cmp.Diff(a.canonical(), z.canonical()); d != "" {
		t.Errorf("the snapshot tells something else (-machine +snapshot):\n%s", d)
	}
	for i := range before.GPUs {
		if d := cmp.Diff(a.Uses()[i], z.Uses()[i]); d != "" {
			t.Error(d)
		}
	}
	var doc strings.Builder
	if err := documentOf(t, nodes...).Write(&doc); err != nil {
		t.Fatal(err)
	}
	for name, s := range m.files {
		doc.WriteString(name + "\n" + s)
	}
	for _, secret := range secrets {
		if strings.Contains(doc.String(), secret) {
			t.Errorf("%q is in the snapshot", secret)
		}
	}
	// Functions of one card stay neighbours, and equal stays equal.
	if g := nodes[0].NICs[0].GUID; !regexp.MustCompile(`^0200:00ff:0000:01[0-9a-f]{2}$`).MatchString(g) {
		t.Errorf("GUID %q", g)
	}
}

// A real file system is read as the one in memory is: laid out below another root (T26).
func TestT26SysfsRoot(t *testing.T) {
	h := h200()
	dir := t.TempDir()
	for name, s := range h.files.files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range h.files.links {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, p); err != nil {
			t.Fatal(err)
		}
	}
	n, err := Live(t.Context(), LiveOptions{Roots: Roots{Sys: dir + "/sys", Proc: dir + "/proc"}, NoNVML: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(n.GPUs) != 8 || len(n.NICs) != 9 || n.Host != "secret-host-17" {
		t.Errorf("%d GPUs, %d NICs, host %q", len(n.GPUs), len(n.NICs), n.Host)
	}
	e := NewEval(n)
	if near := e.Nearest(3); near.Level != LevelPIX || len(near.NICs) != 1 {
		t.Errorf("GPU3's nearest: %+v", near)
	}
	var b bytes.Buffer
	snap, err := Snapshot(t.Context(), &b, LiveOptions{Roots: Roots{Sys: dir + "/sys", Proc: dir + "/proc"}, NoNVML: true})
	if err != nil || len(snap.GPUs) != 8 {
		t.Errorf("snapshot: %v", err)
	}
	nodes, err := Parse("s", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(e.canonical(), NewEval(nodes[0]).canonical()); d != "" {
		t.Error(d)
	}
}

// tsv loads a tree of the corpus: path, tab, content or "-> target".
func tsv(t *testing.T, name string) *memFiles {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(corpus(t), "sysfs", name))
	if err != nil {
		t.Fatal(err)
	}
	m := newMemFiles()
	for line := range strings.Lines(string(data)) {
		p, s, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if target, ok := strings.CutPrefix(s, "-> "); ok {
			m.links[p] = target
		} else {
			m.files[p] = strings.ReplaceAll(s, `\n`, "\n")
		}
	}
	return m
}

func TestCorpusSysfs(t *testing.T) {
	t.Run("h100-8ib-1bond", func(t *testing.T) {
		e := NewEval(readSysfs(tsv(t, "h100-8ib-1bond.tsv")))
		rails := 0
		for i, c := range e.Node.NICs {
			switch r := e.Role(i); {
			case strings.Contains(c.RDMA, "bond"):
				if r.Role == RoleRail {
					t.Errorf("%s is a rail in an InfiniBand fleet", c.RDMA)
				}
			case r.Role == RoleRail && c.rate() == 400000:
				rails++
			}
		}
		if rails != 8 {
			t.Errorf("%d rails, want 8", rails)
		}
	})
	t.Run("procfs-hfi1-mlx4-mlx5", func(t *testing.T) {
		n := readSysfs(tsv(t, "procfs-hfi1-mlx4-mlx5.tsv"))
		names := map[string]int{}
		for _, c := range n.NICs {
			names[c.RDMA] = len(c.Ports)
		}
		if names["mlx4_0"] != 2 || names["hfi1_0"] != 1 {
			t.Errorf("ports by device: %v", names)
		}
	})
	t.Run("power9-gpu-numa-nodes", func(t *testing.T) {
		n := readSysfs(tsv(t, "power9-gpu-numa-nodes.tsv"))
		n.settle()
		cpus := 0
		for _, m := range n.NUMA {
			if m.HasCPU {
				cpus++
			}
		}
		if len(n.NUMA) != 8 || cpus != 2 {
			t.Errorf("%d NUMA nodes, %d with CPUs; want 8 and 2", len(n.NUMA), cpus)
		}
		want := map[string][2]int{"0004:05:00.0": {0, 255}, "0004:06:00.0": {0, 254}, "0006:00:00.0": {0, 253}, "0007:00:00.0": {8, 252}, "0035:04:00.0": {8, 251}, "0035:05:00.0": {8, 250}}
		for _, g := range n.GPUs {
			w := want[g.BDF]
			if g.NUMA == nil || g.MemNode == nil || *g.NUMA != w[0] || *g.MemNode != w[1] {
				t.Errorf("%s: NUMA %v, memory node %v; want %v", g.BDF, g.NUMA, g.MemNode, w)
			}
			delete(want, g.BDF)
		}
		if len(want) > 0 {
			t.Errorf("GPUs not found: %v", want)
		}
	})
	t.Run("pci-domain-32bit", func(t *testing.T) {
		m := tsv(t, "pci-domain-32bit.tsv")
		r := &sysReader{f: m, at: map[string]int{}, dirs: map[string]string{}, n: &Node{Tree: TreeFull}}
		r.devices()
		if r.dirs["10000:00:04.0"] == "" {
			t.Errorf("the device of domain 10000 was not found among %d", len(r.dirs))
		}
	})
	t.Run("xeon-4numa-qib-pcilocality", func(t *testing.T) {
		n := readSysfs(tsv(t, "xeon-4numa-qib-pcilocality.tsv"))
		n.settle()
		at := slices.IndexFunc(n.NICs, func(c NIC) bool { return c.RDMA == "qib0" })
		if at < 0 {
			t.Fatal("qib0 was not found")
		}
		c := n.NICs[at]
		if c.BDF != "0000:43:00.0" || c.NUMA == nil || *c.NUMA != 2 || c.rate() != 40000 {
			t.Errorf("qib0 at %s, NUMA node %v, %d Mb/s; want 0000:43:00.0, 2, 40000", c.BDF, c.NUMA, c.rate())
		}
	})
}

// A vendor's topology file travels in the snapshot, and is laid under the devices again where the snapshot is read.
func TestSnapshotKeepsTheVendorsTopology(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret-folder.xml")
	text := `<system version="1">
  <cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:f0:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:13:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0000:84:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
    </pci>
  </cpu>
</system>`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h := h200()
	rec := newRecorder(h.files)
	c := h.captured()
	var err error
	if c.Vendor, err = readVendor(file); err != nil {
		t.Fatal(err)
	}
	before := NewEval(assemble(rec, c))
	kept, m := pseudonymise(c, rec.kept)
	var b bytes.Buffer
	if err := writeSnapshot(&b, kept, m); err != nil {
		t.Fatal(err)
	}
	nodes, err := Parse("snap.tar.gz", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	after := NewEval(nodes[0])
	for name, e := range map[string]*Eval{"machine": before, "snapshot": after} {
		gpu := slices.IndexFunc(e.Node.GPUs, func(g GPU) bool { return g.BDF == "0000:13:00.0" })
		near := e.Nearest(gpu)
		if len(near.NICs) != 1 || e.Node.NICs[near.NICs[0]].BDF != "0000:84:00.0" || near.Level != LevelPIX {
			t.Errorf("%s: nearest to %s are %+v: not as the vendor's file says", name, e.Node.GPUs[gpu].BDF, near)
		}
	}
	var doc strings.Builder
	if err := documentOf(t, nodes...).Write(&doc); err != nil {
		t.Fatal(err)
	}
	meta, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	if dir := filepath.Dir(file); strings.Contains(doc.String(), dir) || strings.Contains(string(meta), dir) {
		t.Error("the folder of the vendor's file is in the snapshot")
	}
}

func TestXids(t *testing.T) {
	log := `<4>[   12.1] NVRM: loading NVIDIA UNIX Open Kernel Module
<3>[ 1234.5] NVRM: Xid (PCI:0000:13:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
<3>[ 1235.5] NVRM: Xid (PCI:0000:23:00): 13, pid=77, name=python, Graphics SM Warp Exception
<3>[ 1236.5] NVRM: Xid (PCI:0000:23:00): 13, pid=77, name=python, Graphics SM Warp Exception
<3>[ 1237.5] NVRM: Xid (PCI:00000000:33:00.0): 74, pid=9, NVLink: fatal error detected on link 4
<3>[ 1238.5] NVRM: Xid (PCI:0000:ee:00): 79, pid=1, GPU has fallen off the bus.
<3>[ 1239.5] NVRM: Xid (PCI:zz): 79, no address
`
	h := h200()
	c := h.captured()
	c.Xids = countXids(log)
	n := assemble(h.files, c)
	if g := n.GPUs[1]; g.BDF != "0000:23:00.0" || g.Xids[13] != 2 || len(g.Xids) != 1 {
		t.Errorf("GPU1 (%s): %v", g.BDF, g.Xids)
	}
	if g := n.GPUs[7]; g.Xids == nil || len(g.Xids) != 0 {
		t.Errorf("a GPU without errors has %v, want none, but known", g.Xids)
	}
	var found []string
	for _, f := range NewEval(n).Health() {
		if f.Code == "gpu-xid" {
			found = append(found, f.Where+": "+f.What)
		}
	}
	if want := []string{"GPU0: the kernel's log has Xid 79 (fell off the bus)", "GPU2: the kernel's log has Xid 74 (NVLink error)"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	if text := fmt.Sprint(n.Notes); !strings.Contains(text, "0000:ee:00.0 the kernel's log has Xid 79") {
		t.Errorf("notes %s", text)
	}
	c.Xids = nil
	if g := assemble(h.files, c).GPUs[0]; g.Xids != nil {
		t.Errorf("where the log cannot be read a GPU has %v", g.Xids)
	}
}

func TestLibfabric(t *testing.T) {
	text := "psm2:\n    version: 117.0\nofi_rxm:\n    version: 117.0\nefa:\n\tversion: 200.10\n\nofi_hook_perf:\n    version: 117.0\ntcp:\n"
	want := []Provider{{"psm2", "117.0"}, {"ofi_rxm", "117.0"}, {"efa", "200.10"}, {"tcp", ""}}
	if got := parseProviders(text); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := parseProviders("usage: fi_info\n"); got == nil || len(got) != 0 {
		t.Errorf("%v", got)
	}
	h := h200()
	h.files.files["/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0/vendor"] = "0x1d0f\n"
	h.files.files["/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0/device"] = "0xefa2\n"
	c := h.captured()
	for name, tt := range map[string]struct {
		providers []Provider
		warned    bool
	}{"unknown": {nil, false}, "without": {want[:2], true}, "with": {want, false}} {
		c.Libfabric = tt.providers
		list := NewEval(assemble(h.files, c)).Health()
		if got := slices.ContainsFunc(list, func(f Finding) bool { return f.Code == "libfabric" }); got != tt.warned {
			t.Errorf("%s: warned %v", name, got)
		}
	}
}
