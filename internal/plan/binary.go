package plan

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
)

// The binary form of one rank's part of a plan, version 0: what a kernel needs, in tables of fixed records that can be
// read where they lie (cuda/include/mkernel_plan.h does). All numbers are little-endian, all offsets in bytes from the
// beginning and multiples of 4. Spans and regions are in tables of their own, each once, so that a launch evaluates
// every formula once. Names of flags and what is declared of the traffic stay with the plan.
const (
	binaryMagic   = 0x4c504b4d // "MKPL"
	binaryVersion = 0
	// maxBinary bounds what is decoded; far above any plan of one rank.
	maxBinary = 1 << 30
)

// section numbers the tables in the header.
type section int

const (
	secStrings section = iota // bytes; every string ends with a 0
	secNodes                  // ranks of each node
	secBuffers
	secFlags
	secSpans
	secRegions
	secSources // indices of regions
	secWaits
	secSignals
	secTasks // queue by queue
	secQueues
	numSections
)

// recordSizes are the bytes of a record in each section.
var recordSizes = [numSections]int{
	secStrings: 1, secNodes: 4, secBuffers: 16, secFlags: 16, secSpans: 20, secRegions: 12, secSources: 4,
	secWaits: 16, secSignals: 8, secTasks: 52, secQueues: 8,
}

// headerBytes are: magic, version, length, checksum of all that follows, rank, chunks, operator, algorithm; then
// (offset, count) of each section.
const headerBytes = 4*8 + 8*int(numSections)

const noRegion = math.MaxUint32

// RankImage is one rank's part of a plan, as kernels see it.
type RankImage struct {
	Operator  string
	Algorithm string
	World     World
	Rank      int
	Chunks    int
	Buffers   []Buffer // without Parts
	// Parts is, of each sharded buffer, the part of the world's that this rank holds, or -1; 0 of others.
	Parts  []int32
	Flags  []Flag // without names
	Queues [NumRoles][]Task
	// DstParts is the same as Parts, of each task's destination at the rank it is written to.
	DstParts [NumRoles][]int32
	// Spans are all the formulas there are, each once.
	Spans []Span
}

// partOf is the part of a buffer that a rank holds.
func (b *Buffer) partOf(rank int) int32 {
	switch {
	case !b.Sharded:
		return 0
	case b.Parts == nil:
		return int32(rank)
	}
	return b.Parts[rank]
}

// encoder fills the sections.
type encoder struct {
	sections [numSections][]byte
	counts   [numSections]int
	spans    map[Span]uint32
	regions  map[Region]uint32
}

func (e *encoder) put(s section, words ...uint32) uint32 {
	for _, w := range words {
		e.sections[s] = binary.LittleEndian.AppendUint32(e.sections[s], w)
	}
	e.counts[s]++
	return uint32(e.counts[s] - 1)
}

func (e *encoder) text(s string) uint32 {
	at := len(e.sections[secStrings])
	e.sections[secStrings] = append(append(e.sections[secStrings], s...), 0)
	e.counts[secStrings] = len(e.sections[secStrings])
	return uint32(at)
}

func (e *encoder) span(s Span) uint32 {
	id, ok := e.spans[s]
	if !ok {
		id = e.put(secSpans, uint32(s.Dim), s.From.Num, s.From.Den, s.To.Num, s.To.Den)
		e.spans[s] = id
	}
	return id
}

func (e *encoder) region(r Region) uint32 {
	id, ok := e.regions[r]
	if !ok {
		id = e.put(secRegions, uint32(r.Buffer), e.span(r.Rows), e.span(r.Cols))
		e.regions[r] = id
	}
	return id
}

// EncodeRank writes one rank's part of a valid plan in binary form. The error says that the plan is not valid, or that
// a name cannot be written.
func (p *Plan) EncodeRank(rank int) ([]byte, error) {
	if rank < 0 || rank >= len(p.Ranks) {
		return nil, fmt.Errorf("encoding a plan for rank %d of %d", rank, len(p.Ranks))
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("encoding a plan: %w", err)
	}
	return p.encodeRank(rank)
}

