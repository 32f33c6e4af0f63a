package keeper

import (
	"testing"
	"time"
)

// A keeper that works is not replaced while it may only be slow; one that does nothing, or is stopped, is.
func TestGivenUp(t *testing.T) {
	const patience = time.Second
	for _, tt := range []struct {
		stopped, works bool
		late           time.Duration
		want           bool
	}{
		{works: true, late: -time.Nanosecond, want: false},
		{works: false, late: -time.Nanosecond, want: false},
		{works: false, late: 0, want: true},
		{works: true, late: 0, want: false},
		{works: true, late: 3*patience - 1, want: false},
		{works: true, late: 3 * patience, want: true},
		{stopped: true, works: true, late: -time.Hour, want: true},
	} {
		if got := givenUp(tt.stopped, tt.late, patience, func() bool { return tt.works }); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// Time counts from the last look at which fewer were left: many processes may take long to go, one after the other.
func TestStall(t *testing.T) {
	var s stall
	begun := time.Now()
	for _, look := range []struct{ at, left, want int }{{0, 5, 0}, {4, 5, 4}, {5, 4, 0}, {9, 4, 4}, {10, 6, 5}, {11, 4, 6}, {12, 3, 0}, {13, 3, 1}} {
		if got := s.sees(look.left, begun.Add(time.Duration(look.at)*time.Second)); got != time.Duration(look.want)*time.Second {
			t.Errorf("%d left after %d s: nothing has gone for %v, want %d s", look.left, look.at, got, look.want)
		}
	}
}
