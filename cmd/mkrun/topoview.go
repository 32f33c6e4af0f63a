package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/topology"
)

// write writes the view that was asked for.
func (f *topoFlags) write(cmd *cobra.Command, out io.Writer, evals []*topology.Eval, findings []topology.Finding) error {
	switch f.format {
	case "json":
		doc, err := topology.DocumentOf(evals, f.ranks)
		if err != nil {
			return f.failed(cmd, err)
		}
		doc.Findings, doc.Healthy = findings, topology.Healthy(findings)
		return doc.Write(out)
	case "nccl-xml":
		if len(evals) != 1 {
			return f.usage(cmd, "--format nccl-xml writes one node, but there are %d", len(evals))
		}
		var b bytes.Buffer
		if err := evals[0].WriteNCCL(&b); err != nil {
			return f.failed(cmd, err)
		}
		_, err := out.Write(b.Bytes())
		return err
	case "dot":
		return topology.WriteDOT(out, evals)
	case "svg":
		return topology.WriteSVG(out, evals)
	case "html":
		doc, err := topology.DocumentOf(evals, f.ranks)
		if err != nil {
			return f.failed(cmd, err)
		}
		doc.Findings, doc.Healthy = findings, topology.Healthy(findings)
		return topology.WriteHTML(out, evals, doc)
	}
	return f.text(cmd, out, evals, findings)
}

// style is how text is drawn: in colour on a terminal only, unless asked otherwise (NO_COLOR is
// heeded, as everywhere).
func (f *topoFlags) style(out io.Writer) topology.Style {
	s := topology.Style{ASCII: f.ascii}
	switch f.color {
	case "always":
		s.Color = true
	case "auto":
		file, ok := out.(*os.File)
		if ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
			info, err := file.Stat()
			s.Color = err == nil && info.Mode()&os.ModeCharDevice != 0
		}
	}
	return s
}

func (f *topoFlags) text(cmd *cobra.Command, out io.Writer, evals []*topology.Eval, findings []topology.Finding) error {
	s := f.style(out)
	var b strings.Builder
	if f.explain != "" {
		index, err := gpuNumber(f.explain)
		if err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		for _, e := range evals {
			if err := e.Explain(&b, index, s); err != nil {
				return f.failed(cmd, err)
			}
		}
		_, err = io.WriteString(out, b.String())
		return err
	}
	view := func(e *topology.Eval, b *strings.Builder, s topology.Style) {
		if f.format == "tree" {
			e.WriteTree(b, s)
			return
		}
		s.NCCL = f.vocabulary == "nccl" || f.vocabulary == "" && e.Node.Tree == topology.TreeSwitches
		e.WriteMatrix(b, s)
	}
	topology.WriteNodes(&b, evals, s, view)
	writeMeasured(&b, evals, s)
	if f.ranks > 0 {
		p, err := topology.Place(evals, f.ranks)
		if err != nil {
			return f.failed(cmd, err)
		}
		b.WriteByte('\n')
		p.Write(&b, s)
	}
	if f.check || f.expect != "" {
		b.WriteByte('\n')
		topology.WriteFindings(&b, findings, s)
	} else if n := degraded(findings); n > 0 {
		things, them := "1 thing is", "it"
		if n > 1 {
			things, them = fmt.Sprintf("%d things are", n), "them"
		}
		fmt.Fprintf(&b, "\n%s degraded: mkrun topo --check names %s\n", things, them)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// writeMeasured writes the figures of every node that has some.
func writeMeasured(b *strings.Builder, evals []*topology.Eval, s topology.Style) {
	for _, e := range evals {
		if e.Node.Measured == nil {
			continue
		}
		b.WriteByte('\n')
		if len(evals) > 1 {
			b.WriteString(e.Node.Host + "\n")
		}
		e.WriteMeasured(b, s)
	}
}

func degraded(findings []topology.Finding) int {
	n := 0
	for _, f := range findings {
		if f.Severity == topology.Degraded {
			n++
		}
	}
	return n
}
