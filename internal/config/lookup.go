package config

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Query describes one launch of an operator.
type Query struct {
	Engine  string // "cpu" or "cuda"
	DType   string
	M, N, K int64
	Nodes   int
	PPN     int    // ranks per node; the most of any node where they differ
	Fabric  string // what joins the nodes; "" for one node
}

// Choice is what a lookup found.
type Choice struct {
	Settings Settings
	Source   string // the place of the entry, or "defaults"
	Why      string // for people: that it matches, or by how far it does not
	Exact    bool   // every condition of the entry holds
}

// How much farther away a condition makes an entry, in doublings of a matrix size.
const (
	worldWeight    = 2 // a doubling of nodes or ranks changes more than one of M, N or K
	dtypeDistance  = 1
	fabricDistance = 4
)

// Candidate is an entry that was looked at, and how it did.
type Candidate struct {
	Choice
	Distance   float64 // how far it is from the query, in doublings of a matrix size; 0 when it matches
	Conditions int     // what it asks for beyond its engine
	Lost       string  // by how far it lost against the first; "" for the first
	Note       string  // of its provenance
}

// Candidates returns the entries for the query's engine, the nearest first. Of those equally far away the
// one with more conditions comes first, then the one that stands first in the file.
func (o *Operator) Candidates(q Query) []Candidate {
	var list []Candidate
	for i, e := range o.entries {
		if e.Match.Engine != q.Engine {
			continue
		}
		dist, off := e.Match.distance(q)
		c := Candidate{Distance: dist, Conditions: e.Match.conditions(), Note: e.Provenance.Note}
		c.Choice = Choice{Settings: e.Use.settings(), Source: o.source(i), Why: "matches", Exact: len(off) == 0}
		if !c.Exact {
			c.Why = "nearest: " + strings.Join(off, ", ")
		}
		c.Why += "; " + e.Provenance.String()
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.Distance, b.Distance), cmp.Compare(b.Conditions, a.Conditions))
	})
	for i := range list {
		if i > 0 {
			list[i].lose(list[0])
		}
	}
	return list
}

// lose says why the first candidate is preferred to this one.
func (c *Candidate) lose(first Candidate) {
	c.Why = strings.TrimPrefix(c.Why, "nearest: ")
	switch {
	case c.Distance > first.Distance && first.Distance == 0:
		c.Lost = fmt.Sprintf("%.2f doublings away; the first matches", c.Distance)
	case c.Distance > first.Distance:
		c.Lost = fmt.Sprintf("%.2f doublings away; the first is %.2f", c.Distance, first.Distance)
	case c.Conditions < first.Conditions:
		c.Lost = fmt.Sprintf("as near, but less specific: %d conditions; the first has %d", c.Conditions, first.Conditions)
	default:
		c.Lost = "as near and as specific, but later in the file"
	}
}

// Lookup returns the entry nearest to the query, or the defaults when there is none for its engine.
func (o *Operator) Lookup(q Query) Choice {
	if list := o.Candidates(q); len(list) > 0 {
		return list[0].Choice
	}
	why := fmt.Sprintf("there is no configuration file for %s", o.Name)
	if o.File != "" {
		why = fmt.Sprintf("%s has no entry for engine %s", o.File, q.Engine)
	}
	return Choice{Source: "defaults", Why: why}
}

// source names an entry: file, number, line and name.
func (o *Operator) source(i int) string {
	s := fmt.Sprintf("%s entry %d", o.File, i+1)
	if name := o.entries[i].Name; name != "" {
		s += fmt.Sprintf(" %q", name)
	}
	return s + fmt.Sprintf(" (line %d)", o.entries[i].line)
}

// String says where the numbers of an entry come from.
func (p provenance) String() string {
	s := p.How
	if p.Date != "" {
		s += " " + p.Date
	}
	if p.On != "" {
		s += " on " + p.On
	}
	return s
}

type namedBounds struct {
	name   string
	bounds *bounds
	weight float64
	value  func(Query) int64
}

func (m *match) ranges() []namedBounds {
	return []namedBounds{
		{"m", m.M, 1, func(q Query) int64 { return q.M }},
		{"n", m.N, 1, func(q Query) int64 { return q.N }},
		{"k", m.K, 1, func(q Query) int64 { return q.K }},
		{"nodes", m.Nodes, worldWeight, func(q Query) int64 { return int64(q.Nodes) }},
		{"ppn", m.PPN, worldWeight, func(q Query) int64 { return int64(q.PPN) }},
	}
}

