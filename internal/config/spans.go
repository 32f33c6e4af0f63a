package config

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// EntrySpan is where an entry stands in a file, in lines from 1, both included. Comments and empty lines between it and
// the next entry belong to neither.
type EntrySpan struct {
	Name     string
	From, To int
}

// EntrySpans reads a file of an operator to which entries are to be added, and says where its entries stand, and
// whether it has the key that they stand under. That must be the last one, and each entry must have lines of its own.
func EntrySpans(name, operator string, data []byte) (spans []EntrySpan, has bool, err error) {
	d := parse(name, data)
	op := readOperator(operator, d)
	pairs, _ := pairsOf(d.body)
	for i, pair := range pairs {
		if pair.Key.GetToken().Value != "entries" {
			continue
		}
		has = true
		if i != len(pairs)-1 {
			d.note(start(pairs[i+1].Key), "something stands behind the entries, so none can be added: move it in front of them")
		}
		if list, ok := pair.Value.(*ast.SequenceNode); ok && list.IsFlowStyle {
			d.note(start(list), "the entries stand in brackets, so none can be added: write each in lines of its own, behind a dash")
		}
	}
	if err := d.err(); err != nil {
		return nil, false, err
	}
	for i, e := range op.entries {
		at := d.position(fmt.Sprintf("$.entries[%d]", i))
		end := len(d.lines)
		if i+1 < len(op.entries) {
			end = op.entries[i+1].line - 1
		}
		spans = append(spans, EntrySpan{Name: e.Name, From: at.line, To: d.lastLine(at, end)})
	}
	return spans, has, nil
}

// lastLine is the last of the lines from that of an entry up to an end that is not empty, and no comment that stands
// further left than the entry's keys.
func (d *document) lastLine(at position, end int) int {
	for ; end > at.line; end-- {
		line := d.lines[end-1]
		text := strings.TrimLeft(line, " ")
		if text = strings.TrimRight(text, " \r"); text == "" {
			continue
		}
		if !strings.HasPrefix(text, "#") || len(line)-len(strings.TrimLeft(line, " ")) >= at.col-1 {
			break
		}
	}
	return end
}
