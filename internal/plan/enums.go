package plan

import (
	"fmt"
	"strconv"
)

// The small enumerations of the language read and write as words, in messages and in JSON alike.

var (
	dimNames    = [...]string{"M", "N", "K"}
	roleNames   = [...]string{"compute", "intra", "send", "reduce"}
	bufferNames = [...]string{"input", "output", "landing"}
	elemNames   = [...]string{"operand", "fp32"}
	flagNames   = [...]string{"stamp", "counter"}
	sumNames    = [...]string{"none", "of nodes", "at the owner"}
	pathNames   = [...]string{"pair", "gather mates", "scatter mates", "exchange mates", "gather rails", "scatter rails", "exchange rails"}
	kindNames   = [...]string{"copy", "send", "compute", "notify", "reduce"}
)

func enumString[T ~uint8](v T, names []string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown(" + strconv.Itoa(int(v)) + ")"
}

func enumMarshal[T ~uint8](what string, v T, names []string) ([]byte, error) {
	if int(v) >= len(names) {
		return nil, fmt.Errorf("plan: no %s has the number %d", what, v)
	}
	return []byte(names[v]), nil
}

func enumUnmarshal[T ~uint8](what string, v *T, names []string, text []byte) error {
	for i, name := range names {
		if name == string(text) {
			*v = T(i)
			return nil
		}
	}
	return fmt.Errorf("plan: unknown %s %q; known: %v", what, text, names)
}

// String is the letter of the dim, or its number if there is none.
func (d Dim) String() string { return enumString(d, dimNames[:]) }

// String is the word for the role, or its number if there is none.
func (r Role) String() string { return enumString(r, roleNames[:]) }

// String is the word for the kind, or its number if there is none.
func (k BufferKind) String() string { return enumString(k, bufferNames[:]) }

// String is the word for the type, or its number if there is none.
func (e Elem) String() string { return enumString(e, elemNames[:]) }

// String is the word for the sum, or its number if there is none.
func (s Sum) String() string { return enumString(s, sumNames[:]) }

// String is the word for the path, or its number if there is none.
func (p Path) String() string { return enumString(p, pathNames[:]) }

// String is the word for the kind, or its number if there is none.
func (k FlagKind) String() string { return enumString(k, flagNames[:]) }

// String is the word for the kind, or its number if there is none.
func (k Kind) String() string { return enumString(k, kindNames[:]) }

// MarshalText writes the dim's letter.
func (d Dim) MarshalText() ([]byte, error) { return enumMarshal("dim", d, dimNames[:]) }

// UnmarshalText reads the dim's letter.
func (d *Dim) UnmarshalText(text []byte) error {
	return enumUnmarshal("dim", d, dimNames[:], text)
}

// MarshalText writes the kind's word.
func (k BufferKind) MarshalText() ([]byte, error) {
	return enumMarshal("buffer kind", k, bufferNames[:])
}

// UnmarshalText reads the kind's word.
func (k *BufferKind) UnmarshalText(text []byte) error {
	return enumUnmarshal("buffer kind", k, bufferNames[:], text)
}

// MarshalText writes the type's word.
func (e Elem) MarshalText() ([]byte, error) { return enumMarshal("element type", e, elemNames[:]) }

// UnmarshalText reads the type's word.
func (e *Elem) UnmarshalText(text []byte) error {
	return enumUnmarshal("element type", e, elemNames[:], text)
}

// MarshalText writes the sum's word.
func (s Sum) MarshalText() ([]byte, error) { return enumMarshal("sum", s, sumNames[:]) }

// UnmarshalText reads the sum's word.
func (s *Sum) UnmarshalText(text []byte) error {
	return enumUnmarshal("sum", s, sumNames[:], text)
}

// MarshalText writes the path's word.
func (p Path) MarshalText() ([]byte, error) { return enumMarshal("path", p, pathNames[:]) }

// UnmarshalText reads the path's word.
func (p *Path) UnmarshalText(text []byte) error {
	return enumUnmarshal("path", p, pathNames[:], text)
}

// MarshalText writes the kind's word.
func (k FlagKind) MarshalText() ([]byte, error) { return enumMarshal("flag kind", k, flagNames[:]) }

// UnmarshalText reads the kind's word.
func (k *FlagKind) UnmarshalText(text []byte) error {
	return enumUnmarshal("flag kind", k, flagNames[:], text)
}

// MarshalText writes the kind's word.
func (k Kind) MarshalText() ([]byte, error) { return enumMarshal("task kind", k, kindNames[:]) }

// UnmarshalText reads the kind's word.
func (k *Kind) UnmarshalText(text []byte) error {
	return enumUnmarshal("task kind", k, kindNames[:], text)
}
