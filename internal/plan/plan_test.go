package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mkrun/mkrun/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

func TestRatioCutsLoseNothing(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 16, 511} {
		for _, size := range []int64{0, 1, 2, 5, 16, 10007, math.MaxInt64 / 2} {
			var sum, before int64
			for i := range n {
				from, to := Part(DimM, i, n).At(Shape{M: size})
				if from != before || to < from || to-from > size/int64(n)+1 {
					t.Fatalf("part %d of %d of %d is [%d, %d), after %d", i, n, size, from, to, before)
				}
				sum += to - from
				before = to
			}
			if sum != size {
				t.Errorf("%d parts of %d sum to %d", n, size, sum)
			}
		}
	}
}

func TestRails(t *testing.T) {
	w := World{PPN: []int{2, 3, 1}}
	for _, c := range []struct {
		rank, node, want int
	}{{0, 1, 2}, {1, 1, 3}, {2, 0, 0}, {3, 0, 1}, {4, 0, 0}, {4, 2, 5}, {5, 1, 2}} {
		if got := w.Rail(c.rank, c.node); got != c.want {
			t.Errorf("rail partner of rank %d on node %d is %d, want %d", c.rank, c.node, got, c.want)
		}
		if !w.OnRail(c.rank, c.want) || !w.OnRail(c.want, c.rank) {
			t.Errorf("ranks %d and %d are not on one rail", c.rank, c.want)
		}
	}
	if w.OnRail(1, 4) {
		t.Error("ranks 1 and 4 are on one rail")
	}
}

func TestHeapAndTrafficBytes(t *testing.T) {
	p := mustAG(t, Uniform(2, 2), 2)
	s := Shape{M: 2048, N: 1024, K: 1024}
	heap, err := p.HeapBytes(s, 2)
	// Of the flags, 8 are fields: 256 rows and one more are 3 blocks, 1024 columns 16.
	if want := int64(len(p.Flags)-8+8*3*16)*8 + 2048*1024*2; err != nil || heap != want {
		t.Errorf("heap is %d (%v), want %d", heap, err, want)
	}
	moved, err := p.Bytes(s, 2)
	const a = 2048 * 1024 * 2
	if want := (Bytes{Intra: 2 * a, Inter: a, InterMinimum: a}); err != nil || moved != want {
		t.Errorf("moved %+v (%v), want %+v", moved, err, want)
	}
	for _, huge := range []Shape{{math.MaxInt64, 1, 8}, {1 << 40, 1, 1 << 40}, {1 << 32, 1, 1 << 30}} {
		if n, err := p.HeapBytes(huge, 2); err == nil {
			t.Errorf("heap of %+v is %d", huge, n)
		}
		if n, err := p.Bytes(huge, 2); err == nil {
			t.Errorf("traffic of %+v is %+v", huge, n)
		}
	}
	if n, err := p.HeapBytes(Shape{}, 2); err != nil || n != int64(len(p.Flags))*8 {
		t.Errorf("heap of the empty shape is %d, %v", n, err)
	}
	p.Buffers[agGathered].Sharded = true
	if n, err := p.HeapBytes(Shape{M: 5, K: 8}, 2); err != nil || n != int64(len(p.Flags))*8+2*8*2 {
		t.Errorf("heap with a sharded landing buffer of 5 rows is %d, %v", n, err)
	}
}

// The traffic declared is the traffic of the tasks, and the least there can be, at shapes with tails, too.
func TestDeclaredTrafficAtShapes(t *testing.T) {
	for _, ppn := range [][]int{{1}, {5}, {1, 1}, {2, 2}, {2, 3, 1}} {
		p := mustAG(t, World{PPN: ppn}, 3)
		nodes, ranks := int64(len(ppn)), int64(len(p.Ranks))
		for _, s := range []Shape{{}, {1, 1, 8}, {7, 3, 8}, {97, 13, 24}, {1024, 64, 64}} {
			var intra, inter int64
			edit(p, func(_ int, task *Task) {
				switch task.Kind {
				case Copy:
					intra += task.Dst.Elements(s)
				case Send:
					inter += task.Src.Elements(s)
				}
			})
			within, between := p.Declared.Totals(p.World)
			if got := Elements(within, s); got != intra || got != (ranks-nodes)*s.M*s.K {
				t.Errorf("%v %+v: declared %d within nodes, moved %d", p.World, s, got, intra)
			}
			if got := Elements(between, s); got != inter || got != (nodes-1)*s.M*s.K {
				t.Errorf("%v %+v: declared %d between nodes, moved %d", p.World, s, got, inter)
			}
		}
	}
}

func TestCounts(t *testing.T) {
	for _, c := range []struct {
		ppn    []int
		chunks int
		want   Counts
	}{
		{[]int{1}, 3, Counts{Segments: 3}},
		// Arrivals: 3 shards at 4 ranks. Free: at the owner and at the gateway. Read: at gateways. Credits: one per sender.
		{[]int{2, 2}, 1, Counts{Segments: 16, Transfers: 4 + 4 + 4, Notices: 4, Flags: 12 + 8 + 4 + 4}},
		{[]int{1, 1, 1}, 2, Counts{Segments: 18, Transfers: 12, Notices: 12, Flags: 12 + 12 + 12}},
	} {
		if got := mustAG(t, World{PPN: c.ppn}, c.chunks).Counts(); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.ppn, got, c.want)
		}
	}
}

