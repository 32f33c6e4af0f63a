package engine

import (
	"math"
	"testing"
)

func widen1(d DType, b uint16) float32 {
	var f [1]float32
	d.Widen(f[:], []uint16{b})
	return f[0]
}

func narrow1(d DType, f float32) uint16 {
	var b [1]uint16
	d.Narrow(b[:], []float32{f})
	return b[0]
}

// Every element survives the way to fp32 and back; every midpoint between neighbours goes to the
// even one and everything beside it to the nearer one.
func TestConversionsAreExact(t *testing.T) {
	for _, d := range []DType{BF16, FP16} {
		for i := range 1 << 16 {
			b := uint16(i)
			f := widen1(d, b)
			if f != f {
				if back := widen1(d, narrow1(d, f)); back == back {
					t.Fatalf("%v %#x: NaN became %v", d, b, back)
				}
				continue
			}
			if back := narrow1(d, f); back != b {
				t.Fatalf("%v %#x: became %#x by way of %v", d, b, back, f)
			}
			if b&0x8000 != 0 {
				continue
			}
			next := widen1(d, b+1)
			if math.IsInf(float64(f), 0) || math.IsInf(float64(next), 0) || next != next {
				continue
			}
			mid := float32((float64(f) + float64(next)) / 2)
			even := b + b&1
			if got := narrow1(d, mid); got != even {
				t.Fatalf("%v: midpoint %v of %#x and %#x became %#x, want %#x", d, mid, b, b+1, got, even)
			}
			below, above := math.Nextafter32(mid, 0), math.Nextafter32(mid, math.MaxFloat32)
			if float32(below) > f && narrow1(d, below) != b || float32(above) < next && narrow1(d, above) != b+1 {
				t.Fatalf("%v: values beside midpoint %v of %#x were not rounded to the nearer neighbour", d, mid, b)
			}
		}
	}
}

func TestHalfAgainstItsDefinition(t *testing.T) {
	for i := range 1 << 15 {
		exp, frac := i>>10, float64(i&0x3ff)
		want := math.Ldexp(1+frac/1024, exp-15)
		if exp == 0 {
			want = math.Ldexp(frac/1024, -14)
		}
		if exp == 31 {
			continue
		}
		if got := widen1(FP16, uint16(i)); float64(got) != want {
			t.Fatalf("%#x is %v, want %v", i, got, want)
		}
	}
	for _, c := range []struct {
		f    float32
		want uint16
	}{{65504, 0x7bff}, {65519, 0x7bff}, {65520, 0x7c00}, {-70000, 0xfc00}, {float32(math.Inf(1)), 0x7c00}, {0x1p-25, 0}, {0x1.8p-25, 1}} {
		if got := narrow1(FP16, c.f); got != c.want {
			t.Errorf("%v became %#x, want %#x", c.f, got, c.want)
		}
	}
	if got := narrow1(BF16, math.MaxFloat32); got != 0x7f80 {
		t.Errorf("the largest float became %#x, want infinity", got)
	}
}
