package session

import "fmt"

// collective counts ranks into rounds: round r is done when every rank has entered it, and no rank
// can be in round r+1 before that. Rounds count from 1.
type collective struct {
	what    string // for errors
	done    uint64 // rounds
	entered []bool // by rank, into round done+1
	count   int
}

func newCollective(what string, ranks int) *collective {
	return &collective{what: what, entered: make([]bool, ranks)}
}

// enter reports whether the round is now done.
func (c *collective) enter(rank int32, round uint64) (done bool, err error) {
	switch {
	case rank < 0 || int(rank) >= len(c.entered):
		return false, fmt.Errorf("rank %d entered a %s, but the job has ranks 0 to %d", rank, c.what, len(c.entered)-1)
	case round != c.done+1:
		return false, fmt.Errorf("rank %d entered %s %d while %s %d is in progress", rank, c.what, round, c.what, c.done+1)
	case c.entered[rank]:
		return false, fmt.Errorf("rank %d entered %s %d twice", rank, c.what, round)
	}
	c.entered[rank] = true
	if c.count++; c.count < len(c.entered) {
		return false, nil
	}
	clear(c.entered)
	c.count = 0
	c.done++
	return true, nil
}

// awaits reports whether others wait for a rank.
func (c *collective) awaits(rank int) bool { return c.count > 0 && !c.entered[rank] }

// missing lists the ranks that have not entered the round in progress, or nil if none has.
func (c *collective) missing() []int {
	if c.count == 0 {
		return nil
	}
	var ranks []int
	for rank, in := range c.entered {
		if !in {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}