func TestSummaryGolden(t *testing.T) {
	var b bytes.Buffer
	if err := Summary(&b, mustAG(t, Uniform(2, 2), 2), Shape{M: 2048, N: 1024, K: 1024}, 2); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "ag_gemm_2x2.txt")
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("summary differs from %s (rewrite it with -update if that is meant):\n%s", golden, diff)
	}
}

func TestSummaryOfAbsurdShape(t *testing.T) {
	p := mustAG(t, Uniform(2, 2), 1)
	for _, s := range []Shape{{M: math.MaxInt64, N: 1, K: 8}, {M: 1 << 31, N: 1, K: 1 << 30}} {
		var b bytes.Buffer
		if err := Summary(&b, p, s, 2); err == nil || b.Len() > 0 {
			t.Errorf("%+v: %v, and wrote %q", s, err, b.String())
		}
	}
}

func TestWorldsInWords(t *testing.T) {
	for want, w := range map[string]World{
		"1 node x 1 rank":          Uniform(1, 1),
		"2 nodes x 8 ranks":        Uniform(2, 8),
		"3 nodes of 2, 3, 1 ranks": {PPN: []int{2, 3, 1}},
	} {
		if w.String() != want {
			t.Errorf("%q, want %q", w, want)
		}
	}
}

func TestDumpReadsBack(t *testing.T) {
	p := mustAG(t, World{PPN: []int{2, 1}}, 2)
	var b bytes.Buffer
	if err := p.Dump(&b, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"operator":"ag_gemm"`, `"kind":"landing"`, `"kind":"counter"`, `{"queues":{"compute":[`, `"kind":"copy"`, `"dim":"K"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the dump has no %s", want)
		}
	}
	var q Plan
	if err := json.Unmarshal(b.Bytes(), &q); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, &q, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("read back it differs:\n%s", diff)
	}
	if err := Verify(&q); err != nil {
		t.Error(err)
	}
	bad := strings.Replace(b.String(), `"compute":[`, `"coffee":[`, 1)
	if err := json.Unmarshal([]byte(bad), new(Plan)); err == nil || !strings.Contains(err.Error(), "coffee") {
		t.Errorf("a plan with an unknown role was read: %v", err)
	}
	q.Ranks[0].Queues[RoleCompute][0].Kind = 77
	if err := q.Dump(&b, nil); err == nil {
		t.Error("a task of no kind was written")
	}
}

func TestOwes(t *testing.T) {
	p := mustAG(t, Uniform(2, 6), 1)
	flagID := func(name string) FlagID {
		for i, f := range p.Flags {
			if f.Name == name {
				return FlagID(i)
			}
		}
		t.Fatalf("no flag %q", name)
		return 0
	}
	for _, c := range []struct {
		rank  int
		flag  string
		want  []string
		ranks []int
	}{
		{1, "arrived shard 0 chunk 0", []string{"rank 0 intra task 0 (copy a[M 0/12..1/12, all K] to gathered of rank 1)"}, []int{0}},
		{6, "landed shard 0 chunk 0", []string{"rank 0 send task 0 (send a[M 0/12..1/12, all K] to gathered of rank 6)"}, []int{0}},
		{0, "arrived shard 0 chunk 0", []string{"nobody"}, nil},
		{0, "free shard 0 chunk 0", []string{"rank 1 compute task", "rank 4 compute task", ", 1 more"}, []int{1, 2, 3, 4, 5}},
		{0, "credit node 1 chunk 0", []string{`rank 6 send task 1 (notify rank 0 of "credit node 1 chunk 0")`}, []int{6}},
	} {
		got := p.Owes(c.rank, flagID(c.flag))
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("rank %d %s: owed by %q, want %q", c.rank, c.flag, got, want)
			}
		}
		if owing := p.Owing(c.rank, flagID(c.flag)); !slices.Equal(owing, c.ranks) {
			t.Errorf("rank %d %s: owed by ranks %v, want %v", c.rank, c.flag, owing, c.ranks)
		}
	}
}

func TestAGGemmRefusesNonsense(t *testing.T) {
	for _, c := range []struct {
		w      World
		chunks int
		want   string
	}{
		{World{}, 1, "at least one node"},
		{World{PPN: []int{2, 0}}, 1, "node 1 has 0 ranks"},
		{Uniform(1, 1), 0, "0 chunks"},
		{Uniform(1, 1), -3, "-3 chunks"},
		{Uniform(1, 1), 1 << 30, "chunks"},
		{Uniform(512, 8), 64, "fewer chunks"},
		{World{PPN: []int{1 << 40}}, 1, "more than 1048576 ranks"},
		{World{PPN: []int{1 << 62, 1 << 62, 1 << 62, 1<<62 + 4}}, 1, "more than 1048576 ranks"},
	} {
		if _, err := AGGemm(c.w, c.chunks); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v chunks %d: %v, want %q", c.w.PPN, c.chunks, err, c.want)
		}
	}
}

