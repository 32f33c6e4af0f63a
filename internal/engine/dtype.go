package engine

import "fmt"

// DType is the element type of operands and results; products are summed in fp32.
type DType uint8

const (
	BF16 DType = iota
	FP16
)

var dtypeNames = [...]string{"bf16", "fp16"}

func (d DType) String() string {
	if int(d) < len(dtypeNames) {
		return dtypeNames[d]
	}
	return fmt.Sprintf("unknown(%d)", uint8(d))
}

// Size is the number of bytes of one element.
func (d DType) Size() int64 { return 2 }

// ParseDType reads a --dtype value.
func ParseDType(s string) (DType, error) {
	for d, name := range dtypeNames {
		if s == name {
			return DType(d), nil
		}
	}
	return 0, fmt.Errorf("unknown dtype %q; known: bf16, fp16", s)
}

// MarshalText writes the type's name.
func (d DType) MarshalText() ([]byte, error) {
	if int(d) >= len(dtypeNames) {
		return nil, fmt.Errorf("no dtype has the number %d", d)
	}
	return []byte(dtypeNames[d]), nil
}

// UnmarshalText reads the type's name.
func (d *DType) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDType(string(text))
	return err
}
