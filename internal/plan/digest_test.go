package plan

import (
	"bytes"
	"testing"
)

// Plans that differ anywhere have different digests; the same plan made twice has the same.
func TestDigestTellsPlansApart(t *testing.T) {
	p := planMakers[1].must(t, Uniform(2, 2), 1)
	want, err := p.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := planMakers[1].must(t, Uniform(2, 2), 1).Digest(); err != nil || !bytes.Equal(want, again) {
		t.Errorf("made again: %x, %v", again, err)
	}
	for what, change := range map[string]func(q *Plan){
		"a wait":           func(q *Plan) { q.Ranks[3].Queues[RoleReduce][0].Waits = nil },
		"a source":         func(q *Plan) { q.Ranks[2].Queues[RoleReduce][0].Srcs[0].Cols = Part(DimN, 0, 2) },
		"a flag's name":    func(q *Plan) { q.Flags[0].Name = "other" },
		"a result":         func(q *Plan) { q.Results[0].Partials = ElemFP32 },
		"declared traffic": func(q *Plan) { q.Declared[0].Elem = ElemFP32 },
		"a buffer's name":  func(q *Plan) { q.Buffers[0].Name = "x" },
		"the world": func(q *Plan) {
			q.World = Uniform(1, 4)
			edit(q, func(_ int, t *Task) { t.Kind = Notify; *t = Task{Kind: Notify} })
		},
		"the algorithm":     func(q *Plan) { q.Algorithm = "other" },
		"a part in a slot":  func(q *Plan) { q.Buffers[len(q.Buffers)-1].Parts = nil },
		"a task's peer":     func(q *Plan) { q.Ranks[1].Queues[RoleCompute][0].Peer ^= 1 },
		"a queue's order":   func(q *Plan) { c := q.Ranks[0].Queues[RoleCompute]; c[0], c[1] = c[1], c[0] },
		"the second chunks": func(q *Plan) { q.Chunks++ },
	} {
		q := clone(p)
		change(q)
		if got, err := q.Digest(); err == nil && bytes.Equal(got, want) {
			t.Errorf("%s: the same digest", what)
		}
	}
	q := clone(p)
	q.Ranks[0].Queues[RoleCompute][0].Kind = 99
	if _, err := q.Digest(); err == nil {
		t.Error("a task of no kind has a digest")
	}
}
