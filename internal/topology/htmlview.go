package topology

import (
	"fmt"
	"html/template"
	"io"
	"strings"
)

// page is one self-contained file: no script, nothing fetched.
var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>mkrun topo: {{.Title}}</title>
<style>
body{font:14px/1.45 Inter,"Helvetica Neue",Arial,sans-serif;color:#1f2933;margin:24px;max-width:1500px}
h1{font-size:20px} h2{font-size:16px;margin-top:28px}
.scroll{overflow-x:auto} pre{font:12px/1.4 "JetBrains Mono",Menlo,Consolas,monospace;background:#fbfcfd;border:1px solid #cbd2d9;border-radius:8px;padding:12px;overflow-x:auto}
.ok{color:#2f7d32;font-weight:600}.degraded{color:#d64545;font-weight:600}.warning{color:#b7791f;font-weight:600}
td,th{padding:3px 12px 3px 0;text-align:left;vertical-align:top}
</style></head><body>
<h1>{{.Title}}</h1>
{{if .Findings}}<table>{{range .Findings}}<tr><td class="{{.Severity}}">{{.Severity}}</td><td>{{.Node}} {{.Where}}</td><td>{{.What}}</td><td>{{.Do}}</td></tr>{{end}}</table>
{{else}}<p class="ok">healthy</p>{{end}}
<div class="scroll">{{.Picture}}</div>
{{range .Nodes}}<h2>{{.Title}}</h2><pre>{{.Matrix}}</pre>{{end}}
{{if .Rails}}<h2>Rails, matched by position</h2><pre>{{.Rails}}</pre>{{end}}
</body></html>
`))

// WriteHTML writes picture, matrices and findings as one file.
func WriteHTML(w io.Writer, evals []*Eval, doc *Document) error {
	type nodeView struct{ Title, Matrix string }
	var nodes []nodeView
	for _, group := range alike(evals) {
		e := evals[group[0]]
		var b strings.Builder
		e.WriteMatrix(&b, Style{NCCL: e.Node.Tree == TreeSwitches})
		e.WriteNotes(&b, Style{})
		title := e.Title(Style{})
		if len(group) > 1 {
			title = fmt.Sprintf("%d nodes like %s", len(group), title)
		}
		nodes = append(nodes, nodeView{title, b.String()})
	}
	var picture, rails strings.Builder
	if err := WriteSVG(&picture, evals); err != nil {
		return err
	}
	if len(evals) > 1 {
		writeRails(&rails, evals, Style{})
	}
	title := evals[0].Node.Host
	if len(evals) > 1 {
		title = fmt.Sprintf("%d nodes", len(evals))
	}
	return page.Execute(w, map[string]any{
		"Title": title, "Findings": doc.Findings, "Nodes": nodes, "Rails": strings.TrimSpace(rails.String()),
		"Picture": template.HTML(picture.String()), // written by WriteSVG, which escapes every name
	})
}