// encodeRank is EncodeRank of a plan that is known to be valid.
func (p *Plan) encodeRank(rank int) ([]byte, error) {
	e := &encoder{spans: make(map[Span]uint32), regions: make(map[Region]uint32)}
	operator, algorithm := e.text(p.Operator), e.text(p.Algorithm)
	for _, ppn := range p.World.PPN {
		e.put(secNodes, uint32(ppn))
	}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		bits := uint32(0)
		for bit, set := range []bool{b.Sharded, b.Same, b.Sum, b.Shared} {
			if set {
				bits |= 1 << bit
			}
		}
		e.put(secBuffers, e.text(b.Name), uint32(b.partOf(rank)),
			uint32(b.Kind)|uint32(b.Elem)<<8|uint32(b.Rows)<<16|uint32(b.Cols)<<24, bits)
	}
	for _, f := range p.Flags {
		region, rows, cols := uint32(noRegion), uint32(0), uint32(0)
		if f.Field != nil {
			region, rows, cols = e.region(f.Field.Region), f.Field.BlockRows, f.Field.BlockCols
		}
		e.put(secFlags, uint32(f.Kind), region, rows, cols)
	}
	for _, queue := range p.Ranks[rank].Queues {
		e.put(secQueues, uint32(e.counts[secTasks]), uint32(len(queue)))
		for i := range queue {
			e.task(p, &queue[i])
		}
	}
	return e.bytes(uint32(rank), uint32(p.Chunks), operator, algorithm)
}

func (e *encoder) task(p *Plan, t *Task) {
	dst, b, part := uint32(noRegion), uint32(noRegion), int32(0)
	if t.Kind != Notify {
		dst, part = e.region(t.Dst), p.Buffers[t.Dst.Buffer].partOf(t.Peer)
	}
	if t.Kind == Compute {
		b = e.region(t.B)
	}
	sources, waits, signals := uint32(e.counts[secSources]), uint32(e.counts[secWaits]), uint32(e.counts[secSignals])
	for _, src := range t.sources() {
		e.put(secSources, e.region(src))
	}
	for _, w := range t.Waits {
		e.put(secWaits, uint32(w.Flag), w.Count, w.Lag, w.Step)
	}
	for _, s := range t.Signals {
		e.put(secSignals, uint32(s.Rank), uint32(s.Flag))
	}
	e.put(secTasks, uint32(t.Kind), uint32(t.Peer), uint32(part), dst, b, t.Steps,
		sources, uint32(e.counts[secSources])-sources, waits, uint32(len(t.Waits)), signals, uint32(len(t.Signals)), 0)
}

func (e *encoder) bytes(rank, chunks, operator, algorithm uint32) ([]byte, error) {
	for len(e.sections[secStrings])%4 != 0 {
		e.text("")
	}
	out := make([]byte, headerBytes)
	for s, body := range e.sections {
		at := headerBytes - 8*int(numSections) + 8*s
		binary.LittleEndian.PutUint32(out[at:], uint32(len(out)))
		binary.LittleEndian.PutUint32(out[at+4:], uint32(e.counts[s]))
		out = append(out, body...)
		if len(out) > maxBinary {
			return nil, fmt.Errorf("encoding a plan: more than %d bytes for one rank", maxBinary)
		}
	}
	for i, word := range []uint32{binaryMagic, binaryVersion, uint32(len(out)), 0, rank, chunks, operator, algorithm} {
		binary.LittleEndian.PutUint32(out[4*i:], word)
	}
	seal(out)
	return out, nil
}

// seal writes the checksum of everything behind it.
func seal(image []byte) {
	binary.LittleEndian.PutUint32(image[12:], crc32.ChecksumIEEE(image[16:]))
}

// decoder reads sections that are known to lie within the image.
type decoder struct {
	image  []byte
	offset [numSections]int
	count  [numSections]int
}

// record is the words of one record.
func (d *decoder) record(s section, i int) []byte {
	size := recordSizes[s]
	return d.image[d.offset[s]+i*size:][:size]
}

func word(record []byte, i int) uint32 { return binary.LittleEndian.Uint32(record[4*i:]) }

