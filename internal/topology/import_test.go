package topology

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// small is a machine of two GPUs and two NICs below one switch.
const small = `<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x2335" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:13:00.0" count="18" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x030200" vendor="0x10de" device="0x2335" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:12:00.0" count="18" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:14:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
      <pci busid="0000:15:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_1" dev="1" speed="400000" port="1" guid="0x2" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
</system>
`

const smallMatrix = "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n" +
	"GPU0\t X \tNV18\tPIX\tPIX\t0-15\t0\t\tN/A\nGPU1\tNV18\t X \tPIX\tPIX\t0-15\t0\t\tN/A\n" +
	"NIC0\tPIX\tPIX\t X \tPIX\nNIC1\tPIX\tPIX\tPIX\t X \n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"

const smallHwloc = `<?xml version="1.0"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000ffff" nodeset="0x00000001" gp_index="1">
    <object type="NUMANode" os_index="0" cpuset="0x0000ffff" nodeset="0x00000001" gp_index="2"/>
    <object type="Bridge" gp_index="3" bridge_type="0-1" depth="0" bridge_pci="0000:[00-15]">
      <object type="Bridge" gp_index="4" bridge_type="1-1" depth="1" bridge_pci="0000:[10-15]" pci_busid="0000:00:01.0" pci_type="0604 [8086:352a] [0000:0000] 00" pci_link_speed="63.0">
        <object type="Bridge" gp_index="8" bridge_type="1-1" depth="2" bridge_pci="0000:[11-15]" pci_busid="0000:10:00.0" pci_type="0604 [1000:c030] [1000:0072] 00" pci_link_speed="63.0">
          <object type="Bridge" gp_index="9" bridge_type="1-1" depth="3" bridge_pci="0000:[12-12]" pci_busid="0000:11:00.0" pci_type="0604 [1000:c030] [1000:0072] 00" pci_link_speed="63.0">
            <object type="PCIDev" gp_index="5" pci_busid="0000:12:00.0" pci_type="0302 [10de:2335] [10de:18be] a1" pci_link_speed="63.0"/>
          </object>
          <object type="Bridge" gp_index="10" bridge_type="1-1" depth="3" bridge_pci="0000:[14-14]" pci_busid="0000:11:01.0" pci_type="0604 [1000:c030] [1000:0072] 00" pci_link_speed="63.0">
            <object type="PCIDev" gp_index="6" pci_busid="0000:14:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="63.0">
              <object type="OSDev" gp_index="7" name="mlx5_0" osdev_type="3"/>
            </object>
          </object>
        </object>
      </object>
    </object>
  </object>
</topology>
`

func parseOne(t testing.TB, name, text string) *Node {
	t.Helper()
	nodes, err := Parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return nodes[0]
}

func TestImportSmall(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		gpus int
		nic  string
	}{
		"nccl": {small, 2, "mlx5_0"}, "matrix": {smallMatrix, 2, "NIC0"}, "hwloc": {smallHwloc, 1, "mlx5_0"},
	} {
		n := parseOne(t, name, c.text)
		if len(n.GPUs) != c.gpus || len(n.NICs) == 0 || n.NICs[0].Name != c.nic {
			t.Errorf("%s: %d GPUs, NICs %+v", name, len(n.GPUs), n.NICs)
			continue
		}
		near := NewEval(n).Nearest(0)
		if near.Level != LevelPIX || near.Path != PathPIX {
			t.Errorf("%s: nearest at %s/%s, want PIX/PIX", name, near.Level, near.Path)
		}
		if g := n.GPUs[0]; g.NUMA == nil || *g.NUMA != 0 || g.CPUs != "0-15" {
			t.Errorf("%s: NUMA node %v, CPUs %q", name, g.NUMA, g.CPUs)
		}
	}
}

