package plan

import (
	"errors"
	"fmt"
	"slices"
)

// What one rank's part of a plan may take in binary form: 32 KB up to 16 ranks on nodes alike (2 x 8), and 4 KB for each
// rank of a larger world, since every rank has something to do for every other, or of 16 where nodes differ, since there
// one rank may pass on what is for many. The default of 4 chunks takes half of it, or all in the most uneven worlds.
const (
	smallWorld   = 16
	smallImage   = 32 << 10
	imagePerRank = 4 << 10
)

// maxImage is the most a rank's part may take in a world.
func maxImage(w World) int {
	even := !slices.ContainsFunc(w.PPN, func(ppn int) bool { return ppn != w.PPN[0] })
	if size := w.Size(); !even || size > smallWorld {
		return imagePerRank * max(size, smallWorld)
	}
	return smallImage
}

// SizeError says that a rank's part of a plan is larger than a launch takes.
type SizeError struct {
	Reason string // without what to do
	Chunks int    // the most with which it is not; 0: there is no such number
}

func (e *SizeError) Error() string {
	if e.Chunks < 1 {
		return e.Reason + "; fewer chunks do not help: take fewer ranks"
	}
	return fmt.Sprintf("%s; take at most %d", e.Reason, e.Chunks)
}

// fits returns the plan, or a SizeError. The function makes the same plan of fewer chunks.
func (p *Plan) fits(again func(chunks int) (*Plan, error)) (*Plan, error) {
	rank, most := 0, 0
	for i := range p.Ranks {
		records := 0
		for _, queue := range p.Ranks[i].Queues {
			for j := range queue {
				t := &queue[j]
				records += 4 + len(t.Waits) + len(t.Signals) + len(t.Srcs) // a task is about as long as four of the others
			}
		}
		if records > most {
			rank, most = i, records
		}
	}
	image, err := p.encodeRank(rank)
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", p.Operator, err)
	}
	if budget := maxImage(p.World); len(image) > budget {
		tooLarge := &SizeError{Reason: fmt.Sprintf("planning %s: in %d chunks per shard, rank %d's part of the plan for %v has %d bytes, and %d are the most a launch takes",
			p.Operator, p.Chunks, rank, p.World, len(image), budget)}
		// In proportion it would be so many. What does not grow with them may make it one or two fewer.
		if tooLarge.Chunks = min(p.Chunks-1, p.Chunks*budget/len(image)); tooLarge.Chunks > 0 {
			var still *SizeError
			if _, err := again(tooLarge.Chunks); errors.As(err, &still) {
				tooLarge.Chunks = still.Chunks
			}
		}
		return nil, tooLarge
	}
	return p, nil
}