// DecodeRank reads what EncodeRank wrote. It takes any bytes, allocates in proportion to their number, and says what
// is wrong with bytes that are no plan. What it returns has all indices in range and ratios in order, as far as one
// rank's part shows; that the plan is right only Verify of the whole can tell.
func DecodeRank(image []byte) (*RankImage, error) {
	d, err := openImage(image)
	if err != nil {
		return nil, fmt.Errorf("decoding a plan: %w", err)
	}
	r, err := d.decode()
	if err != nil {
		return nil, fmt.Errorf("decoding a plan: %w", err)
	}
	return r, nil
}

func openImage(image []byte) (*decoder, error) {
	if len(image) < headerBytes || len(image) > maxBinary {
		return nil, fmt.Errorf("%d bytes are no plan", len(image))
	}
	switch {
	case word(image, 0) != binaryMagic:
		return nil, fmt.Errorf("it begins with %#x, not with %#x", word(image, 0), uint32(binaryMagic))
	case word(image, 1) != binaryVersion:
		return nil, fmt.Errorf("it is of version %d, this reads version %d", word(image, 1), binaryVersion)
	case word(image, 2) != uint32(len(image)):
		return nil, fmt.Errorf("it says to have %d bytes and has %d", word(image, 2), len(image))
	case word(image, 3) != crc32.ChecksumIEEE(image[16:]):
		return nil, fmt.Errorf("its checksum is wrong: it was damaged on its way")
	}
	d := &decoder{image: image}
	for s := range numSections {
		at := (headerBytes-8*int(numSections))/4 + 2*int(s)
		offset, count := int64(word(image, at)), int64(word(image, at+1))
		if offset%4 != 0 || offset < int64(headerBytes) || offset+count*int64(recordSizes[s]) > int64(len(image)) {
			return nil, fmt.Errorf("section %d, %d records from byte %d, is not within its %d bytes", s, count, offset, len(image))
		}
		d.offset[s], d.count[s] = int(offset), int(count)
	}
	if n := d.count[secStrings]; n == 0 || image[d.offset[secStrings]+n-1] != 0 {
		return nil, fmt.Errorf("its last name does not end")
	}
	if d.count[secQueues] != int(NumRoles) {
		return nil, fmt.Errorf("it has %d queues, not %d", d.count[secQueues], NumRoles)
	}
	return d, nil
}

func (d *decoder) text(at uint32) (string, error) {
	n := d.count[secStrings]
	if int64(at) >= int64(n) {
		return "", fmt.Errorf("a name begins at %d of %d bytes", at, n)
	}
	bytes := d.image[d.offset[secStrings]+int(at) : d.offset[secStrings]+n]
	return string(bytes[:slices.Index(bytes, 0)]), nil
}

func (d *decoder) decode() (*RankImage, error) {
	r := &RankImage{Rank: int(word(d.image, 4)), Chunks: int(word(d.image, 5))}
	var err error
	if r.Operator, err = d.text(word(d.image, 6)); err != nil {
		return nil, err
	}
	if r.Algorithm, err = d.text(word(d.image, 7)); err != nil {
		return nil, err
	}
	for i := range d.count[secNodes] {
		r.World.PPN = append(r.World.PPN, int(word(d.record(secNodes, i), 0)))
	}
	if err := r.World.Validate(); err != nil {
		return nil, err
	}
	size := r.World.Size()
	if r.Rank >= size || r.Chunks < 1 || r.Chunks > math.MaxInt32 {
		return nil, fmt.Errorf("it is for rank %d of %d, with %d chunks", r.Rank, size, r.Chunks)
	}
	if err := d.buffers(r, size); err != nil {
		return nil, err
	}
	return r, d.tasks(r, size)
}

// flags reads the kinds of flags and their fields.
func (d *decoder) flags(r *RankImage, regions []Region) error {
	for i := range d.count[secFlags] {
		rec := d.record(secFlags, i)
		kind, region, rows, cols := word(rec, 0), word(rec, 1), word(rec, 2), word(rec, 3)
		if int64(kind) >= int64(len(flagNames)) {
			return fmt.Errorf("flag %d is of kind %d", i, kind)
		}
		f := Flag{Kind: FlagKind(kind)}
		switch {
		case region == noRegion && rows == 0 && cols == 0:
		case f.Kind != Stamp || int64(region) >= int64(len(regions)) || rows-1 >= maxBlock || cols-1 >= maxBlock:
			return fmt.Errorf("flag %d is a field of blocks of %d x %d over region %d", i, rows, cols, region)
		default:
			f.Field = &Field{Region: regions[region], BlockRows: rows, BlockCols: cols}
		}
		r.Flags = append(r.Flags, f)
	}
	return nil
}