// Errors name the file, the line and what is wrong with it.
func TestImportErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":          {"", "f: the file is empty"},
		"prose":          {"hello\nworld\n", "f:1: neither NCCL XML"},
		"cut":            {small[:200], "the XML is broken"},
		"graph":          {"<graphs version=\"1\"/>", "f:1: the root element is <graphs>: a NCCL graph"},
		"unknown root":   {"\n<config/>", "f:2: the root element is <config>"},
		"foreign system": {"<system version=\"2\">\n<group name=\"x\"/></system>", "f:2: <group> below <system>"},
		"no cpu":         {"<system version=\"1\"></system>", "f:1: <system> without <cpu>"},
		"numaid":         {"<system>\n\n<cpu numaid=\"zero\"/></system>", `f:3: numaid="zero"`},
		"no busid":       {"<system><cpu numaid=\"0\">\n<pci class=\"0x060400\"/></cpu></system>", "f:2: <pci> without busid"},
		"busid":          {"<system><cpu numaid=\"0\">\n<pci busid=\"bus 3\"/></cpu></system>", `f:2: busid of <pci>: "bus 3" is not a PCI address`},
		"link count":     {strings.Replace(small, `count="18"`, `count="1800"`, 1), `f:5: count="1800" of <nvlink>`},
		"two roots":      {small + "<system/>", "a second root element"},
		"no objects":     {"<topology/>", "f:1: <topology> without <object>"},
		"pci_busid":      {strings.Replace(smallHwloc, "0000:12:00.0", "oops", 1), `f:10: pci_busid of <object type="PCIDev">`},
		"short row":      {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \n", "f:2: the row of GPU0 has 1 cells, the head line names 2 columns"},
		"bad cell":       {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tFAR\t0-3\n", `f:2: "FAR" (row GPU0, column GPU1)`},
		"no head":        {"GPU0\t X \tNV4\n", "f:1: a row of GPU0 before the head line"},
		"json":           {"{\n\"schema\": 3}", "f:2: schema is a number"},
		"json cut":       {"{\n\"schema\":", "f:2: the JSON ends in the middle"},
		"json key":       {"{\"schema\": \"mkrun.topo/1\",\n\"cuda:\": 1}", `f:2: unknown key "cuda:"`},
		"json schema":    {`{"schema": "other/1", "nodes": []}`, `schema "other/1"`},
		"json parent":    {`{"schema": "mkrun.topo/1", "nodes": [{"pci": [{"id": "a", "parent": 0}]}]}`, "parent 0 is not an earlier entry"},
		"gzip":           {"\x1f\x8bnot gzip", "f: the gzip data is broken"},
	} {
		_, err := Parse("f", []byte(c.text))
		var e *ImportError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.xml")); err == nil || !strings.Contains(err.Error(), "none.xml: no such file") {
		t.Errorf("a missing file gives %v", err)
	}
}

func TestParseBDF(t *testing.T) {
	for in, want := range map[string]string{
		"0a:00": "0000:0a:00.0", "0A:00.1": "0000:0a:00.1", "0000:0a:00.0": "0000:0a:00.0", "00000000:0A:00.0": "0000:0a:00.0",
		"10000:00:04.0": "10000:00:04.0", "000a:01:00.0": "000a:01:00.0",
	} {
		if got, err := ParseBDF(in); err != nil || got != want {
			t.Errorf("ParseBDF(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "eth0", "0000:0a", "0000:gg:00.0", "0000:0a:00.0.0", "0000:0a:00:0"} {
		if got, err := ParseBDF(in); err == nil {
			t.Errorf("ParseBDF(%q) = %q, want an error", in, got)
		}
	}
}

func TestCPUSet(t *testing.T) {
	for _, list := range []string{"", "0", "0-15", "0-55,112-167", "1,3,5"} {
		set, err := ParseCPUList(list)
		if err != nil || set.String() != list {
			t.Errorf("list %q became %q, %v", list, set, err)
		}
		back, short, err := ParseCPUMask(set.Mask(0))
		if err != nil || short || back.String() != list {
			t.Errorf("mask of %q became %q, %v, %v", list, back, short, err)
		}
	}
	if _, short, err := ParseCPUMask("00000000,fff0000"); err != nil || !short {
		t.Errorf("a mask with a lost digit: short %v, %v", short, err)
	}
	for _, bad := range []string{"a", "3-1", "-1", "0-9999999"} {
		if _, err := ParseCPUList(bad); err == nil {
			t.Errorf("list %q is taken", bad)
		}
	}
}

// seeds adds the small inputs and, where it is there, the corpus.
func seeds(f *testing.F, folder string, more ...string) {
	for _, s := range more {
		f.Add([]byte(s))
	}
	files, err := filepath.Glob(filepath.Join(corpusDir, folder, "*"))
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		if data, err := os.ReadFile(name); err == nil && len(data) < 20000 {
			f.Add(data)
		}
	}
}

// check that what was read can be answered about, drawn and written, and that a refusal is a clear one.
func fuzzed(t *testing.T, nodes []*Node, err error) {
	if err != nil {
		var e *ImportError
		if !errors.As(err, &e) || e.What == "" || e.File != "f" {
			t.Fatalf("not an ImportError with a file and a reason: %v", err)
		}
		return
	}
	for _, n := range nodes {
		if len(n.GPUs) > 32 || len(n.NICs) > 64 {
			return // answers are quadratic
		}
	}
	doc, err := NewDocument(nodes, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := doc.Write(&b); err != nil {
		t.Fatal(err)
	}
	var evals []*Eval
	for _, n := range nodes {
		evals = append(evals, NewEval(n))
	}
	CheckNodes(evals, nil)
	WriteNodes(&b, evals, Style{}, (*Eval).WriteTree)
	WriteNodes(&b, evals, Style{NCCL: true}, (*Eval).WriteMatrix)
	if err := WriteHTML(&b, evals, doc); err != nil {
		t.Fatal(err)
	}
	if err := WriteDOT(&b, evals); err != nil {
		t.Fatal(err)
	}
	for _, e := range evals {
		var out bytes.Buffer
		if e.WriteNCCL(&out) == nil { // it refuses what NCCL would refuse
			if _, err := Parse("f", out.Bytes()); err != nil {
				t.Fatalf("cannot read what was written: %v\n%s", err, out.String())
			}
		}
	}
}

func FuzzNCCL(f *testing.F) {
	seeds(f, "nccl-xml", small)
	f.Fuzz(func(t *testing.T, data []byte) {
		nodes, err := parseXMLTopology("f", data)
		fuzzed(t, nodes, err)
	})
}

func FuzzHwloc(f *testing.F) {
	seeds(f, "lstopo", smallHwloc)
	f.Fuzz(func(t *testing.T, data []byte) {
		nodes, err := parseXMLTopology("f", data)
		fuzzed(t, nodes, err)
	})
}

func FuzzMatrix(f *testing.F) {
	seeds(f, "smi", smallMatrix)
	f.Fuzz(func(t *testing.T, data []byte) {
		nodes, err := parseSMI("f", data)
		fuzzed(t, nodes, err)
	})
}

func FuzzJSON(f *testing.F) {
	for _, text := range []string{small, smallMatrix, smallHwloc} {
		nodes, err := Parse("f", []byte(text))
		if err != nil {
			f.Fatal(err)
		}
		doc, err := NewDocument(nodes, 0)
		if err != nil {
			f.Fatal(err)
		}
		var b strings.Builder
		if err := doc.Write(&b); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(b.String()))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		nodes, err := parseJSON("f", data, new(pciLists))
		fuzzed(t, nodes, err)
	})
}

