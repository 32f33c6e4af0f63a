package topology

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// What values can be at most: beyond, they mean nothing. Several times what the largest known machines have.
const (
	maxNUMA   = 1 << 10 // Linux: MAX_NUMNODES
	maxLanes  = 32
	maxIndex  = 4096    // GPUs, devices
	maxRate   = 1e8     // Mb/s of a port
	maxGT     = 1024    // GT/s of a lane
	maxGBs    = 1 << 12 // GB/s of one link
	maxC2CMBs = 1e7
	maxSM     = 9999 // compute capability as NCCL writes it
)

// attrReader reads the attributes of XML elements. One that is there and means nothing is left out with a note, as is
// everything odd that can be done without.
type attrReader struct {
	file string
	note func(where, format string, args ...any)
}

func (r attrReader) odd(e *element, key, must string) {
	r.note(fmt.Sprintf("%s:%d", r.file, e.line), "%s=%q of <%s> left out: it is no %s", key, cutShort(e.attrs[key]), e.name, must)
}

// whole is a whole number from lo to hi; def if absent or none.
func (r attrReader) whole(e *element, key string, def, lo, hi int) int {
	text := strings.TrimSpace(e.attrs[key])
	if text == "" {
		return def
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < lo || v > hi {
		r.odd(e, key, fmt.Sprintf("number from %d to %d", lo, hi))
		return def
	}
	return v
}

// real is a number from 0 to hi; 0 if absent or none.
func (r attrReader) real(e *element, key string, hi float64) float64 {
	text := strings.TrimSpace(e.attrs[key])
	if text == "" {
		return 0
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !within(v, hi) {
		r.odd(e, key, fmt.Sprintf("number from 0 to %g", hi))
		return 0
	}
	return v
}

// speed is a PCIe speed in GT/s; 0 if absent, unknown or none.
func (r attrReader) speed(e *element, key string) float64 {
	v := parseGT(e.attrs[key])
	switch word := strings.ToLower(strings.TrimSpace(e.attrs[key])); {
	case v > 0 || word == "" || word == "0" || strings.HasPrefix(word, "0 ") || strings.HasPrefix(word, "0.0") || strings.HasPrefix(word, "unknown"):
	default:
		r.odd(e, key, "speed such as 32.0 GT/s PCIe")
	}
	return v
}

// id is a PCI vendor or device number; 0 if absent or none.
func (r attrReader) id(e *element, key string) int {
	v := e.hex(key)
	if text := strings.Trim(strings.ToLower(e.attrs[key]), " 0x"); v == 0 && text != "" || v > math.MaxUint16 {
		r.odd(e, key, "hexadecimal number of four digits")
		return 0
	}
	return v
}

// class is a PCI class; "" if absent or none.
func (r attrReader) class(e *element, key string) string {
	c := classText(e.attrs[key])
	if c == "" && strings.TrimSpace(e.attrs[key]) != "" {
		r.odd(e, key, "PCI class such as 0x030200")
	}
	return c
}

// within says whether a value is a number from 0 to hi: NaN is not.
func within(v, hi float64) bool { return v >= 0 && v <= hi }