func (d *decoder) buffers(r *RankImage, size int) error {
	if d.count[secBuffers] > maxBuffers {
		return fmt.Errorf("%d buffers are more than %d", d.count[secBuffers], maxBuffers)
	}
	for i := range d.count[secBuffers] {
		rec := d.record(secBuffers, i)
		name, err := d.text(word(rec, 0))
		if err != nil {
			return err
		}
		part, bits := int32(word(rec, 1)), word(rec, 3)
		b := Buffer{
			Name: name, Kind: BufferKind(rec[8]), Elem: Elem(rec[9]), Rows: Dim(rec[10]), Cols: Dim(rec[11]),
			Sharded: bits&1 != 0, Same: bits&2 != 0, Sum: bits&4 != 0, Shared: bits&8 != 0,
		}
		switch {
		case int(b.Kind) >= len(bufferNames) || int(b.Elem) >= len(elemNames) || b.Rows >= numDims || b.Cols >= numDims || bits > 15:
			return fmt.Errorf("buffer %d, %q, is of a kind, type or form that there is not", i, name)
		case part < -1 || int(part) >= size || !b.Sharded && part != 0:
			return fmt.Errorf("buffer %d, %q, has part %d", i, name, part)
		}
		r.Buffers, r.Parts = append(r.Buffers, b), append(r.Parts, part)
	}
	return nil
}

// regionTable reads spans and regions.
func (d *decoder) regionTable(r *RankImage) ([]Region, error) {
	for i := range d.count[secSpans] {
		rec := d.record(secSpans, i)
		s := Span{Dim: Dim(min(word(rec, 0), uint32(numDims))), From: Ratio{word(rec, 1), word(rec, 2)}, To: Ratio{word(rec, 3), word(rec, 4)}}
		if !s.valid() {
			return nil, fmt.Errorf("span %d, %v, is none", i, s)
		}
		r.Spans = append(r.Spans, s)
	}
	var regions []Region
	for i := range d.count[secRegions] {
		rec := d.record(secRegions, i)
		buffer, rows, cols := word(rec, 0), word(rec, 1), word(rec, 2)
		if int64(buffer) >= int64(len(r.Buffers)) || int64(rows) >= int64(len(r.Spans)) || int64(cols) >= int64(len(r.Spans)) {
			return nil, fmt.Errorf("region %d names buffer %d and spans %d and %d, which are not there", i, buffer, rows, cols)
		}
		g := Region{Buffer: BufferID(buffer), Rows: r.Spans[rows], Cols: r.Spans[cols]}
		if b := &r.Buffers[buffer]; g.Rows.Dim != b.Rows || g.Cols.Dim != b.Cols {
			return nil, fmt.Errorf("region %d names no part of buffer %q", i, b.Name)
		}
		regions = append(regions, g)
	}
	return regions, nil
}

