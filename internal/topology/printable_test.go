package topology

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "mlx5_0": "mlx5_0", "Größe × 2 · 名": "Größe × 2 · 名", "a\x1b]0;pwn\a": `a\x1b]0;pwn\x07`, "a\nb\tc": `a\nb\tc`,
		"\u202egnp.exe": `\u202egnp.exe`, "\u009b31m": `\u009b31m`, "a\xffb": `a\xffb`, "\u2028": `\u2028`, "\ufffd": "\ufffd", "x\x7f": `x\x7f`, "\U000e0001": `\U000e0001`,
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
}

// hostileName is what a NIC, a host or a product may be called: it sets a terminal's title, starts a row and turns the line.
const hostileName = "m\x1b]0;pwn\a\n\t\u202e\u009bx"

// hostile is small with such names everywhere, as JSON; %q is not valid JSON for all of them.
func hostileNode(t *testing.T) *Node {
	t.Helper()
	n := parseOne(t, "test", small)
	n.Host, n.Product, n.NICs[0].Name, n.NICs[0].RDMA, n.NICs[0].Net = hostileName, hostileName, hostileName, hostileName, []string{hostileName}
	n.GPUs[0].Name, n.GPUs[0].UUID, n.PCI[2].Name, n.PCI[2].ID = hostileName, hostileName, hostileName, hostileName
	n.NICs[0].Ports[0].Layer, n.NICs[0].Board, n.NUMA[0].Vendor = hostileName, hostileName, hostileName
	n.System.Env = map[string]string{"NCCL_TOPO_FILE": hostileName, hostileName: "x"}
	n.Origin.Kind = Source(hostileName)
	n.Notes = append(n.Notes, Note{hostileName, hostileName})
	n.GPUs[0].Health = &GPUHealth{Throttle: []string{hostileName}}
	n.GPUs[0].Fabric = &Fabric{State: hostileName, Status: hostileName}
	var b bytes.Buffer
	if err := documentOf(t, n).Write(&b); err != nil {
		t.Fatal(err)
	}
	return parseOne(t, hostileName, b.String())
}

// No view passes on what a terminal obeys or what breaks a line, whatever devices are called.
func TestViewsArePrintable(t *testing.T) {
	e := NewEval(hostileNode(t))
	doc, err := DocumentOf([]*Eval{e}, 2)
	if err != nil {
		t.Fatal(err)
	}
	doc.Findings = CheckNodes([]*Eval{e}, &Expectation{node: evalOf(t, small), from: "small"})
	views := map[string]func(*strings.Builder) error{
		"title": func(b *strings.Builder) error { b.WriteString(e.Title(Style{})); return nil },
		"matrix": func(b *strings.Builder) error {
			WriteNodes(b, []*Eval{e, evalOf(t, small)}, Style{}, (*Eval).WriteMatrix)
			return nil
		},
		"tree":     func(b *strings.Builder) error { e.WriteTree(b, Style{}); return nil },
		"explain":  func(b *strings.Builder) error { return e.Explain(b, 0, Style{}) },
		"findings": func(b *strings.Builder) error { WriteFindings(b, doc.Findings, Style{}); return nil },
		"placing":  func(b *strings.Builder) error { doc.Placing.Write(b, Style{}); return nil },
		"svg":      func(b *strings.Builder) error { return WriteSVG(b, []*Eval{e}) },
		"html":     func(b *strings.Builder) error { return WriteHTML(b, []*Eval{e}, doc) },
		"dot":      func(b *strings.Builder) error { return WriteDOT(b, []*Eval{e}) },
		"json":     func(b *strings.Builder) error { return doc.Write(b) },
	}
	for name, write := range views {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for i, r := range b.String() {
			if r != '\n' && !(r == ' ' || unicode.IsPrint(r)) {
				t.Errorf("%s passes on %U: %q", name, r, b.String()[max(0, i-40):min(b.Len(), i+20)])
				break
			}
		}
		if strings.Contains(b.String(), "m\\x1b]0;pwn\\x07\n") {
			t.Errorf("%s: a name breaks its line", name)
		}
	}
}

// The names of every kind of input are cleaned, and so are errors and the file's name in them.
func TestInputsArePrintable(t *testing.T) {
	xmlName := "&#x9;m\u202e\u009bx&#xA;"
	for name, text := range map[string]string{
		"nccl":   strings.Replace(small, `name="mlx5_0"`, `name="`+xmlName+`"`, 1),
		"hwloc":  strings.Replace(smallHwloc, `name="mlx5_0"`, `name="`+xmlName+`"`, 1),
		"matrix": strings.Replace(smallMatrix, "NIC0: mlx5_0", "NIC0: m\x1b]0;pwn\a\u202e", 1),
	} {
		n := parseOne(t, name, text)
		if s := fmt.Sprint(n.NICs[0].Name, n.NICs[0].RDMA); strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%s: %q", name, s)
		}
	}
	_, err := Parse("a\x1b[2Jb", []byte("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tF\u202eR\u009b\t0-3\n"))
	if err == nil || strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("error %q", err)
	}
	h := h200()
	h.files.files["/sys/class/dmi/id/product_name"] = hostileName
	if n := h.node(); strings.ContainsFunc(n.Product, unicode.IsControl) {
		t.Errorf("live: product %q", n.Product)
	}
}

// A note and an error quote no more than a line or two.
func TestLongValuesAreCut(t *testing.T) {
	long := strings.Repeat("0000000g,", 200_000)
	n := parseOne(t, "test", strings.Replace(small, `affinity="0000ffff"`, `affinity="`+long+`"`, 1))
	if len(n.Notes) == 0 {
		t.Fatal("no note")
	}
	for _, note := range n.Notes {
		if len(note.What) > 2*longest || !strings.Contains(note.What, "bytes left out") {
			t.Errorf("a note of %d bytes: %.200s", len(note.What), note.What)
		}
	}
	_, err := Parse("test", []byte(strings.Replace(small, `numaid="0"`, `numaid="`+long+`"`, 1)))
	if err == nil || len(err.Error()) > 2*longest {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}
