package hosts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/internal/count"
)

// MapBy is the order in which ranks are dealt to hosts.
type MapBy string

// The ways to deal: fill a host before the next one gets any, or one to each in turn.
const (
	Block  MapBy = "block"
	Cyclic MapBy = "cyclic"
)

// ParseMapBy reads the value of --map-by.
func ParseMapBy(s string) (MapBy, error) {
	switch m := MapBy(s); m {
	case Block, Cyclic:
		return m, nil
	}
	return "", fmt.Errorf("--map-by %q: known are block and cyclic", s)
}

// MaxRanks bounds a job.
const MaxRanks = 1 << 18

// Counts says how many ranks there are to be.
type Counts struct {
	N     int   // in all; 0: not said
	PPN   []int // per host: one number for all, or one each; nil: not said
	MapBy MapBy
}

// ParsePPN reads the value of --ppn: a number, or one for each host as in 4,3.
func ParsePPN(s string) ([]int, error) {
	var ppn []int
	for text := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 || n > MaxSlots {
			return nil, fmt.Errorf("--ppn %s: %q is not a number of ranks; give 1 to %d", s, text, MaxSlots)
		}
		ppn = append(ppn, n)
	}
	return ppn, nil
}

// Placement is which ranks run where.
type Placement struct {
	Hosts []Host  // those that got a rank, in the user's order
	Ranks [][]int // of each of these hosts, ascending
}

// PPN is the number of ranks of each host.
func (p Placement) PPN() []int {
	ppn := make([]int, len(p.Ranks))
	for i, r := range p.Ranks {
		ppn[i] = len(r)
	}
	return ppn
}

// CapacityError is a job that does not fit on its hosts.
type CapacityError struct{ msg string }

func (e *CapacityError) Error() string { return e.msg }

// haveRoom says whose room is meant.
func haveRoom(hosts int) string {
	if hosts == 1 {
		return "the host has room"
	}
	return fmt.Sprintf("the %d hosts have room", hosts)
}

const unlimited = MaxRanks + 1

// Place deals ranks to hosts. A host takes --ppn ranks, else as many as it has slots, else one, or, where
// the total is given, its equal share.
func Place(pool []Host, c Counts) (Placement, error) {
	if c.N < 0 || c.N > MaxRanks {
		return Placement{}, fmt.Errorf("-n %d: give 1 to %d ranks", c.N, MaxRanks)
	}
	if len(c.PPN) > 1 && len(c.PPN) != len(pool) {
		return Placement{}, fmt.Errorf("--ppn names %d hosts, there are %d", len(c.PPN), len(pool))
	}
	room := make([]int, len(pool))
	total := 0
	for i, h := range pool {
		switch {
		case c.PPN != nil:
			room[i] = c.PPN[min(i, len(c.PPN)-1)]
			if h.Slots > 0 && room[i] > h.Slots {
				return Placement{}, &CapacityError{fmt.Sprintf("--ppn %d: %s has %s", room[i], h.Name, count.Of(h.Slots, "slot"))}
			}
		case h.Slots > 0:
			room[i] = h.Slots
		case c.N > 0:
			room[i] = unlimited
		default:
			room[i] = 1
		}
		total += room[i]
	}
	n := c.N
	switch {
	case n == 0:
		n = total
	case n > total:
		return Placement{}, &CapacityError{fmt.Sprintf("-n %d: %s for %s", n, haveRoom(len(pool)), count.Of(total, "rank"))}
	}
	if n > MaxRanks {
		return Placement{}, &CapacityError{fmt.Sprintf("%d ranks: at most %d can be started", n, MaxRanks)}
	}
	return numberRanks(pool, deal(room, n, c.MapBy), c.MapBy), nil
}

// deal says how many ranks each host gets. Where a host has no limit of its own, all get equal shares.
func deal(room []int, n int, by MapBy) []int {
	got := make([]int, len(room))
	if by != Cyclic && !slices.Contains(room, unlimited) {
		for i := range room {
			got[i] = min(room[i], n)
			n -= got[i]
		}
		return got
	}
	for n > 0 {
		for i := range room {
			if n > 0 && got[i] < room[i] {
				got[i]++
				n--
			}
		}
	}
	return got
}

// numberRanks gives the ranks their numbers.
func numberRanks(pool []Host, got []int, by MapBy) Placement {
	var p Placement
	for i, h := range pool {
		if got[i] > 0 {
			p.Hosts = append(p.Hosts, h)
			p.Ranks = append(p.Ranks, make([]int, 0, got[i]))
		}
	}
	got = slices.DeleteFunc(slices.Clone(got), func(n int) bool { return n == 0 })
	rank := 0
	if by != Cyclic {
		for i, n := range got {
			for range n {
				p.Ranks[i] = append(p.Ranks[i], rank)
				rank++
			}
		}
		return p
	}
	for round := range slices.Max(got) {
		for i, n := range got {
			if round < n {
				p.Ranks[i] = append(p.Ranks[i], rank)
				rank++
			}
		}
	}
	return p
}

// ParseRanks reads a list of ranks such as 0,4-7 of a job with the given number of them.
func ParseRanks(s string, size int) (map[int]bool, error) {
	numbers, bad := expandNumbers(s, MaxRanks, fmt.Sprintf("%d ranks", MaxRanks))
	if bad != nil {
		return nil, fmt.Errorf("%q: %w", s, bad)
	}
	ranks := make(map[int]bool, len(numbers))
	for _, text := range numbers {
		n, err := strconv.Atoi(text)
		if err != nil || n >= size {
			return nil, fmt.Errorf("%q: there is no rank %s, only 0 to %d", s, text, size-1)
		}
		ranks[n] = true
	}
	return ranks, nil
}
