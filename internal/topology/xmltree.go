package topology

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxInput and maxDepth bound what an input may cost. The own document of the largest node must fit: it lists for each GPU
// all its nearest NICs.
const (
	maxInput = 128 << 20
	maxDepth = 512
)

// ImportError says which file is wrong, where and how. Line 0 means the file as a whole.
type ImportError struct {
	File string
	Line int
	What string
}

func (e *ImportError) Error() string {
	file, what := printable(e.File), printable(cutShort(e.What))
	if e.Line == 0 {
		return file + ": " + what
	}
	return fmt.Sprintf("%s:%d: %s", file, e.Line, what)
}

// element is one XML element with the line it starts at.
type element struct {
	name     string
	attrs    map[string]string
	children []*element
	text     string
	line     int
}

// parseXML reads one document into elements.
func parseXML(file string, data []byte) (*element, error) {
	dec := xml.NewDecoder(bytes.NewReader(data))
	dec.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	var root *element
	var stack []*element
	for {
		line, _ := dec.InputPos()
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			at, _ := dec.InputPos()
			what := err.Error()
			var syntax *xml.SyntaxError
			if errors.As(err, &syntax) {
				at, what = syntax.Line, syntax.Msg
			}
			return nil, &ImportError{file, at, "the XML is broken: " + what}
		}
		switch t := tok.(type) {
		case xml.StartElement:
			if len(stack) >= maxDepth {
				return nil, &ImportError{file, line, fmt.Sprintf("elements are nested more than %d deep", maxDepth)}
			}
			e := &element{name: t.Name.Local, line: line, attrs: make(map[string]string, len(t.Attr))}
			for _, a := range t.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			switch {
			case len(stack) > 0:
				top := stack[len(stack)-1]
				top.children = append(top.children, e)
			case root != nil:
				return nil, &ImportError{file, line, "a second root element <" + e.name + ">"}
			default:
				root = e
			}
			stack = append(stack, e)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		case xml.CharData:
			if len(stack) > 0 {
				if s := strings.TrimSpace(string(t)); s != "" {
					stack[len(stack)-1].text += s + " "
				}
			}
		}
	}
	if root == nil {
		return nil, &ImportError{file, 0, "no XML element in it"}
	}
	return root, nil
}

// hex reads "0x15b3" or "15b3"; 0 if absent or broken.
func (e *element) hex(key string) int {
	v, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(strings.TrimSpace(e.attrs[key])), "0x"), 16, 32)
	if err != nil {
		return 0
	}
	return int(v)
}
