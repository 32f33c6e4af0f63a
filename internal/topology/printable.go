package topology

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Names come from files and devices that anybody may have written. A terminal obeys what is not a letter in them, a line
// break makes one row two, and a mark of direction shows another name than is there: all are made visible where
// a node is read, so that no view has to.

// printable is a text with everything that does not simply stand on a line written as an escape: \n, \x1b, \u202e.
func printable(s string) string {
	plain := func(r rune, size int) bool {
		return (r != utf8.RuneError || size > 1) && (r == ' ' || unicode.IsPrint(r))
	}
	first := 0
	for first < len(s) {
		if b := s[first]; b < utf8.RuneSelf {
			if b < ' ' || b == 0x7f {
				break
			}
			first++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[first:])
		if !plain(r, size) {
			break
		}
		first += size
	}
	if first == len(s) {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:first])
	for i := first; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case plain(r, size):
			b.WriteString(s[i : i+size])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// printable does this for all texts of a node. What is printable already is not written to: nodes may share PCI lists.
func (n *Node) printable() { makePrintable(reflect.ValueOf(n).Elem()) }

func makePrintable(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); v.CanSet() {
			if clean := printable(s); clean != s {
				v.SetString(clean)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			makePrintable(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			makePrintable(v.Field(i))
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.String || k == reflect.Struct || k == reflect.Slice || k == reflect.Pointer {
			for i := range v.Len() {
				makePrintable(v.Index(i))
			}
		}
	case reflect.Map:
		printableMap(v)
	}
}

// printableMap does it for the keys and values of a map of strings.
func printableMap(v reflect.Value) {
	if v.Type().Key().Kind() != reflect.String || v.Type().Elem().Kind() != reflect.String {
		return
	}
	for entry := v.MapRange(); entry.Next(); {
		key, value := entry.Key().String(), entry.Value().String()
		k, x := printable(key), printable(value)
		if k == key && x == value {
			continue
		}
		if k != key {
			v.SetMapIndex(entry.Key(), reflect.Value{})
		}
		v.SetMapIndex(reflect.ValueOf(k).Convert(v.Type().Key()), reflect.ValueOf(x).Convert(v.Type().Elem()))
	}
}

// longest is how much of a text is quoted in a note or an error, in bytes: an attribute may be megabytes.
const longest = 400

// cutShort is a text of at most longest bytes; what is left out is said.
func cutShort(s string) string {
	if len(s) <= longest {
		return s
	}
	const tail = 100 // what is wrong often stands behind what was quoted
	return fmt.Sprintf("%s ... (%d bytes left out) ... %s", strings.ToValidUTF8(s[:longest-tail], ""), len(s)-longest, strings.ToValidUTF8(s[len(s)-tail:], ""))
}
