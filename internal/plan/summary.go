package plan

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Summary writes a plan for people, with the numbers it has for a shape and an element size in bytes: the
// world, what each rank does, what crosses which links, and the first tasks of each role of rank 0 in words.
func Summary(w io.Writer, p *Plan, s Shape, elemSize int64) error {
	moved, err := p.Bytes(s, elemSize)
	if err != nil {
		return err
	}
	heap, err := p.HeapBytes(s, elemSize)
	if err != nil {
		return err
	}
	var b strings.Builder
	counts := p.Counts()
	fmt.Fprintf(&b, "plan      %s, %s, chunks per shard: %d\n", p.Operator, p.Algorithm, p.Chunks)
	fmt.Fprintf(&b, "world     %v\n", p.World)
	for _, r := range p.Results {
		fmt.Fprintf(&b, "result    %v\n", r)
	}
	fmt.Fprintf(&b, "shape     M=%d N=%d K=%d, %d bytes per element\n", s.M, s.N, s.K, elemSize)
	fmt.Fprintf(&b, "totals    %d segments, %d transfers, %d sums, %d notices, %d flags raised\n", counts.Segments, counts.Transfers, counts.Sums, counts.Notices, counts.Flags)
	fmt.Fprintf(&b, "heap      %s per rank: %d flags and the landing buffers\n", byteSize(heap), len(p.Flags))

	b.WriteString("\nTasks per rank\n")
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "ranks\t")
	for role := range NumRoles {
		fmt.Fprintf(table, "%v\t", role)
	}
	fmt.Fprintln(table)
	for from, rank := 0, 1; rank <= len(p.Ranks); rank++ {
		if rank < len(p.Ranks) && queueLengths(p.Ranks[rank]) == queueLengths(p.Ranks[from]) {
			continue
		}
		if from == rank-1 {
			fmt.Fprintf(table, "%d\t", from)
		} else {
			fmt.Fprintf(table, "%d-%d\t", from, rank-1)
		}
		for _, n := range queueLengths(p.Ranks[from]) {
			fmt.Fprintf(table, "%d\t", n)
		}
		fmt.Fprintln(table)
		from = rank
	}
	_ = table.Flush() // into memory: never fails

	b.WriteString("\nBytes moved, all ranks together\n")
	table = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "links\tbytes\tleast possible\tratio\t")
	fmt.Fprintf(table, "within nodes\t%s\t\t\t\n", byteSize(moved.Intra))
	ratio := "-"
	if moved.InterMinimum > 0 {
		ratio = fmt.Sprintf("%.2f", float64(moved.Inter)/float64(moved.InterMinimum))
	}
	fmt.Fprintf(table, "between nodes\t%s\t%s\t%s\t\n", byteSize(moved.Inter), byteSize(moved.InterMinimum), ratio)
	_ = table.Flush()

	const most = 4
	b.WriteString("\nRank 0 begins with\n")
	for role, queue := range p.Ranks[0].Queues {
		for i, t := range queue[:min(most, len(queue))] {
			fmt.Fprintf(&b, "  %v %d: %s\n", Role(role), i, p.Schedule(t))
		}
		if more := len(queue) - most; more > 0 {
			fmt.Fprintf(&b, "  %v: %d more\n", Role(role), more)
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the plan's summary: %w", err)
	}
	return nil
}

// String says the world in words, e.g. "2 nodes x 4 ranks" or "3 nodes of 2, 3, 1 ranks".
func (w World) String() string {
	plural := func(n int, word string) string {
		if n == 1 {
			return fmt.Sprintf("%d %s", n, word)
		}
		return fmt.Sprintf("%d %ss", n, word)
	}
	even := true
	list := make([]string, len(w.PPN))
	for i, n := range w.PPN {
		even = even && n == w.PPN[0]
		list[i] = fmt.Sprint(n)
	}
	if even && len(w.PPN) > 0 {
		return plural(len(w.PPN), "node") + " x " + plural(w.PPN[0], "rank")
	}
	return fmt.Sprintf("%s of %s ranks", plural(len(w.PPN), "node"), strings.Join(list, ", "))
}

func queueLengths(r RankPlan) (n [NumRoles]int) {
	for role, queue := range r.Queues {
		n[role] = len(queue)
	}
	return n
}

// byteSize writes bytes in binary units, exactly where they are few.
func byteSize(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n)/unit, "KMGTPE"
	for v >= unit {
		v, units = v/unit, units[1:]
	}
	return fmt.Sprintf("%.2f %ciB", v, units[0])
}
