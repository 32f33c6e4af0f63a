package topology

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// degradations are what --expect finds in one text against another.
func degradations(t *testing.T, want, have *Eval) []string {
	t.Helper()
	x := &Expectation{node: want, from: "expected"}
	var list []string
	for _, f := range x.Check(have) {
		if f.Severity == Degraded {
			list = append(list, f.Code+" "+f.Where+": "+f.What)
		}
	}
	return list
}

// A link that is slower than in the expected file is found in every input that tells of links, be it a device's or a switch's.
func TestExpectSlowerLink(t *testing.T) {
	only := func(text, line, old, new string) string {
		lines := strings.SplitAfter(text, "\n")
		for i := range lines {
			if strings.Contains(lines[i], line) {
				lines[i] = strings.ReplaceAll(lines[i], old, new)
			}
		}
		return strings.Join(lines, "")
	}
	asJSON := func(text string) string {
		var b bytes.Buffer
		if err := documentOf(t, parseOne(t, "test", text)).Write(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for name, c := range map[string]struct{ text, slower, want string }{
		"GPU's width":   {small, only(small, `"0000:12:00.0" class`, `link_width="16"`, `link_width="4"`), "differs-pcie gpu 0000:12:00.0: PCIe 32 GT/s x4 instead of PCIe 32 GT/s x16"},
		"NIC's speed":   {small, only(small, `"0000:14:00.0"`, "32.0 GT/s", "16.0 GT/s"), "differs-pcie nic 0000:14:00.0: PCIe 16 GT/s x16 instead of PCIe 32 GT/s x16"},
		"switch":        {small, only(small, `"0000:10:00.0"`, `link_width="16"`, `link_width="8"`), "differs-pcie switch 0000:10:00.0: PCIe 32 GT/s x8 instead of"},
		"JSON":          {small, asJSON(only(small, `"0000:12:00.0" class`, `link_width="16"`, `link_width="4"`)), "differs-pcie gpu 0000:12:00.0: PCIe 32 GT/s x4 instead of"},
		"hwloc NIC":     {smallHwloc, only(smallHwloc, `"0000:14:00.0"`, "63.0", "31.507692"), "differs-pcie nic 0000:14:00.0: PCIe 31.5 GB/s instead of PCIe 63.0 GB/s"},
		"hwloc GPU":     {smallHwloc, only(smallHwloc, `"0000:12:00.0"`, "63.0", "7.8"), "differs-pcie gpu 0000:12:00.0: PCIe x8 instead of PCIe x16"},
		"hwloc switch":  {smallHwloc, only(smallHwloc, `"0000:10:00.0"`, "63.0", "15.753846"), "differs-pcie switch 0000:10:00.0: PCIe 15.8 GB/s instead of"},
		"other formats": {only(smallHwloc, "mlx5", "mlx5", "mlx5"), only(small, `"0000:14:00.0"`, `link_width="16"`, `link_width="8"`), "differs-pcie nic 0000:14:00.0: PCIe 32 GT/s x8 instead of PCIe 63.0 GB/s"},
	} {
		want := evalOf(t, c.text)
		if list := degradations(t, want, want); len(list) > 0 {
			t.Errorf("%s: differs from itself: %v", name, list)
		}
		list := degradations(t, want, evalOf(t, c.slower))
		if !slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, c.want) }) {
			t.Errorf("%s: found %v, want %s", name, list, c.want)
		}
	}
}

