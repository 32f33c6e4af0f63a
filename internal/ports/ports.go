// Package ports keeps what a job listens on within a range, for hosts whose firewalls let nothing else through.
package ports

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Env is the variable that tells ranks the range, as FIRST-LAST.
const Env = "MKRUN_PORTS"

// Range is a range of ports; the zero value leaves the choice to the kernel.
type Range struct {
	First int `json:"first,omitempty"`
	Last  int `json:"last,omitempty"`
}

// Parse reads FIRST-LAST or FIRST:LAST; both ends belong to it.
func Parse(text string) (Range, error) {
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		first, last, ok = strings.Cut(text, ":")
	}
	if !ok {
		return Range{}, fmt.Errorf("%q is no range of ports; expected a form such as 20000-20100", text)
	}
	var r Range
	for _, end := range []struct {
		text string
		to   *int
	}{{first, &r.First}, {last, &r.Last}} {
		n, err := strconv.ParseUint(end.text, 10, 16)
		if err != nil || n == 0 {
			return Range{}, fmt.Errorf("%q: %q is not a port; ports are 1 to 65535", text, end.text)
		}
		*end.to = int(n)
	}
	if r.First > r.Last {
		return Range{}, fmt.Errorf("%q ends before it begins", text)
	}
	return r, nil
}

// OfRank is the range that a rank was told.
func OfRank() (Range, error) {
	text := os.Getenv(Env)
	if text == "" {
		return Range{}, nil
	}
	r, err := Parse(text)
	if err != nil {
		return Range{}, fmt.Errorf("%s: %w", Env, err)
	}
	return r, nil
}

// Any reports whether the kernel chooses.
func (r Range) Any() bool { return r == Range{} }

func (r Range) String() string {
	if r.Any() {
		return "any"
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Try calls open with ports of the range, from one by chance on, until it gets something else than that the port is in
// use; with port 0 if the kernel chooses.
func (r Range) Try(open func(port int) error) error {
	if r.Any() {
		return open(0)
	}
	n := r.Last - r.First + 1
	begin := rand.IntN(n)
	var last error
	for i := range n {
		if last = open(r.First + (begin+i)%n); !errors.Is(last, syscall.EADDRINUSE) {
			return last
		}
	}
	return fmt.Errorf("none of the ports %v is free: %w", r, last)
}

// Listen takes TCP connections at a host's address (all if it is ""), on a port of the range.
func (r Range) Listen(ctx context.Context, host string) (net.Listener, error) {
	var l net.Listener
	err := r.Try(func(port int) (err error) {
		var lc net.ListenConfig
		l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		return err
	})
	return l, err
}
