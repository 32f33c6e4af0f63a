package operator

import (
	"math/rand/v2"
	"testing"
)

// randomTrial is the input of a random trial.
func randomTrial(r *rand.Rand) []byte {
	b := make([]byte, trialSize)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	if r.IntN(3) == 0 { // few rows for many ranks
		b[atM] = byte(r.IntN(4))
	}
	if r.IntN(4) == 0 {
		b[atK] = 0
	}
	return b
}

// Other trials in every run of the tests. One that fails is kept by adding its bytes to testdata/fuzz.
func TestRandomWorldsAndShapes(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range sampled {
		input := randomTrial(r)
		if err := decode(input).check(t, nil); err != nil {
			t.Errorf("seed %d, trial %d, []byte(%q): %v", seed, i, input, err)
		}
	}
}

// FuzzWorldsAndShapes looks for an operator, a world, a shape and settings under which ranks hang, or get a wrong
// result or other bits: go test -run=- -fuzz=FuzzWorldsAndShapes -fuzzminimizetime=1x -parallel=1. (What is new to the
// coverage depends on the order of things, so there is little to minimise; and an input may not take longer than 10 s,
// which is short if many run at once.) An input that hangs says where when it is run as a test, when its wait ends.
func FuzzWorldsAndShapes(f *testing.F) {
	f.Fuzz(func(t *testing.T, input []byte) {
		if err := decode(input).check(t, nil); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkEveryWorld runs every operator on every world of up to 4 nodes of up to 4 ranks, each with a shape and
// settings drawn at random: go test -run=- -bench=EveryWorld -benchtime=1x.
func BenchmarkEveryWorld(b *testing.B) {
	seed := uint64(1)
	for b.Loop() {
		r := rand.New(rand.NewPCG(seed, 1))
		seed++
		trials := 0
		for nodes := range 4 {
			for world := range 1 << (2 * (nodes + 1)) {
				for op := range variants {
					input := randomTrial(r)
					input[atOperator], input[atNodes] = byte(op), byte(nodes)
					for node := range nodes + 1 {
						input[atNodes+1+node] = byte(world >> (2 * node) & 3)
					}
					if err := decode(input).check(b, nil); err != nil {
						b.Errorf("[]byte(%q): %v", input, err)
					}
					trials++
				}
			}
		}
		b.ReportMetric(float64(trials), "trials/op")
	}
}
