package cpu

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

func TestPacerBooksOneAfterTheOther(t *testing.T) {
	now := time.Unix(1000, 0)
	p := pacer{perSecond: 1000}
	for i, want := range []time.Duration{time.Second, 2 * time.Second} {
		if got := p.reserve(now, 1000).Sub(now); got != want {
			t.Errorf("message %d leaves after %v, want %v", i, got, want)
		}
	}
	if got := p.reserve(now.Add(5*time.Second), 500).Sub(now); got != 5500*time.Millisecond {
		t.Errorf("after a pause the message leaves at %v", got)
	}

	// One sender at the same speed is not slowed again; a second one at the same time is.
	q := pacer{perSecond: 1000}
	if got := q.arrived(now, 1000); got != now {
		t.Errorf("a lone message was held back by %v", got.Sub(now))
	}
	if got := q.arrived(now, 1000).Sub(now); got != time.Second {
		t.Errorf("the second of two messages came after %v, want 1s", got)
	}

	if got := (&pacer{}).reserve(now, 1<<40); got != now {
		t.Errorf("an unlimited link took %v", got.Sub(now))
	}
}

func TestShufflePassesEachPieceWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		in := make(chan *piece)
		var order []int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			shuffle(in, func(p *piece) {
				if !time.Now().Equal(p.due) {
					t.Errorf("piece %d, due after %v, came after %v", p.offset, p.due.Sub(start), time.Since(start))
				}
				order = append(order, p.offset)
			}, nil)
		}()
		for i, ms := range []int{5, 1, 4, 2, 3} {
			in <- &piece{offset: int64(i), due: start.Add(time.Duration(ms) * time.Millisecond)}
		}
		close(in)
		<-done
		if want := []int64{1, 3, 4, 2, 0}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	})
}

func TestShuffleEndsOnQuit(t *testing.T) {
	quit, done := make(chan struct{}), make(chan struct{})
	in := make(chan *piece)
	go func() {
		defer close(done)
		shuffle(in, func(*piece) { t.Error("a piece passed before it was due") }, quit)
	}()
	in <- &piece{due: time.Now().Add(time.Hour)}
	close(quit)
	<-done
}

// The flag follows the last byte in place, whichever piece brings it.
func TestFlagFollowsTheLastPiece(t *testing.T) {
	j := openJob(t, agGemm(t, 1, 1, 1), small, options{})
	in := j.ranks[1].(*instance)
	l := in.net.inward[0]
	l.net = &network{in: in}
	c := l.tasks[2][0]
	size := c.dst.size()
	m := &message{to: c, epoch: 1, left: size}
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i*7 + 1)
	}
	arrived := &c.signals[0].cell.value
	for i, part := range [][2]int64{{size / 2, size}, {size / 4, size / 2}, {0, size / 4}} {
		if arrived.Load() != 0 {
			t.Fatalf("the flag was raised before piece %d", i)
		}
		l.place(&piece{msg: m, offset: part[0], data: data[part[0]:part[1]]})
	}
	if arrived.Load() != 1 {
		t.Error("the flag was not raised")
	}
	if got := bytesOf(c.dst.bits); !slices.Equal(got[:size], data) {
		t.Error("the pieces are not where they belong")
	}
}

// An emulated link is never faster than it is said to be. (How much slower is the host's business.)
func TestEmulatedLinkTakesItsTime(t *testing.T) {
	s := plan.Shape{M: 64, N: 8, K: 256}
	half := 2 * s.M / 2 * s.K // bytes each rank sends
	for _, c := range []struct {
		net  engine.Net
		want time.Duration
	}{
		{engine.Net{BandwidthGBs: 1e-3}, time.Duration(half) * time.Microsecond},
		{engine.Net{Latency: 30 * time.Millisecond}, 30 * time.Millisecond},
		{engine.Net{BandwidthGBs: 1e-3, Latency: 30 * time.Millisecond}, time.Duration(half)*time.Microsecond + 30*time.Millisecond},
	} {
		o := randomOperands(1, s, 2, engine.BF16)
		out, stats := openJob(t, agGemm(t, 1, 1, 1), s, options{net: c.net}).gather(t, s, o)
		checkProducts(t, s, engine.BF16, o, out)
		// The peer's message may have left before this rank's clock started, but only one of them can.
		if took := max(stats[0].Time, stats[1].Time); took < c.want {
			t.Errorf("%+v: a call took %v, want at least %v", c.net, took, c.want)
		}
	}
}
