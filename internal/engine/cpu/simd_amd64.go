package cpu

import "golang.org/x/sys/cpu"

// haveAVX2 says that the functions below can run here.
var haveAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// dot3x4 computes the scalar products of three rows with four rows of n floats, n a multiple of 8:
// out[4*i+j] = ai . bj. Each product is summed in eight lanes in the order of the columns, then over the
// lanes, so its bits do not depend on its place among the twelve.
//
//go:noescape
func dot3x4(a0, a1, a2, b0, b1, b2, b3 *float32, n int, out *[12]float32)

// widenBF16 converts n elements, a multiple of 8, to fp32.
//
//go:noescape
func widenBF16(dst *float32, src *uint16, n int)