// conditions counts what an entry asks for beyond its engine.
func (m *match) conditions() int {
	n := min(1, len(m.DType)) + min(1, len(m.Fabric))
	for _, r := range m.ranges() {
		if r.bounds != nil {
			n++
		}
	}
	return n
}

// distance says how far a query is from the entry and by what; 0 and nothing when it matches.
func (m *match) distance(q Query) (dist float64, off []string) {
	for _, r := range m.ranges() {
		if r.bounds == nil {
			continue
		}
		if octaves := r.bounds.octavesOff(r.value(q)); octaves > 0 {
			dist += r.weight * octaves
			off = append(off, fmt.Sprintf("%s %d is outside %s", r.name, r.value(q), r.bounds))
		}
	}
	if len(m.DType) > 0 && !slices.Contains(m.DType, q.DType) {
		dist += dtypeDistance
		off = append(off, fmt.Sprintf("dtype %s is not %s", q.DType, strings.Join(m.DType, " or ")))
	}
	if len(m.Fabric) > 0 && !slices.Contains(m.Fabric, q.Fabric) {
		dist += fabricDistance
		fabric := q.Fabric
		if fabric == "" {
			fabric = "none (one node)"
		}
		off = append(off, fmt.Sprintf("fabric %s is not %s", fabric, strings.Join(m.Fabric, " or ")))
	}
	return dist, off
}

// octavesOff is how often v must be doubled or halved to come into the range.
func (b *bounds) octavesOff(v int64) float64 {
	v = max(v, 1)
	switch {
	case b.Min != nil && v < *b.Min:
		return math.Log2(float64(*b.Min) / float64(v))
	case b.Max != nil && v > *b.Max:
		return math.Log2(float64(v) / float64(*b.Max))
	}
	return 0
}

// String writes the range as people do: 1..4096, 4096.. or ..64.
func (b *bounds) String() string {
	var s strings.Builder
	if b.Min != nil {
		fmt.Fprint(&s, *b.Min)
	}
	s.WriteString("..")
	if b.Max != nil {
		fmt.Fprint(&s, *b.Max)
	}
	return s.String()
}

// ambiguous reports whether some query matches both entries with nothing to tell them apart, and names one.
func (m *match) ambiguous(other match) (example string, yes bool) {
	if m.Engine != other.Engine || m.conditions() != other.conditions() {
		return "", false
	}
	if !common(m.DType, other.DType) || !common(m.Fabric, other.Fabric) {
		return "", false
	}
	at := both("dtype", m.DType, other.DType)
	at = append(at, both("fabric", m.Fabric, other.Fabric)...)
	others := other.ranges()
	for i, r := range m.ranges() {
		if !r.bounds.meets(others[i].bounds) {
			return "", false
		}
		if r.bounds != nil || others[i].bounds != nil {
			at = append(at, fmt.Sprintf("%s %d", r.name, max(r.bounds.least(), others[i].bounds.least())))
		}
	}
	if len(at) == 0 {
		return "every shape and world", true
	}
	return "such as " + strings.Join(at, ", "), true
}

// least is the smallest value of a range; nil stands for all values.
func (b *bounds) least() int64 {
	if b == nil || b.Min == nil {
		return 1
	}
	return *b.Min
}

// both names a value that two lists share, nothing if neither asks for any.
func both(name string, a, b []string) []string {
	if len(a) == 0 {
		a = b
	}
	for _, v := range a {
		if len(b) == 0 || slices.Contains(b, v) {
			return []string{name + " " + v}
		}
	}
	return nil
}

// common reports whether two lists share a value; an empty list stands for all values.
func common(a, b []string) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	return slices.ContainsFunc(a, func(v string) bool { return slices.Contains(b, v) })
}

// meets reports whether two ranges share a value; nil stands for all values.
func (b *bounds) meets(o *bounds) bool {
	if b == nil || o == nil {
		return true
	}
	below := func(x, y *bounds) bool { return x.Max != nil && y.Min != nil && *x.Max < *y.Min }
	return !below(b, o) && !below(o, b)
}

// Fabrics lists what may join nodes.
func Fabrics() []string { return slices.Clone(knownFabrics) }
