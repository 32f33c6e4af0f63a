//go:build !amd64

package cpu

// haveDot says that dot3x4 can run here.
const haveDot = false

func dot3x4(_, _, _, _, _, _, _ *float32, _ int, _ *[12]float32) {}