// What sysfs shows now: lanes that are gone are found, the low speed of an idle GPU is none.
func TestExpectLiveLink(t *testing.T) {
	gpu := func(speed, width string) *Eval {
		h := h200()
		for p := range h.files.files {
			switch {
			case strings.HasSuffix(p, "0000:13:00.0/current_link_speed"):
				h.files.files[p] = speed + " GT/s PCIe\n"
			case strings.HasSuffix(p, "0000:13:00.0/current_link_width"):
				h.files.files[p] = width + "\n"
			}
		}
		h.nvml = nvmlState{}
		return NewEval(h.node())
	}
	want := gpu("32.0", "16")
	if list := degradations(t, want, gpu("2.5", "16")); len(list) > 0 {
		t.Errorf("an idle GPU is called slower: %v", list)
	}
	if list := degradations(t, gpu("2.5", "16"), want); len(list) > 0 {
		t.Errorf("a busy GPU differs from an idle one: %v", list)
	}
	if list := degradations(t, want, gpu("32.0", "4")); len(list) != 1 || !strings.Contains(list[0], "gpu 0000:13:00.0: PCIe 32 GT/s x4 instead of") {
		t.Errorf("4 lanes of 16: %v", list)
	}
	// hwloc writes the speed of the moment, too.
	if list := degradations(t, evalOf(t, smallHwloc), evalOf(t, strings.Replace(smallHwloc, `[10de:18be] a1" pci_link_speed="63.0"`, `[10de:18be] a1" pci_link_speed="4.0"`, 1))); len(list) > 0 {
		t.Errorf("an idle GPU of hwloc is called slower: %v", list)
	}
}

// Devices of a matrix that changed their places are named.
func TestExpectMovedInMatrix(t *testing.T) {
	const matrix = "\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\n" +
		"GPU0\t X \tNV18\tNV18\tPIX\tSYS\tNODE\t0-15\t0\n" +
		"GPU1\tNV18\t X \tNV18\tSYS\tPIX\tSYS\t16-31\t1\n" +
		"GPU2\tNV18\tNV18\t X \tSYS\tPIX\tSYS\t16-31\t1\n" +
		"NIC0\tPIX\tSYS\tSYS\t X \tSYS\tNODE\n" +
		"NIC1\tSYS\tPIX\tPIX\tSYS\t X \tSYS\n" +
		"NIC2\tNODE\tSYS\tSYS\tNODE\tSYS\t X \n"
	want := evalOf(t, matrix)
	if list := degradations(t, want, want); len(list) > 0 {
		t.Errorf("differs from itself: %v", list)
	}
	swapped := strings.NewReplacer("PIX\tSYS\tNODE\t0-15", "SYS\tPIX\tNODE\t0-15", "SYS\tPIX\tSYS\t16", "PIX\tSYS\tSYS\t16").Replace(matrix)
	list := degradations(t, want, evalOf(t, swapped))
	if !slices.Contains(list, "differs-moved nic NIC0: is at PIX instead of SYS from GPU1, GPU2, SYS instead of PIX from GPU0") ||
		!slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, "differs-moved nic NIC1: ") }) || len(list) != 2 {
		t.Errorf("two NICs in each other's place: %v", list)
	}
	if list := degradations(t, want, evalOf(t, strings.ReplaceAll(matrix, "PIX", "PXB"))); len(list) == 0 {
		t.Error("every PIX became PXB: nothing was found")
	}
	if a, b := NewEval(want.Node).canonical(), evalOf(t, swapped).canonical(); slices.Equal(a, b) {
		t.Error("nodes with swapped NICs count as alike")
	}
}

// A device below another root complex of the same NUMA node is in another place.
func TestExpectOtherRoot(t *testing.T) {
	list := degradations(t, evalOf(t, smallHwloc), evalOf(t, strings.Replace(smallHwloc, `bridge_pci="0000:[00-15]"`, `bridge_pci="0000:[40-55]"`, 1)))
	if len(list) == 0 || !strings.Contains(list[0], "below root complex pci0000:40 instead of below root complex pci0000:00") {
		t.Errorf("found %v", list)
	}
}

// Every healthy machine of the corpus is what it is expected to be: itself.
func TestCorpusExpectItself(t *testing.T) {
	for _, a := range answers(t) {
		if !slices.Contains(scored, a.Kind) {
			continue
		}
		if list := degradations(t, NewEval(load(t, a.File)), NewEval(load(t, a.File))); len(list) > 0 {
			t.Errorf("%s differs from itself: %v", a.File, list)
		}
	}
}
