package sim

import (
	"fmt"
	"math"
)

// Time is a moment or a span in picoseconds: fine enough that rounding does not add up, and whole, so that what
// happens at once compares as equal.
type Time int64

// Units of Time.
const (
	Nanosecond  Time = 1000
	Microsecond      = 1000 * Nanosecond
	Millisecond      = 1000 * Microsecond
)

// Seconds is the time in seconds.
func (t Time) Seconds() float64 { return float64(t) * 1e-12 }

// Milliseconds is the time in milliseconds.
func (t Time) Milliseconds() float64 { return float64(t) * 1e-9 }

// String writes the time in ms, or in us where it is short.
func (t Time) String() string {
	if t < Millisecond/10 {
		return fmt.Sprintf("%.1f us", float64(t)*1e-6)
	}
	return fmt.Sprintf("%.3f ms", t.Milliseconds())
}

// seconds is a Time of that many seconds, rounded up so that nothing ends before it is done.
func seconds(s float64) Time { return Time(math.Ceil(s * 1e12)) }
