package topology

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// Values that mean nothing are told with file and line, and left out.
func TestOddValuesAreTold(t *testing.T) {
	swap := func(text, old, new string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not there", old)
		}
		return strings.Replace(text, old, new, 1)
	}
	for _, c := range []struct{ text, where, want string }{
		{swap(small, `link_width="16"`, `link_width="NaN"`), "f:3", `link_width="NaN" of <pci> left out: it is no number from 0 to 32`},
		{swap(small, `link_width="16"`, `link_width="-16"`), "f:3", `link_width="-16"`},
		{swap(small, `link_width="16"`, `link_width="999999999"`), "f:3", `link_width="999999999"`},
		{swap(small, `link_speed="32.0 GT/s PCIe"`, `link_speed="banana"`), "f:3", `link_speed="banana" of <pci> left out: it is no speed`},
		{swap(small, `link_speed="32.0 GT/s PCIe"`, `link_speed="NaN GT/s"`), "f:3", `link_speed="NaN GT/s"`},
		{swap(small, `link_speed="32.0 GT/s PCIe"`, `link_speed="-5 GT/s"`), "f:3", `link_speed="-5 GT/s"`},
		{swap(small, `class="0x060400"`, `class="switch"`), "f:3", `class="switch"`},
		{swap(small, `vendor="0x10de"`, `vendor="nvidia"`), "f:4", `vendor="nvidia"`},
		{swap(small, `sm="90"`, `sm="99999999999999999999"`), "f:5", `sm="99999999999999999999" of <gpu>`},
		{swap(small, `dev="0" sm`, `dev="-5" sm`), "f:5", `dev="-5" of <gpu>`},
		{swap(small, `tclass="0x030200"`, `tclass="gpu"`), "f:5", `tclass="gpu"`},
		{swap(small, `tclass="0x030200"/>`, `tclass="0x030200"/><c2c bw="NaN" count="1"/>`), "f:5", `bw="NaN" of <c2c>`},
		{swap(small, `speed="400000"`, `speed="-1"`), "f:11", `speed="-1" of <net>`},
		{swap(small, `port="1"`, `port="x"`), "f:11", `port="x" of <net>`},
		{swap(small, `modelid="143"`, `modelid="xeon"`), "f:2", `modelid="xeon" of <cpu>`},
		{swap(smallHwloc, `version="2.0"`, `version="9.0"`), "f:3", `version="9.0" of <topology> is not known`},
		{swap(smallHwloc, `version="2.0"`, `version="banana"`), "f:3", `version="banana"`},
		{swap(smallHwloc, `pci_link_speed="63.0"`, `pci_link_speed="nan"`), "f:7", `pci_link_speed="nan" of <object>`},
		{swap(smallHwloc, `pci_link_speed="63.0"`, `pci_link_speed="-inf"`), "f:7", `pci_link_speed="-inf"`},
		{swap(smallHwloc, `pci_link_speed="63.0"`, `pci_link_speed="banana"`), "f:7", `pci_link_speed="banana"`},
		{swap(smallHwloc, `osdev_type="3"`, `osdev_type="nic"`), "f:14", `osdev_type="nic"`},
		{swap(smallHwloc, `type="NUMANode" os_index="0"`, `type="NUMANode" os_index="1099511627776"`), "f:5", `os_index="1099511627776"`},
	} {
		n := parseOne(t, "f", c.text)
		found := false
		for _, note := range n.Notes {
			found = found || note.Where == c.where && strings.Contains(note.What, c.want)
		}
		if !found {
			t.Errorf("want %s: %s; notes: %v", c.where, c.want, n.Notes)
		}
		var b bytes.Buffer
		if err := documentOf(t, n).Write(&b); err != nil {
			t.Errorf("%s: %v", c.want, err)
		} else if _, err := Parse("again", b.Bytes()); err != nil {
			t.Errorf("%s: the document is not readable: %v", c.want, err)
		}
	}
	for _, text := range []string{small, smallHwloc, smallMatrix} {
		if n := parseOne(t, "f", text); len(n.Notes) > 0 {
			t.Errorf("notes about what is right: %v", n.Notes)
		}
	}
}

// What sysfs says that means nothing is told with the path.
func TestOddSysfsIsTold(t *testing.T) {
	for file, text := range map[string]string{"/numa_node": "1099511627776\n", "/ports/1/rate": "fast\n"} {
		h := h200()
		for p := range h.files.files {
			if strings.HasSuffix(p, file) {
				h.files.files[p] = text
			}
		}
		if n := h.node(); !hasNote(n, `"`+strings.TrimSpace(text)+`" is not a`) {
			t.Errorf("%s: notes %v", file, n.Notes)
		} else if err := n.check(); err != nil {
			t.Errorf("%s: its own record is refused: %v", file, err)
		}
	}
}