func (d *decoder) tasks(r *RankImage, size int) error {
	regions, err := d.regionTable(r)
	if err != nil {
		return err
	}
	if err := d.flags(r, regions); err != nil {
		return err
	}
	sources := make([]Region, d.count[secSources])
	for i := range sources {
		id := word(d.record(secSources, i), 0)
		if int64(id) >= int64(len(regions)) {
			return fmt.Errorf("source %d is region %d, which is not there", i, id)
		}
		sources[i] = regions[id]
	}
	waits := make([]Wait, d.count[secWaits])
	for i := range waits {
		rec := d.record(secWaits, i)
		waits[i] = Wait{Flag: FlagID(word(rec, 0)), Count: word(rec, 1), Lag: word(rec, 2), Step: word(rec, 3)}
		if int64(waits[i].Flag) >= int64(len(r.Flags)) || waits[i].Count < 1 || waits[i].Lag > 1 {
			return fmt.Errorf("wait %d, %+v, means nothing", i, waits[i])
		}
	}
	signals := make([]Signal, d.count[secSignals])
	for i := range signals {
		rec := d.record(secSignals, i)
		rank, flag := word(rec, 0), word(rec, 1)
		if int64(rank) >= int64(size) || int64(flag) >= int64(len(r.Flags)) {
			return fmt.Errorf("signal %d goes to flag %d of rank %d, which is not there", i, flag, rank)
		}
		signals[i] = Signal{Rank: int(rank), Flag: FlagID(flag)}
	}
	next := uint32(0) // queues follow each other
	for role := range NumRoles {
		rec := d.record(secQueues, int(role))
		first, n := word(rec, 0), word(rec, 1)
		if first != next || int64(first)+int64(n) > int64(d.count[secTasks]) {
			return fmt.Errorf("queue %v has tasks %d and %d more", role, first, n)
		}
		next = first + n
		for i := range n {
			t, part, err := d.task(int(first+i), r, size, regions, sources, waits, signals)
			if err == nil && homes[t.Kind] != role {
				err = fmt.Errorf("a %v belongs in the %v queue", t.Kind, homes[t.Kind])
			}
			if err != nil {
				return fmt.Errorf("%v task %d: %w", role, i, err)
			}
			r.Queues[role], r.DstParts[role] = append(r.Queues[role], t), append(r.DstParts[role], part)
		}
	}
	if int(next) != d.count[secTasks] {
		return fmt.Errorf("%d tasks are in no queue", d.count[secTasks]-int(next))
	}
	return nil
}

// slice is n items from first on, or an error.
func slice[T any](what string, items []T, first, n uint32) ([]T, error) {
	if int64(first)+int64(n) > int64(len(items)) {
		return nil, fmt.Errorf("it has %s %d and %d more of %d", what, first, n, len(items))
	}
	return items[first : first+n : first+n], nil
}

func (d *decoder) task(i int, r *RankImage, size int, regions, sources []Region, waits []Wait, signals []Signal) (t Task, part int32, err error) {
	rec := d.record(secTasks, i)
	kind, peer, dst, b := word(rec, 0), word(rec, 1), word(rec, 3), word(rec, 4)
	part = int32(word(rec, 2))
	if int64(kind) >= int64(len(kindNames)) || int64(peer) >= int64(size) || word(rec, 12) != 0 {
		return t, 0, fmt.Errorf("kind %d with rank %d", kind, peer)
	}
	t = Task{Kind: Kind(kind), Peer: int(peer), Steps: word(rec, 5)}
	srcs, err := slice("sources", sources, word(rec, 6), word(rec, 7))
	if err != nil {
		return t, 0, err
	}
	if t.Waits, err = slice("waits", waits, word(rec, 8), word(rec, 9)); err != nil {
		return t, 0, err
	}
	if t.Signals, err = slice("signals", signals, word(rec, 10), word(rec, 11)); err != nil {
		return t, 0, err
	}
	for _, w := range t.Waits {
		if w.Step > 0 && w.Step >= t.Steps {
			return t, 0, fmt.Errorf("a gate stands before step %d of %d", w.Step, t.Steps)
		}
	}
	switch {
	case t.Kind == Notify && (dst != noRegion || len(srcs) != 0) || t.Kind != Notify && int64(dst) >= int64(len(regions)):
		return t, 0, fmt.Errorf("a %v has destination %d", t.Kind, dst)
	case t.Kind == Compute && int64(b) >= int64(len(regions)) || t.Kind != Compute && b != noRegion:
		return t, 0, fmt.Errorf("a %v has second operand %d", t.Kind, b)
	case t.Kind == Reduce && len(srcs) == 0 || t.Kind != Reduce && t.Kind != Notify && len(srcs) != 1:
		return t, 0, fmt.Errorf("a %v has %d sources", t.Kind, len(srcs))
	}
	switch t.Kind {
	case Notify:
		return t, part, nil
	case Reduce:
		t.Srcs = srcs
	case Compute:
		t.Src, t.B = srcs[0], regions[b]
	case Copy, Send:
		t.Src = srcs[0]
	}
	t.Dst = regions[dst]
	if buffer := &r.Buffers[t.Dst.Buffer]; part < 0 || int(part) >= size || !buffer.Sharded && part != 0 {
		return t, 0, fmt.Errorf("it writes to part %d of %q", part, buffer.Name)
	}
	return t, part, nil
}
