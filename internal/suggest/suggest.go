// Package suggest finds the name that a mistyped one was probably meant to be.
package suggest

import (
	"cmp"
	"slices"
	"strings"
)

// Nearest returns up to limit of the known names that are close enough to name to be offered as
// "did you mean", nearest first. Letter case does not count.
func Nearest(name string, known []string, limit int) []string {
	type match struct {
		name string
		dist int
	}
	typed := strings.ToLower(name)
	// A third of the letters wrong is a typing error; more is another word.
	bound := max(1, len(typed)/3)
	var matches []match
	for _, k := range known {
		lower := strings.ToLower(k)
		dist := distance(typed, lower)
		if dist > bound && len(typed) >= 3 && strings.HasPrefix(lower, typed) {
			dist = bound // a beginning that was not typed to its end
		}
		if dist <= bound {
			matches = append(matches, match{k, dist})
		}
	}
	slices.SortStableFunc(matches, func(a, b match) int { // of equally near ones the shortest
		return cmp.Or(cmp.Compare(a.dist, b.dist), cmp.Compare(len(a.name), len(b.name)))
	})
	names := make([]string, 0, limit)
	for _, m := range matches[:min(limit, len(matches))] {
		names = append(names, m.name)
	}
	return names
}

// DidYouMean is the sentence to append to an error about an unknown name: "" when no known name
// is near, else ` (did you mean "a" or "b"?)`.
func DidYouMean(name string, known []string) string {
	names := Nearest(name, known, 3)
	if len(names) == 0 {
		return ""
	}
	for i, n := range names {
		names[i] = `"` + n + `"`
	}
	return " (did you mean " + strings.Join(names, " or ") + "?)"
}

// distance is the number of insertions, deletions, substitutions and swaps of neighbours that
// turn a into b (optimal string alignment), in bytes: names are ASCII.
func distance(a, b string) int {
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}
