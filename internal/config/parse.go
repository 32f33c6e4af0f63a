package config

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/mkrun/mkrun/internal/pattern"
)

// Limits of a file, far above any that people or mkrun tune write, and low enough that any file is refused or read in
// well under a second.
const (
	maxFile   = 512 << 10 // bytes
	maxLine   = 4 << 10   // bytes
	maxTokens = 32 << 10  // words, numbers and marks: some 500 entries. The YAML library's time grows with their square
	maxDepth  = 24        // of lists and mappings within each other
)

// readFile reads a file of at most maxFile bytes, from whatever can be read.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	return data, nil
}

// parse reads a text of exactly one YAML document, without looking at what it says. What is wrong with its form is
// among the mistakes; then there is no body.
func parse(name string, data []byte) *document {
	d := &document{name: name, at: make(map[string]position), touched: make(map[string]bool), above: make(map[string]bool)}
	if len(data) > maxFile {
		d.note(position{1, 1}, "the file has more than %d KiB; configuration files are small", maxFile>>10)
		return d
	}
	text := strings.TrimPrefix(string(data), "\ufeff") // a mark that some editors put in front of UTF-8
	d.lines = strings.Split(text, "\n")
	for i, line := range d.lines {
		if len(line) > maxLine {
			d.note(position{i + 1, 1}, "the line has %d bytes; at most %d are read", len(line), maxLine)
		}
	}
	if len(d.mistakes) > 0 {
		return d
	}
	tokens := lexer.Tokenize(text)
	if d.scan(tokens); len(d.mistakes) > 0 {
		return d
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.syntax(err)
		return d
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc.Body)
		}
	}
	switch len(bodies) {
	case 0:
		d.note(position{1, 1}, "the file is empty; want exactly one YAML document")
	case 1:
		d.body = bodies[0]
	default:
		d.note(start(bodies[1]), "a second document begins here; want exactly one")
	}
	return d
}

// scan refuses, before anything is built from them, tokens that are too many or of no use here, and nesting that is too
// deep.
func (d *document) scan(tokens token.Tokens) {
	flow := 0         // open [ and {
	var columns []int // of the lists and mappings that are open, outside of those
	open := func(tk *token.Token) {
		columns = append(columns, tk.Position.Column)
	}
	count := 0
	var before *token.Token // the one before, but for comments
	for i, tk := range tokens {
		if tk.Type == token.CollectEntryType && flow > 0 && nothingBefore(before) {
			d.note(place(tk), "a comma with nothing in front of it")
		}
		if tk.Type != token.CommentType {
			count++
			before = tk
		}
		switch tk.Type {
		case token.AnchorType, token.AliasType, token.TagType, token.MergeKeyType, token.MappingKeyType, token.DirectiveType:
			d.note(place(tk), "%q is YAML that is not read here (anchors, aliases, tags, merged and complex keys, directives): write the value out", tk.Value)
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			if flow--; flow < 0 {
				d.note(place(tk), "a %s without its %s", tk.Value, map[string]string{"]": "[", "}": "{"}[tk.Value])
				return
			}
		case token.SequenceEntryType, token.MappingValueType:
			if flow > 0 {
				break
			}
			if tk.Type == token.MappingValueType && i > 0 {
				tk = tokens[i-1] // the key
			}
			for len(columns) > 0 && columns[len(columns)-1] >= tk.Position.Column {
				columns = columns[:len(columns)-1]
			}
			open(tk)
		}
		if count > maxTokens {
			d.note(place(tk), "the file goes on with more than the %d words, numbers and marks that are read", maxTokens)
			return
		}
		if flow+len(columns) > maxDepth {
			d.note(place(tk), "more than %d lists and mappings within each other", maxDepth)
			return
		}
		if len(d.mistakes) > mostMistakes {
			return
		}
	}
}

// nothingBefore reports whether nothing stands between the token before a comma and the comma.
func nothingBefore(tk *token.Token) bool {
	return tk != nil && slices.Contains([]token.Type{token.CollectEntryType, token.SequenceStartType, token.MappingStartType}, tk.Type)
}

// place is where a token stands.
func place(tk *token.Token) position {
	if tk == nil || tk.Position == nil {
		return position{1, 1}
	}
	return position{tk.Position.Line, tk.Position.Column}
}

// syntaxWords say in our words what the YAML library finds wrong, by a part of what it says.
var syntaxWords = []struct{ theirs, ours string }{
	{"-quoted text", "a quoted text without its closing quote"},
	{"'\t'", "a tab; YAML is indented with spaces"},
	{"tab character", "a tab; YAML is indented with spaces"},
	{"sequence end token", "a list [...] without its closing ]"},
	{"or ']'", "a list [...] in which a comma or the closing ] is missing"},
	{"flow mapping end", "a mapping {...} without its closing }"},
	{"flow map content", "a mapping {...} without its closing }"},
	{"or '}'", "a mapping {...} in which a comma or the closing } is missing"},
	{"non-map value", "a line without a colon where a key and its value should be"},
	{"key-value delimiter", "a key without a colon behind it"},
	{"mapping value is not allowed", "a second colon in this line, or a line that is indented too far"},
	{"pre-defined", "a line that is indented too far: the line above has a value already"},
}

// syntax notes where a text stops being YAML.
func (d *document) syntax(err error) {
	const otherwise = "this cannot be read as YAML; look at indentation, colons, quotes and brackets here and in the line above"
	var ye yaml.Error
	if !errors.As(err, &ye) {
		d.note(position{1, 1}, otherwise)
		return
	}
	for _, w := range syntaxWords {
		if strings.Contains(ye.GetMessage(), w.theirs) {
			d.note(place(ye.GetToken()), "%s", w.ours)
			return
		}
	}
	d.note(place(ye.GetToken()), otherwise)
}

// start is where a node begins. The token of a mapping is the colon of its first key.
func start(node ast.Node) position {
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
	return place(node.GetToken())
}

// number is what people mean as a whole number; what the YAML library takes for a text is out of its range.
var number = pattern.Of(`^[-+]?(0[xob][0-9a-fA-F_]+|[0-9][0-9_]*)$`)

const outOfRange = "a whole number that is out of range"

// describe says what a value is, for people.
func describe(node ast.Node) string {
	switch n := node.(type) {
	case *ast.NullNode:
		return "nothing"
	case *ast.IntegerNode:
		if x, large := n.Value.(uint64); large && x > math.MaxInt64 {
			return outOfRange
		}
		return "a whole number"
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number that is not whole"
	case *ast.BoolNode:
		return fmt.Sprint(n.Value)
	case *ast.StringNode:
		if tk := n.GetToken(); tk != nil && tk.Type == token.StringType && number().MatchString(n.Value) {
			return outOfRange
		}
		return "a text"
	case *ast.LiteralNode:
		return "a text"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping of keys to values"
	}
	return "something else"
}