// In the own document such values are errors: mkrun never writes them.
func TestOddJSONIsRefused(t *testing.T) {
	var b bytes.Buffer
	if err := documentOf(t, parseOne(t, "f", small)).Write(&b); err != nil {
		t.Fatal(err)
	}
	whole := b.String()
	edit := func(part, old, new string) (text string, line int) {
		at := strings.Index(whole, part)
		k := strings.Index(whole[max(0, at):], old)
		if at < 0 || k < 0 {
			t.Fatalf("%q, %q are not there", part, old)
		}
		return whole[:at+k] + strings.Replace(whole[at+k:], old, new, 1), 1 + strings.Count(whole[:at+k], "\n")
	}
	for _, c := range []struct{ part, old, new, want string }{
		{`"gpus": [`, `"index": 1`, `"index": 0`, "gpus[1]: index 0 is also that of gpus[0]"},
		{`"gpus": [`, `"index": 0`, `"index": -1`, "gpus[0]: index -1"},
		{`"gpus": [`, `"cpus": "0-15"`, `"cpus": "banana"`, `gpus[0]: "banana"`},
		{`"gpus": [`, `"peer": "gpu"`, `"peer": "friend"`, `gpus[0]: a link's peer is "friend"`},
		{`"gpus": [`, `"numa": 0`, `"numa": 1099511627776`, "gpus[0]: numa 1099511627776"},
		{`"numa": [`, `"id": 0`, `"id": 1099511627776`, "numa[0]: id 1099511627776"},
		{`"nics": [`, `"rate": 400000`, `"rate": -400000`, "nics[0]: rate -400000"},
		{`"pci": [`, `"speed": 32`, `"speed": 1e308`, "speed 1e+308"},
		{`"pci": [`, `"width": 16`, `"width": -16`, "width -16"},
	} {
		text, line := edit(c.part, c.old, c.new)
		_, err := Parse("f", []byte(text))
		var at *ImportError
		if !errors.As(err, &at) || !strings.Contains(at.What, c.want) {
			t.Errorf("%s -> %s: %v, want %s", c.old, c.new, err, c.want)
			continue
		}
		// The line is that where the record begins.
		if at.Line == 0 || at.Line > line || line-at.Line > 60 {
			t.Errorf("%s -> %s: line %d, the value is in line %d", c.old, c.new, at.Line, line)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"{\"schema\": \"mkrun.topo/1\",\n\"nodes\": [\nnull]}", "f:3: nodes[0] is null"},
		{"{\"schema\": \"mkrun.topo/1\",\n\"nodes\": [\n{\"gpus\": [\n null]}]}", "f:4: gpus[0] is null"},
		{"{\"schema\": \"mkrun.topo/1\", \"nodes\": [{\"nics\": [\nnull]}]}", "f:2: nics[0] is null"},
		{"{\"schema\": \"mkrun.topo/1\", \"nodes\": [{\"host\": \"a\",\n\"pci\": [{\"id\": \"a\", \"parent\": -1},\n\n{}]}]}", "f:4: node 0 (a): pci[1]: () id is missing"},
	} {
		if _, err := Parse("f", []byte(c.text)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// A CPU set that cannot be read costs the CPUs, not the NUMA nodes of the devices.
func TestBrokenCPUSetKeepsNUMA(t *testing.T) {
	second := strings.NewReplacer(`<object type="NUMANode" os_index="0" cpuset="0x0000ffff" nodeset="0x00000001" gp_index="2"/>`,
		`<object type="NUMANode" os_index="0" cpuset="0x0000ffff" nodeset="0x00000001" gp_index="2"/>
    <object type="NUMANode" os_index="1" cpuset="0xQQ" nodeset="0x00000002" gp_index="20"/>`,
		`<object type="Bridge" gp_index="3" bridge_type="0-1"`, `<object type="Group" cpuset="0xQQ" nodeset="0x00000002" gp_index="21"><object type="Bridge" gp_index="3" bridge_type="0-1"`).Replace(smallHwloc)
	end := "      </object>\n    </object>\n  </object>\n</topology>"
	second = strings.Replace(second, end, "      </object></object>\n    </object>\n  </object>\n</topology>", 1)
	n := parseOne(t, "f", second)
	if g := n.GPUs[0]; g.NUMA == nil || *g.NUMA != 1 || g.CPUs != "" {
		t.Errorf("NUMA node %v, CPUs %q, want node 1 and no CPUs", g.NUMA, g.CPUs)
	}
	if !hasNote(n, "cpuset of a NUMA node left out") {
		t.Errorf("notes %v", n.Notes)
	}
}

// The largest document that mkrun writes, every NIC nearest to every GPU, is one that it reads.
func TestLargestDocumentFits(t *testing.T) {
	write := func(nics int) int {
		n := &Node{Details: Details{NICs: true}, Tree: TreeSwitches, PCI: []Device{{ID: "numa0", Parent: -1, Kind: KindRoot, NUMA: intp(0)}}}
		n.GPUs = []GPU{{PCI: 0, BDF: "0000:01:00.0"}}
		for range nics {
			n.NICs = append(n.NICs, NIC{Name: strings.Repeat("n", 64), RDMA: "x", BDF: "0000:02:00.0", PCI: 0, Ports: []Port{{State: "ACTIVE", Rate: 400000}}})
		}
		var b bytes.Buffer
		d := documentOf(t, n)
		if got := len(d.Nodes[0].GPUs[0].Nearest.NICs); got != nics {
			t.Fatalf("%d of %d NICs are nearest", got, nics)
		}
		// These are shared out among the GPUs; the nearest are not.
		d.Nodes[0].NICs, d.Nodes[0].GPUs[0].Use, d.Nodes[0].GPUs[0].NCCL, d.Rails = nil, nil, nil, nil
		if err := d.Write(&b); err != nil {
			t.Fatal(err)
		}
		return b.Len()
	}
	each := (write(101) - write(1)) / 100
	if whole := each * maxGPUs * maxNICs; whole > maxInput*9/10 {
		t.Errorf("the nearest NICs of all GPUs take %d MiB, an input may have %d", whole>>20, maxInput>>20)
	}
}
