package plan

import (
	"cmp"
	"slices"
)

// corner is a product of two cut points, of one dim and another (or the same). A volume is the sum of four of these,
// (to - from) * (to' - from'), and the inner cut points of neighbours cancel. So two sums of volumes are equal at every
// shape if they have the same corners as often. (Unequal ones may still agree everywhere, since rounding down obeys a few
// more laws; the author of a plan then has to declare its traffic with the cut points it uses.)
type corner struct {
	kind uint64 // the elements' type, the dims and the second cut point
	cut  int32  // the first
	n    int32
}

// link checks what crosses one link at a time: the corners of what is moved there less those of what is declared.
type link struct {
	g       *graph
	corners []corner
	left    []int32 // by cut point, all 0 between uses
}

func (l *link) add(times int32, elem Elem, rows, cols Span) {
	if cols.Dim < rows.Dim {
		rows, cols = cols, rows
	}
	r0, r1 := l.g.cuts.span(rows)
	c0, c1 := l.g.cuts.span(cols)
	one := func(n, a, b int32) {
		if a == 0 || b == 0 {
			return // the cut point at 0
		}
		if rows.Dim == cols.Dim && b < a {
			a, b = b, a
		}
		l.corners = append(l.corners, corner{uint64(elem)<<48 | uint64(rows.Dim)<<40 | uint64(cols.Dim)<<32 | uint64(b), a, n})
	}
	one(times, r1, c1)
	one(-times, r0, c1)
	one(-times, r1, c0)
	one(times, r0, c0)
}

// settled reports whether all corners cancel, and forgets them.
func (l *link) settled() bool {
	all := l.corners
	if slices.ContainsFunc(all, func(c corner) bool { return c.kind != all[0].kind }) {
		slices.SortFunc(all, func(a, b corner) int { return cmp.Compare(a.kind, b.kind) })
	}
	ok := true
	for len(all) > 0 {
		n := 0
		for ; n < len(all) && all[n].kind == all[0].kind; n++ {
			for int(all[n].cut) >= len(l.left) {
				l.left = append(l.left, 0)
			}
			l.left[all[n].cut] += all[n].n
		}
		for _, c := range all[:n] {
			ok = ok && l.left[c.cut] == 0
		}
		for _, c := range all[:n] {
			l.left[c.cut] = 0
		}
		all = all[n:]
	}
	l.corners = l.corners[:0]
	return ok
}

// checkTraffic holds what the tasks move over each link against what is declared.
func (g *graph) checkTraffic() *Fault {
	places := newPlaces(g.p.World)
	return g.eachRank(func() func(rank int) *Fault {
		l := &link{g: g}
		moved, declared := make([][]Volume, len(g.p.Ranks)), make([][]Volume, len(g.p.Ranks)) // by receiver
		return func(rank int) *Fault {
			for to := range moved {
				moved[to], declared[to] = moved[to][:0], declared[to][:0]
			}
			for _, queue := range g.p.Ranks[rank].Queues {
				for i := range queue {
					if t := &queue[i]; t.Peer != rank {
						moved[t.Peer] = append(moved[t.Peer], Volume{1, g.p.Buffers[t.Dst.Buffer].Elem, t.Dst.Rows, t.Dst.Cols})
					}
				}
			}
			g.p.Declared.from(&places, rank, func(to int, v Volume) { declared[to] = append(declared[to], v) })
			for to := range moved {
				for _, v := range moved[to] {
					l.add(1, v.Elem, v.Rows, v.Cols)
				}
				for _, v := range declared[to] {
					l.add(-1, v.Elem, v.Rows, v.Cols)
				}
				if !l.settled() {
					s := Shape{M: 10007, N: 1009, K: 2003} // primes, so that no rounding hides a difference
					f := planFault(RuleTraffic, "what goes from rank %d to rank %d is not what is declared: at M=%d N=%d K=%d tasks move %d elements, declared are %d (they may be of other types)",
						rank, to, s.M, s.N, s.K, Elements(moved[to], s), Elements(declared[to], s))
					f.Rank = rank
					return f
				}
			}
			return nil
		}
	})
}