func FuzzSnapshot(f *testing.F) {
	h := h200()
	h.nvml.GPUs = h.nvml.GPUs[:1]
	one := func(p, _ string) bool { return strings.Contains(p, "0000:") && !strings.Contains(p, "0000:1") }
	maps.DeleteFunc(h.files.files, one)
	maps.DeleteFunc(h.files.links, one)
	c, m := pseudonymise(h.captured(), h.files)
	var b bytes.Buffer
	if err := writeSnapshot(&b, c, m); err != nil {
		f.Fatal(err)
	}
	zip, err := gzip.NewReader(&b)
	if err != nil {
		f.Fatal(err)
	}
	archive, err := io.ReadAll(zip)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(archive)
	f.Fuzz(func(t *testing.T, archive []byte) {
		nodes, err := parseSnapshot("f", archive) // unpacked: the fuzzer cannot guess checksums
		fuzzed(t, nodes, err)
	})
}

// gzipped is a text as gzip -c makes it.
func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCompressedInputs(t *testing.T) {
	for name, text := range map[string]string{"NCCL": small, "hwloc": smallHwloc, "matrix": smallMatrix} {
		plain, err := Parse("f", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := Parse("f.gz", gzipped(t, text))
		if err != nil || len(nodes) != 1 || len(nodes[0].GPUs) != len(plain[0].GPUs) || nodes[0].Origin.File != "f.gz" {
			t.Errorf("%s: %v, %v", name, nodes, err)
		}
	}
	for text, want := range map[string]string{
		"":                              "f.gz: the file is empty",
		string(gzipped(t, small)):       "f.gz: compressed twice",
		strings.Repeat(" ", maxInput+1): "f.gz: larger than 128 MiB when unpacked",
		"<graphs version=\"1\"/>":       "f.gz:1: the root element is <graphs>",
	} {
		if _, err := Parse("f.gz", gzipped(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// A node has a size that is possible: distances grow with the square of the number of GPUs.
func TestTooManyDevices(t *testing.T) {
	head, row := "", ""
	for i := range maxGPUs + 1 {
		head += fmt.Sprintf("\tGPU%d", i)
		row += "\tSYS"
	}
	var b strings.Builder
	b.WriteString(head + "\n")
	for i := range maxGPUs + 1 {
		fmt.Fprintf(&b, "GPU%d%s\n", i, row)
	}
	if _, err := Parse("wide.txt", []byte(b.String())); err == nil || !strings.Contains(err.Error(), "wide.txt: 257 GPUs in one node (node0): at most 256 are possible") {
		t.Errorf("%v", err)
	}
}

// PCI lists are decoded apart, and shared between nodes; errors in them still have the document's line.
func TestErrorsInPCIListsHaveTheirLine(t *testing.T) {
	d, err := NewDocument([]*Node{h200().node(), h200().node()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := d.Write(&b); err != nil {
		t.Fatal(err)
	}
	for old, bad := range map[string]string{`"subsystem_vendor"`: `"subsystem_vendr"`, `"kind": "bridge"`: `"kind": 7`} {
		text := strings.Replace(b.String(), old, bad, 1)
		line := 1 + strings.Count(text[:strings.Index(text, bad)], "\n")
		_, err := Parse("doc.json", []byte(text))
		if want := fmt.Sprintf("doc.json:%d: ", line); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v; want it to begin with %q", err, want)
		}
	}
}
