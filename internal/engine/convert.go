package engine

import "math"

// Widen converts elements to fp32, exactly. dst must be at least as long as src.
func (d DType) Widen(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	if d == BF16 {
		for i, b := range src {
			dst[i] = math.Float32frombits(uint32(b) << 16)
		}
		return
	}
	for i, b := range src {
		dst[i] = fromHalf(b)
	}
}

// Narrow rounds fp32 values to the nearest element, ties to even; NaN stays NaN, and what is too
// large becomes infinite. dst must be at least as long as src.
func (d DType) Narrow(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	if d == BF16 {
		for i, f := range src {
			dst[i] = toBrain(f)
		}
		return
	}
	for i, f := range src {
		dst[i] = toHalf(f)
	}
}

// NaN is a quiet NaN of the type.
func (d DType) NaN() uint16 { return [...]uint16{0x7fc0, 0x7e00}[d] }

// UnitRoundoff is the largest relative error of rounding a value to the type.
func (d DType) UnitRoundoff() float64 { return [...]float64{0x1p-8, 0x1p-11}[d] }

func toBrain(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40 // quiet, so that no NaN becomes an infinity by losing its low bits
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromHalf(h uint16) float32 {
	// The exponent and fraction of a half, moved into place, are off by a factor of 2^112;
	// the product corrects it exactly, also for subnormals.
	const infinity = 0x7c00 << 13
	magnitude := uint32(h&0x7fff) << 13
	b := math.Float32bits(math.Float32frombits(magnitude) * 0x1p112)
	if magnitude >= infinity {
		b |= 0x7f800000
	}
	return math.Float32frombits(b | uint32(h&0x8000)<<16)
}

func toHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00
	case b >= 0x477ff000: // 65520, half way between the largest half and the next power of two
		return sign | 0x7c00
	case b < 0x38800000: // 2^-14: a subnormal half; the sum rounds to its step of 2^-24
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-0x3f000000)
	}
	return sign | uint16((b-112<<23+0xfff+b>>13&1)>>13)
}