// What a newcomer sees first is what is local; what is expected last is computed last.
func TestAGGemmOrders(t *testing.T) {
	p := mustAG(t, Uniform(3, 2), 1)
	shardOf := func(task Task) int { return int(task.Src.Rows.From.Num) }
	var shards, peers []int
	for _, task := range p.Ranks[2].Queues[RoleCompute] { // node 1, local rank 0
		shards = append(shards, shardOf(task))
	}
	for _, task := range p.Ranks[2].Queues[RoleSend] {
		if task.Kind == Send {
			peers = append(peers, task.Peer)
		}
	}
	if diff := cmp.Diff([]int{2, 3, 4, 5, 0, 1}, shards); diff != "" {
		t.Errorf("order of segments:\n%s", diff)
	}
	if diff := cmp.Diff([]int{0, 4}, peers); diff != "" {
		t.Errorf("order of sends:\n%s", diff)
	}
	// At each step every rank is sent to by one other.
	for step := range 2 {
		seen := make(map[int]bool)
		for rank := range p.Ranks {
			peer := p.Ranks[rank].Queues[RoleSend][step].Peer
			if seen[peer] {
				t.Errorf("step %d: two ranks send to rank %d", step, peer)
			}
			seen[peer] = true
		}
	}
}

func TestVerifyWorlds(t *testing.T) {
	worlds := []World{Uniform(1, 1), Uniform(1, 8), Uniform(8, 1), Uniform(2, 8), {PPN: []int{1, 8}}, {PPN: []int{8, 1}}, {PPN: []int{7, 3, 5}}, {PPN: []int{1, 2, 3, 4, 5}}}
	rng := rand.New(rand.NewPCG(1, 2))
	n := 12
	if testing.Short() {
		n = 4
	}
	for range n {
		w := World{PPN: make([]int, 1+rng.IntN(8))}
		for i := range w.PPN {
			w.PPN[i] = 1 + rng.IntN(8)
		}
		worlds = append(worlds, w)
	}
	for _, w := range worlds {
		chunks := 1 + rng.IntN(3)
		if err := Verify(mustAG(t, w, chunks)); err != nil {
			t.Errorf("%v, %d chunks: %v", w, chunks, err)
		}
	}
}

// The fault is typed and says where: the first things one wants to know.
func TestFaultNamesThePlace(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(p *Plan)
		rule   Rule
		want   []string
	}{
		{"credit not waited for", func(p *Plan) {
			p.Ranks[0].Queues[RoleIntra][1].Waits = nil
			p.Ranks[1].Queues[RoleCompute][3].Signals = nil
		}, RuleOrder,
			[]string{"rank 0 intra task 1", `buffer "gathered"`, "overwrites", "at rank 1", "rank 1 compute task 3", "epoch before"}},
		{"arrival not waited for", func(p *Plan) { p.Ranks[0].Queues[RoleIntra][2].Waits = p.Ranks[0].Queues[RoleIntra][2].Waits[1:] }, RuleOrder,
			[]string{"rank 0 intra task 2", "rank 2 send task 0", "may not have written"}},
		{"arrival of this epoch as credit", func(p *Plan) { p.Ranks[1].Queues[RoleIntra][0].Waits[0].Lag = 0 }, RuleProgress,
			[]string{"waits for itself", "free shard 1 chunk 0", "arrived shard 1 chunk 0"}},
		{"notice before the sends", func(p *Plan) {
			for r := range p.Ranks {
				q := p.Ranks[r].Queues[RoleSend]
				p.Ranks[r].Queues[RoleSend] = append(append([]Task{}, q[2:]...), q[:2]...)
			}
		}, RuleProgress, []string{"stands behind"}},
		{"segment missing", func(p *Plan) { p.Ranks[3].Queues[RoleCompute] = p.Ranks[3].Queues[RoleCompute][1:] }, RuleOutput,
			[]string{"rank 3", `buffer "c"`, "no task writes", "c[M 3/4..7/8, all N]"}},
		{"count", func(p *Plan) { p.Ranks[2].Queues[RoleSend][2].Waits[0].Count = 3 }, RuleFlag,
			[]string{"rank 2 send task 2", "waits for 3 signals per epoch; there are 2"}},
		{"rail", func(p *Plan) { p.Ranks[1].Queues[RoleSend][0].Peer = 2 }, RuleLink,
			[]string{"rank 1 send task 0", "not on one rail", "rank 1 sends to rank 3"}},
		{"traffic", func(p *Plan) { p.Declared = append(p.Declared, p.Declared[1]) }, RuleTraffic, []string{"rank 0", "from rank 0 to rank 2", "5009503 elements, declared are 10019006"}},
	} {
		p := mustAG(t, Uniform(2, 2), 2)
		c.damage(p)
		err := Verify(p)
		var f *Fault
		if !errors.As(err, &f) || f.Rule != c.rule {
			t.Errorf("%s: %v, want rule %q", c.name, err, c.rule)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", c.name, err, want)
			}
		}
	}
}
