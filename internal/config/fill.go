package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/mkrun/mkrun/internal/suggest"
)

// fill writes the document into the struct that v points to, by its yaml tags, and notes what does not fit: unknown
// and repeated keys, and values of the wrong kind, which are left out.
func (d *document) fill(v any) {
	if d.body != nil {
		d.value("$", d.body, reflect.ValueOf(v).Elem())
	}
}

// value writes a node into v and reports whether it fitted.
func (d *document) value(path string, node ast.Node, v reflect.Value) bool {
	d.at[path] = start(node)
	switch v.Kind() {
	case reflect.Pointer:
		inner := reflect.New(v.Type().Elem())
		if !d.value(path, node, inner.Elem()) {
			return false
		}
		v.Set(inner)
		return true
	case reflect.Struct, reflect.Map:
		pairs, ok := pairsOf(node)
		if !ok {
			break
		}
		if v.Kind() == reflect.Map {
			d.mapping(path, pairs, v)
		} else {
			d.object(path, pairs, v)
		}
		return true
	case reflect.Slice:
		list, ok := node.(*ast.SequenceNode)
		if !ok {
			break
		}
		v.Set(reflect.MakeSlice(v.Type(), len(list.Values), len(list.Values)))
		for i, item := range list.Values {
			d.value(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i))
		}
		return true
	default:
		if octal(node) {
			d.mistake(path, "%s begins with a zero, which YAML reads as octal: leave the zero out", node.GetToken().Value)
			return false
		}
		if scalar(node, v) {
			return true
		}
	}
	d.mistake(path, "want %s, found %s", kindName(v.Type()), describe(node))
	return false
}

// octal reports whether a number is written so that people and YAML read it differently: 065 is 53.
func octal(node ast.Node) bool {
	if _, ok := node.(*ast.IntegerNode); !ok {
		return false
	}
	text := strings.TrimLeft(node.GetToken().Value, "+-")
	return len(text) > 1 && text[0] == '0' && (text[1] == '_' || text[1] >= '0' && text[1] <= '9')
}

// scalar writes a text or a number into v and reports whether it is one of its kind.
func scalar(node ast.Node, v reflect.Value) bool {
	switch n := node.(type) {
	case *ast.StringNode:
		if v.Kind() == reflect.String {
			v.SetString(n.Value)
			return true
		}
	case *ast.LiteralNode:
		if v.Kind() == reflect.String {
			v.SetString(n.Value.Value)
			return true
		}
	case *ast.IntegerNode:
		var whole int64
		switch x := n.Value.(type) {
		case int64:
			whole = x
		case uint64:
			if x > math.MaxInt64 {
				return false
			}
			whole = int64(x)
		default:
			return false
		}
		switch v.Kind() {
		case reflect.Int, reflect.Int64:
			v.SetInt(whole)
			return true
		case reflect.Float64:
			v.SetFloat(float64(whole))
			return true
		}
	case *ast.FloatNode:
		if v.Kind() == reflect.Float64 {
			v.SetFloat(n.Value)
			return true
		}
	}
	return false
}

// pairsOf are the keys and values of a mapping.
func pairsOf(node ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// each goes through a mapping, and notes keys that are there twice: the first one counts.
func (d *document) each(path string, pairs []*ast.MappingValueNode, do func(key string, pair *ast.MappingValueNode)) {
	lines := make(map[string]int)
	for _, pair := range pairs {
		key := pair.Key.GetToken().Value
		at := start(pair.Key)
		if line, twice := lines[key]; twice {
			d.note(at, "key %q is here a second time; the first is in line %d", key, line)
			continue
		}
		lines[key] = at.line
		do(key, pair)
	}
}

// object writes a mapping into a struct.
func (d *document) object(path string, pairs []*ast.MappingValueNode, v reflect.Value) {
	fields := make(map[string]int)
	var known []string
	for i := range v.NumField() {
		if key := v.Type().Field(i).Tag.Get("yaml"); key != "" {
			fields[key] = i
			known = append(known, key)
		}
	}
	var meant []string // by keys that are not known
	d.each(path, pairs, func(key string, pair *ast.MappingValueNode) {
		if i, ok := fields[key]; ok {
			d.value(path+"."+key, pair.Value, v.Field(i))
			return
		}
		hint := suggest.DidYouMean(key, known)
		if hint == "" {
			hint = "; known: " + strings.Join(known, ", ")
		}
		d.note(start(pair.Key), "unknown key %q%s", key, hint)
		meant = append(meant, suggest.Nearest(key, known, 1)...)
	})
	for _, key := range meant {
		if _, there := d.at[path+"."+key]; !there {
			d.touch(path + "." + key) // that it is missing need not be said, too
		}
	}
}

// mapping writes a mapping into a map from texts.
func (d *document) mapping(path string, pairs []*ast.MappingValueNode, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	d.each(path, pairs, func(key string, pair *ast.MappingValueNode) {
		item := reflect.New(v.Type().Elem()).Elem()
		if d.value(path+"."+key, pair.Value, item) {
			v.SetMapIndex(reflect.ValueOf(key), item)
		}
	})
}

// kindName says what a Go type is called in a YAML file.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a text"
	case reflect.Slice:
		return "a list"
	default:
		return "a mapping of keys to values"
	}
}

// isOf reports whether the document's schema is the wanted one. Of a file that has another, nothing else is told: what
// its keys mean is not known.
func (d *document) isOf(schema, wanted string) bool {
	if schema != "" && schema != wanted {
		d.mistakes = nil
		d.untold = 0
		clear(d.touched)
		clear(d.above)
	}
	if schema != wanted {
		rest := ""
		if schema != "" {
			rest = "; nothing else of the file was looked at"
		}
		d.mistake("$.schema", "schema is %q, want %s%s", schema, wanted, rest)
	}
	return schema == "" || schema == wanted
}

// schemaOf is the value of the document's schema key, "" if it has none.
func (d *document) schemaOf() string {
	pairs, _ := pairsOf(d.body)
	i := slices.IndexFunc(pairs, func(p *ast.MappingValueNode) bool { return p.Key.GetToken().Value == "schema" })
	if i < 0 {
		return ""
	}
	text, _ := pairs[i].Value.(*ast.StringNode)
	if text == nil {
		return ""
	}
	return text.Value
}
