package plan

import (
	"errors"
	"io"
	"testing"
)

// damage changes parts of a plan as the bytes say, with any value a field can have.
func damage(p *Plan, data []byte) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		v := data[0]
		data = data[1:]
		return int(v)
	}
	// Half the values are small, so that many edits stay close to what makes sense.
	value := func() int {
		v := next()
		if v < 192 {
			return v % 8
		}
		return (v - 224) * 1_000_003
	}
	pick := func(n int) int { return next() % max(n, 1) }
	for range 8 {
		if len(data) == 0 {
			return
		}
		if len(p.Ranks) == 0 {
			return
		}
		rank := pick(len(p.Ranks))
		role := Role(pick(int(NumRoles)))
		queue := &p.Ranks[rank].Queues[role]
		if len(*queue) == 0 {
			continue
		}
		t := &(*queue)[pick(len(*queue))]
		var wait *Wait
		if len(t.Waits) > 0 {
			wait = &t.Waits[pick(len(t.Waits))]
		} else {
			wait = &Wait{}
		}
		var signal *Signal
		if len(t.Signals) > 0 {
			signal = &t.Signals[pick(len(t.Signals))]
		} else {
			signal = &Signal{}
		}
		regions := []*Region{&t.Src, &t.B, &t.Dst}
		for i := range t.Srcs {
			regions = append(regions, &t.Srcs[i])
		}
		region := regions[pick(len(regions))]
		span := []*Span{&region.Rows, &region.Cols}[pick(2)]
		ratio := []*Ratio{&span.From, &span.To}[pick(2)]
		switch next() % 32 {
		case 0:
			t.Kind = Kind(value())
		case 1:
			t.Peer = value()
		case 2:
			region.Buffer = BufferID(value())
		case 3:
			span.Dim = Dim(value())
		case 4:
			ratio.Num = uint32(value())
		case 5:
			ratio.Den = uint32(value())
		case 6:
			wait.Flag = FlagID(value())
		case 7:
			wait.Count = uint32(value())
		case 8:
			wait.Lag = uint32(value())
		case 9:
			signal.Rank = value()
		case 10:
			signal.Flag = FlagID(value())
		case 11:
			t.Waits = nil
		case 12:
			t.Signals = nil
		case 13:
			t.Waits = append(t.Waits, Wait{Flag: FlagID(value()), Count: uint32(value()), Lag: uint32(value())})
		case 14:
			t.Signals = append(t.Signals, Signal{Rank: value(), Flag: FlagID(value())})
		case 15:
			*queue = (*queue)[1:]
		case 16:
			*queue = append(*queue, *t)
		case 17:
			i, j := pick(len(*queue)), pick(len(*queue))
			(*queue)[i], (*queue)[j] = (*queue)[j], (*queue)[i]
		case 18:
			p.World.PPN[pick(len(p.World.PPN))] = value()
		case 19:
			p.Flags[pick(len(p.Flags))].Kind = FlagKind(value())
		case 20:
			b := &p.Buffers[pick(len(p.Buffers))]
			b.Kind, b.Sharded = BufferKind(value()), next()%2 == 0
		case 21:
			b := &p.Buffers[pick(len(p.Buffers))]
			b.Rows, b.Cols = Dim(value()), Dim(value())
		case 22:
			// A flag lost on both sides: only the order of things tells.
			s := *signal
			retire(p, s)
			edit(p, func(from int, t *Task) {
				for i := range t.Signals {
					if t.Signals[i] == s {
						t.Signals = append(t.Signals[:i:i], t.Signals[i+1:]...)
						break
					}
				}
			})
		case 24:
			wait.Step = uint32(value())
		case 25:
			t.Steps = uint32(value())
		case 26:
			if len(t.Srcs) > 0 {
				i := pick(len(t.Srcs))
				t.Srcs = append(t.Srcs[:i:i], t.Srcs[i+1:]...)
			}
		case 27:
			t.Srcs = append(t.Srcs, *region)
		case 28:
			b := &p.Buffers[pick(len(p.Buffers))]
			b.Elem, b.Sum, b.Shared, b.Same = Elem(value()), next()%2 == 0, next()%2 == 0, next()%2 == 0
			if len(b.Parts) > 0 {
				b.Parts[pick(len(b.Parts))] = int32(value())
			}
		case 29:
			r := &p.Results[pick(len(p.Results))]
			r.Sum, r.Partials, r.Depth, r.Inner = Sum(value()), Elem(value()), value(), next()%4 == 0
		case 30:
			r := &p.Results[pick(len(p.Results))]
			o := []*Operand{&r.A, &r.B}[pick(2)]
			for range pick(len(p.Ranks) + 2) {
				o.From = append(o.From, value())
			}
			p.Operator = "damaged"
		case 31:
			r := &p.Results[pick(len(p.Results))]
			r.A, r.B = r.B, r.A
			r.Rows, r.Cols, r.Name = Dim(value()), Dim(value()), []string{"c", "a", "d", ""}[pick(4)]
			p.Results = append(p.Results, *r)
			p.Declared = p.Declared[:pick(len(p.Declared)+1)]
		case 23:
			p.Declared = append(p.Declared, Flow{Path(value()), value(), value(), Elem(value()), *span, region.Cols})
		}
	}
}

// FuzzVerify damages plans: neither Verify nor what is offered for refused plans may panic, and a plan that is
// accepted all the same has to run well.
func FuzzVerify(f *testing.F) {
	f.Add(uint8(0), []byte{})
	f.Add(uint8(1), []byte("\x00\x01\x00\x00\x00\x00\x00\x00\x11\x02\x03"))
	f.Add(uint8(2), []byte("\x02\x02\x01\x00\x00\x00\x00\x00\x08\x01\x00\x00\x01\x02\x03\x0b"))
	f.Add(uint8(3), []byte("\x01\x00\x01\x00\x00\x00\x00\x00\x16\xff\x01\x02\x03\x04\x05\x06\x07\x08"))
	for i := range planMakers {
		f.Add(uint8(5*i+2), []byte("\x00\x03\x00\x00\x00\x03\x00\x00\x1a\x01\x00\x00\x00\x00\x00\x00\x18\x01"))
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		worlds := []World{Uniform(1, 2), Uniform(2, 1), Uniform(2, 2), {PPN: []int{1, 3}}, {PPN: []int{2, 1, 1}}}
		n := int(which) / len(worlds)
		p := planMakers[n%len(planMakers)].must(t, worlds[int(which)%len(worlds)], 1+int(which)/128)
		damage(p, data)
		err := Verify(p)
		p.Counts()
		_ = p.Dump(io.Discard, nil) // an error for kinds without a name
		edit(p, func(rank int, task *Task) {
			_ = p.Schedule(*task)
			for _, w := range task.Waits {
				_ = p.Owes(rank, w.Flag)
			}
		})
		if err != nil {
			var fault *Fault
			if !errors.As(err, &fault) || fault.Detail == "" {
				t.Fatalf("not a fault: %v", err)
			}
			return
		}
		if _, err := p.HeapBytes(Shape{M: 100, N: 10, K: 8}, 2); err != nil {
			t.Error(err)
		}
		if b, err := p.Bytes(Shape{M: 100, N: 10, K: 8}, 2); err != nil || b.Inter < b.InterMinimum {
			t.Errorf("%+v, %v", b, err)
		}
		for seed := range uint64(3) {
			if err := simulate(p, seed, 3); err != nil {
				t.Fatalf("accepted, but %v", err)
			}
		}
	})
}
