package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// distance is a pair of devices and what lies between them, in the order of their names.
type distance struct{ a, b string }

// distances are those that a matrix tells, in both directions: it has no tree from which they would follow.
func (e *Eval) distances() map[distance]Level {
	m := e.Node.Matrix
	all := map[distance]Level{}
	if m == nil {
		return all
	}
	for i, a := range m.Names {
		for j, b := range m.Names {
			l := Level(m.Level[i][j])
			if l == levelSOC {
				l = LevelSYS
			}
			if i != j && l != "" && l != LevelUnknown {
				all[distance{a, b}] = l
			}
		}
	}
	return all
}

// moved compares the distances of two matrices. Of a pair that changed, the device with more such pairs is the one that
// moved.
func moved(a, b *Eval) []Difference {
	da, db := a.distances(), b.distances()
	changed := map[string]map[string]string{} // device, other device: what changed
	put := func(x, y, what string) {
		if changed[x] == nil {
			changed[x] = map[string]string{}
		}
		changed[x][y] = what
	}
	for pair, want := range da {
		got, told := db[pair]
		if told && got != want {
			what := string(got) + " instead of " + string(want)
			put(pair.a, pair.b, what)
			put(pair.b, pair.a, what)
		}
	}
	var diffs []Difference
	for {
		most := ""
		for _, x := range slices.Sorted(maps.Keys(changed)) {
			if len(changed[x]) > len(changed[most]) {
				most = x
			}
		}
		if most == "" {
			return diffs
		}
		groups := map[string][]string{}
		for _, y := range slices.Sorted(maps.Keys(changed[most])) {
			groups[changed[most][y]] = append(groups[changed[most][y]], y)
			delete(changed[y], most)
		}
		delete(changed, most)
		var parts []string
		for _, what := range slices.Sorted(maps.Keys(groups)) {
			parts = append(parts, what+" from "+shorten(groups[what]))
		}
		diffs = append(diffs, Difference{"moved", whereOf(most), "is at " + strings.Join(parts, ", ")})
	}
}

// whereOf is how differences call a column of a matrix.
func whereOf(column string) string {
	if m := gpuName().FindStringSubmatch(column); m != nil {
		return "gpu " + m[1]
	}
	return fmt.Sprintf("nic %s", column)
}
