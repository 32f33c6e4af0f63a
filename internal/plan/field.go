package plan

// Field makes of a stamp a field of stamps, one for each block of a region, so that a reader can follow a writer block
// by block. The tasks that raise it write exactly the region, those that wait for it have it as their source; both cut
// it by the same blocks, so block i is read only after block i was written. A launch may use larger blocks, of the same
// multiple on all ranks, and an engine may take the field for one stamp that is raised when all is written.
//
// What follows for the order of tasks: a task that waits for a field *reads* behind the write of what it reads, and is
// *over* after the writer is; but its own writes may begin while the writer still works (searcher.before).
type Field struct {
	Region    Region `json:"region"`
	BlockRows uint32 `json:"block_rows"` // of the smallest block, from the region's first row on
	BlockCols uint32 `json:"block_cols"`
}

// blocks is how many rows and columns of blocks are enough for every block of the region, for all shapes of no more rows
// and columns than this one; of a flag without a field, 1 and 1.
func (f *Field) blocks(s Shape) (rows, cols int64) {
	if f == nil {
		return 1, 1
	}
	count := func(span Span, block uint32) int64 {
		// A span of a smaller dim may have one row more than the same span of a larger one: cut points are rounded down.
		size := min(span.Len(s), s.Of(span.Dim)-1) + 1
		return max(0, size-1)/int64(block) + 1
	}
	return count(f.Region.Rows, f.BlockRows), count(f.Region.Cols, f.BlockCols)
}

// covers reports whether the field is of a region.
func (f *Field) covers(r Region) bool {
	return f.Region.Buffer == r.Buffer && f.Region.Rows.same(r.Rows) && f.Region.Cols.same(r.Cols)
}

// field checks what a flag says of its field.
func (p *Plan) field(fl *Flag) *Fault {
	f := fl.Field
	if f == nil {
		return nil
	}
	switch {
	case fl.Kind != Stamp:
		return planFault(RuleStructure, "flag %q is a field of %vs; only stamps make fields", fl.Name, fl.Kind)
	case int(f.Region.Buffer) >= len(p.Buffers):
		return planFault(RuleStructure, "flag %q is a field over buffer %d, which is not there", fl.Name, f.Region.Buffer)
	}
	b := &p.Buffers[f.Region.Buffer]
	switch {
	case !f.Region.Rows.valid() || !f.Region.Cols.valid() || f.Region.Rows.Dim != b.Rows || f.Region.Cols.Dim != b.Cols:
		return planFault(RuleStructure, "flag %q is a field over no part of a %v x %v matrix", fl.Name, b.Rows, b.Cols)
	case f.BlockRows < 1 || f.BlockCols < 1 || f.BlockRows > maxBlock || f.BlockCols > maxBlock:
		return planFault(RuleStructure, "flag %q is a field of blocks of %d x %d", fl.Name, f.BlockRows, f.BlockCols)
	}
	return nil
}

// maxBlock bounds the rows and columns of a field's block.
const maxBlock = 1 << 24

// waitsForField checks a wait for a field; its flag is there.
func (v *validator) waitsForField(t *Task, w Wait, fault faultFunc) *Fault {
	f := v.p.Flags[w.Flag].Field
	switch {
	case f == nil:
		return nil
	case t.Kind != Copy && t.Kind != Send && t.Kind != Compute || !f.covers(t.Src):
		return fault(RuleFlag, "it is a field over [%v, %v] of %q, which is not what the task reads",
			f.Region.Rows, f.Region.Cols, v.p.Buffers[f.Region.Buffer].Name)
	case t.Kind == Compute && v.p.Buffers[t.B.Buffer].Kind != BufInput:
		return fault(RuleFlag, "a product that waits for a field has an input as its second operand, not %q", v.p.Buffers[t.B.Buffer].Name)
	case w.Lag != 0 || w.Step != 0:
		return fault(RuleFlag, "a task follows a field in its own epoch and from its first block on, not with lag %d and step %d", w.Lag, w.Step)
	}
	return nil
}

// raisesField checks a signal that raises a field; its flag is there.
func (v *validator) raisesField(t *Task, s Signal, fault faultFunc) *Fault {
	f := v.p.Flags[s.Flag].Field
	if f == nil || t.Kind != Notify && t.Kind != Reduce && t.Peer == s.Rank && f.covers(t.Dst) {
		return nil
	}
	return fault(RuleFlag, "it is a field over [%v, %v] of %q at rank %d, which is not what the task writes",
		f.Region.Rows, f.Region.Cols, v.p.Buffers[f.Region.Buffer].Name, s.Rank)
}
