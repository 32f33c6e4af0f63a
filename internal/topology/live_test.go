package topology

import (
	"bytes"
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
