package session

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// makeValid writes bytes that are no UTF-8 in the texts of a message as \x.., in place. Texts come from anywhere (a program's
// last words, file names in errors), and a message that holds such a byte could not be sent: the stream would break, and
// with it the job. What must arrive byte for byte is no text in the protocol.
func makeValid(m proto.Message) { makeValidIn(m.ProtoReflect()) }

func makeValidIn(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap(): // the protocol has none
		case field.IsList():
			list := v.List()
			for i := range list.Len() {
				switch field.Kind() {
				case protoreflect.StringKind:
					if s := list.Get(i).String(); !utf8.ValidString(s) {
						list.Set(i, protoreflect.ValueOfString(escape(s)))
					}
				case protoreflect.MessageKind:
					makeValidIn(list.Get(i).Message())
				}
			}
		case field.Kind() == protoreflect.StringKind:
			if s := v.String(); !utf8.ValidString(s) {
				m.Set(field, protoreflect.ValueOfString(escape(s)))
			}
		case field.Kind() == protoreflect.MessageKind:
			makeValidIn(v.Message())
		}
		return true
	})
}

func escape(s string) string {
	var b strings.Builder
	for i, r := range s {
		if _, size := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[i]), 16))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
