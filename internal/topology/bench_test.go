package topology

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkNode is one node of 2 sockets and 8 GPUs, from its files to the table: the target is 150 ms.
func BenchmarkNode(b *testing.B) {
	h := h200()
	for b.Loop() {
		var out strings.Builder
		e := NewEval(h.node())
		CheckNodes([]*Eval{e}, nil)
		WriteNodes(&out, []*Eval{e}, Style{}, (*Eval).WriteMatrix)
	}
}

// processorTime is what this process has used of all processors.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkThousandNodes reads, merges and renders a thousand nodes, ten of them odd: the target is 2 s. cpu-s/op is
// the time on all processors together, which does not depend on what else the machine does.
func BenchmarkThousandNodes(b *testing.B) {
	dir := b.TempDir()
	files := make([]string, 1000)
	for i := range files {
		h := h200()
		h.files.files["/proc/sys/kernel/hostname"] = fmt.Sprintf("node%04d", i)
		if i%100 == 7 {
			h.nvml.GPUs[i%8].Links[0].Count = 12
		}
		var s strings.Builder
		d, err := NewDocument([]*Node{h.node()}, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := d.Write(&s); err != nil {
			b.Fatal(err)
		}
		files[i] = filepath.Join(dir, fmt.Sprintf("%04d.json", i))
		if err := os.WriteFile(files[i], []byte(s.String()), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	before := processorTime(b)
	for b.Loop() {
		nodes, err := LoadAll(files)
		if err != nil {
			b.Fatal(err)
		}
		render(b, nodes)
	}
	b.ReportMetric((processorTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
}

// render merges nodes and writes the table and what is broken.
func render(b *testing.B, nodes []*Node) {
	b.Helper()
	evals := make([]*Eval, len(nodes))
	for i, n := range nodes {
		evals[i] = NewEval(n)
	}
	var out strings.Builder
	WriteNodes(&out, evals, Style{}, (*Eval).WriteMatrix)
	WriteFindings(&out, CheckNodes(evals, nil), Style{})
	if _, err := io.WriteString(io.Discard, out.String()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkThousandRecords does the same with what a thousand nodes of a job report about themselves.
func BenchmarkThousandRecords(b *testing.B) {
	names, packed := make([]string, 1000), make([][]byte, 1000)
	for i := range names {
		n := h200().node()
		if i%100 == 7 {
			n.GPUs[i%8].Links[0].Count = 12
		}
		names[i] = fmt.Sprintf("node%04d", i)
		var err error
		if packed[i], err = n.Pack(); err != nil {
			b.Fatal(err)
		}
	}
	before := processorTime(b)
	for b.Loop() {
		nodes, err := Unpack(names, packed)
		if err != nil {
			b.Fatal(err)
		}
		render(b, nodes)
	}
	b.ReportMetric((processorTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
}
