package operator

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
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

var everyWorld = flag.Bool("every", false, "run every operator on every world of up to 4 nodes of up to 4 ranks, not on a few of them")

// Every operator on every world of up to 4 nodes of up to 4 ranks, even and uneven, each with a small shape and settings
// drawn at random: go test ./internal/operator -run EveryWorld -v -args -every. Without the flag, on a few of them, others
// each time.
func TestEveryWorld(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	trials, began := 0, time.Now()
	for nodes := range 4 {
		for world := range 1 << (2 * (nodes + 1)) {
			for op := range variants {
				input := randomTrial(r)
				if !*everyWorld && r.IntN(len(variants)*340) >= sampled {
					continue
				}
				input[atOperator], input[atNodes] = byte(op), byte(nodes)
				for node := range nodes + 1 {
					input[atNodes+1+node] = byte(world >> (2 * node) & 3)
				}
				// Small, so that the whole ends in minutes: rows for some ranks and none for others, and no slow network.
				input[atM], input[atN], input[atK], input[atNet], input[atCalls] = input[atM]%40, input[atN]%9, input[atK]%3, 0, input[atCalls]%5
				if err := decode(input).check(t, nil); err != nil {
					t.Errorf("seed %d, []byte(%q): %v", seed, input, err)
				}
				trials++
			}
		}
	}
	t.Logf("%d trials in %v", trials, time.Since(began).Round(time.Second))
}
