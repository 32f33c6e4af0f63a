// Package config reads the YAML files of configs/: named shapes of real models, and the settings
// of each operator by shape, world and engine. Files are read strictly; all mistakes are told at once,
// each with where in which file it is and the text there.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"
)

// Error is a mistake in a configuration file.
type Error struct {
	File      string
	Line, Col int    // from 1
	Msg       string // what is wrong and what would be right
	Text      string // the line of the file
}

func (e *Error) Error() string {
	num := fmt.Sprint(e.Line)
	text, caret := excerpt(e.Text, e.Col)
	return fmt.Sprintf("%s:%d:%d: %s\n  %s | %s\n  %s | %s^",
		e.File, e.Line, e.Col, e.Msg, num, text, strings.Repeat(" ", len(num)), strings.Repeat(" ", caret))
}

// excerpt is what is shown of a line, and how many characters stand before a column there: the part around the column
// of a long line, and nothing that a terminal would obey.
func excerpt(text string, col int) (shown string, before int) {
	const width = 160
	line := []rune(text)
	at := min(max(0, col-1), len(line))
	from := 0
	if len(line) > width {
		from = max(0, at-width/2)
		line = line[from:min(len(line), from+width)]
	}
	for i, r := range line {
		if r == '\t' {
			line[i] = ' '
		} else if !unicode.IsPrint(r) {
			line[i] = unicode.ReplacementChar
		}
	}
	return string(line), at - from
}

// position is where something begins, from 1.
type position struct{ line, col int }

// document is a parsed file that still knows where everything stands in it, and collects its mistakes.
//
// Places are named by paths such as "$.entries[1].use.roles".
type document struct {
	name     string // as shown to people
	lines    []string
	body     ast.Node
	at       map[string]position
	mistakes []*Error
	untold   int             // mistakes beyond those
	touched  map[string]bool // paths with a mistake, of which nothing else is to be said
	above    map[string]bool // what those are parts of
}

// mistake notes what is wrong at a path. Where the path leads nowhere, the nearest enclosing thing that is there is
// shown. What only follows from a mistake that was told already (of the same thing, of a part of it, or of what it is a
// part of) is left out.
func (d *document) mistake(path, format string, args ...any) {
	if d.hasMistake(path) {
		return
	}
	d.touch(path)
	d.note(d.position(path), format, args...)
}

// touch marks a path as one of which nothing else is to be said.
func (d *document) touch(path string) {
	d.touched[path] = true
	for p := parent(path); p != ""; p = parent(p) {
		d.above[p] = true
	}
}

// note notes what is wrong at a place, whatever else is.
func (d *document) note(at position, format string, args ...any) {
	if d.full() {
		d.untold++
		return
	}
	d.mistakes = append(d.mistakes, d.errorAt(at, format, args...))
}

// full reports whether there are so many mistakes that no more are kept: nobody is helped by the order of the last.
func (d *document) full() bool { return len(d.mistakes) >= 10*mostMistakes }

func (d *document) errorAt(at position, format string, args ...any) *Error {
	e := &Error{File: d.name, Line: max(1, at.line), Col: max(1, at.col), Msg: fmt.Sprintf(format, args...)}
	if e.Line <= len(d.lines) {
		e.Text = strings.TrimRight(d.lines[e.Line-1], "\r")
	}
	return e
}

// hasMistake reports whether there is a mistake at a path, above or below it.
func (d *document) hasMistake(path string) bool {
	for p := path; p != ""; p = parent(p) {
		if d.touched[p] {
			return true
		}
	}
	return d.above[path]
}

// parent is the path of what a path is a part of, "" at the top.
func parent(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }

// position is where a path leads, or the nearest enclosing thing that is there.
func (d *document) position(path string) position {
	for ; path != ""; path = parent(path) {
		if at, ok := d.at[path]; ok {
			return at
		}
	}
	return position{1, 1}
}

// mostMistakes is how many mistakes of a file are told.
const mostMistakes = 100

// err joins the mistakes in the order of the file; nil if there are none.
func (d *document) err() error {
	slices.SortStableFunc(d.mistakes, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	var all []error
	for i, e := range d.mistakes {
		if i == mostMistakes {
			all = append(all, fmt.Errorf("%s: %d or more further mistakes are not shown", d.name, len(d.mistakes)-i+d.untold))
			break
		}
		all = append(all, e)
	}
	return errors.Join(all...)
}
