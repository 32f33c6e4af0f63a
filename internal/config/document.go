// Package config reads the YAML files of configs/: named shapes of real models, and the settings
// of each operator by shape, world and engine. Files are read strictly; every error says where in
// which file, and shows the text.
package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Error is a mistake in a configuration file.
type Error struct {
	File      string
	Line, Col int    // from 1; 0 when the mistake has no place
	Msg       string // what is wrong and what would be right
	Text      string // the line of the file
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Msg)
	}
	num := fmt.Sprint(e.Line)
	return fmt.Sprintf("%s:%d:%d: %s\n  %s | %s\n  %s | %s^",
		e.File, e.Line, e.Col, e.Msg,
		num, e.Text,
		strings.Repeat(" ", len(num)), strings.Repeat(" ", max(0, e.Col-1)))
}

// document is a parsed file that still knows where everything stands in it.
type document struct {
	name  string // as shown to people
	lines []string
	file  *ast.File
}

// decode parses a file of exactly one YAML document into v. Unknown and repeated keys are errors.
func decode(name string, data []byte, v any) (*document, error) {
	d := &document{name: name, lines: strings.Split(string(data), "\n")}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, d.wrap(err)
	}
	d.file = file
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, &Error{File: name, Msg: "want exactly one YAML document"}
	}
	if err := yaml.NodeToValue(file.Docs[0].Body, v, yaml.Strict()); err != nil {
		return nil, d.wrap(err)
	}
	return d, nil
}

// wrap gives an error of the YAML library our form.
func (d *document) wrap(err error) error {
	var ye yaml.Error
	if !errors.As(err, &ye) {
		return &Error{File: d.name, Msg: err.Error()}
	}
	e := &Error{File: d.name, Msg: ye.GetMessage()}
	var te *yaml.TypeError
	if errors.As(err, &te) {
		e.Msg = "want " + kindName(te.DstType) + ", found " + kindName(te.SrcType)
	}
	if tk := ye.GetToken(); tk != nil && tk.Position != nil {
		d.place(e, tk.Position.Line, tk.Position.Column)
	}
	return e
}

// kindName says what a Go type is called in a YAML file.
func kindName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	default:
		return "a mapping of keys to values"
	}
}

// errorf makes an error at a YAML path such as "$.entries[1].use.roles". Where the path leads
// nowhere, the nearest enclosing thing that is there is shown.
func (d *document) errorf(path, format string, args ...any) error {
	e := &Error{File: d.name, Msg: fmt.Sprintf(format, args...)}
	d.place(e, d.line(path), d.col(path))
	return e
}

func (d *document) place(e *Error, line, col int) {
	e.Line, e.Col = line, col
	if line >= 1 && line <= len(d.lines) {
		e.Text = strings.TrimRight(d.lines[line-1], "\r")
	}
}

func (d *document) line(path string) int { l, _ := d.position(path); return l }
func (d *document) col(path string) int  { _, c := d.position(path); return c }

func (d *document) position(path string) (line, col int) {
	for path != "" {
		if p, err := yaml.PathString(path); err == nil {
			if node, err := p.FilterFile(d.file); err == nil && node != nil {
				return start(node)
			}
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return 0, 0
}

// start is where a node begins. The token of a mapping is the colon of its first key.
func start(node ast.Node) (line, col int) {
	switch n := node.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return start(n.Values[0])
		}
	case *ast.MappingValueNode:
		return start(n.Key)
	case *ast.SequenceNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return start(n.Values[0])
		}
	}
	pos := node.GetToken().Position
	return pos.Line, pos.Column
}
