package launch

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/mkrun/mkrun/internal/ports"
)

// A lease keeps other jobs from a port, but nobody from listening there.
func TestPortLease(t *testing.T) {
	var lease *portLease
	var err error
	port := 23456
	for ; port < 23556; port++ { // something else may use one
		if lease, err = tryLease(t.Context(), port); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if other, err := tryLease(t.Context(), port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second lease of port %d: %v, %v", port, other, err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatalf("rank 0 cannot listen at its port: %v", err)
	}
	lease.close()
	if other, err := tryLease(t.Context(), port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a lease of port %d, at which somebody listens: %v, %v", port, other, err)
	}
	_ = l.Close()
	again, err := tryLease(t.Context(), port)
	if err != nil {
		t.Errorf("port %d is free again: %v", port, err)
	}
	again.close()
}

// The ranks of the next attempt get another port, unless there is only one.
func TestAnotherPort(t *testing.T) {
	pairs := 0
	for range 20 {
		first, err := leasePort(t.Context(), ports.Range{})
		if err != nil {
			t.Fatal(err)
		}
		port := first.port
		if port == lastPort {
			first.close()
			continue
		}
		two, err := first.another(t.Context(), ports.Range{First: port, Last: port + 1})
		if err != nil {
			t.Fatal(err)
		}
		second := two.port
		one, err := two.another(t.Context(), ports.Range{First: second, Last: second})
		if err != nil {
			t.Fatal(err)
		}
		one.close()
		if one.port != second {
			t.Errorf("of port %d alone, port %d was taken", second, one.port)
		}
		if second == port+1 {
			pairs++
		} else if l, err := tryLease(t.Context(), port+1); err == nil { // else somebody else has it
			l.close()
			t.Errorf("port %d was taken again, though port %d is free", port, port+1)
		}
	}
	if pairs == 0 {
		t.Error("no two free ports beside each other")
	}
}

func TestEphemeralPorts(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string][2]int{
		"32768\t60999\n": {32768, 60999}, "1024 65535": {1024, 65535}, "": {32768, 60999}, "9 8": {32768, 60999}, "x y": {32768, 60999}, "1 70000": {32768, 60999},
	} {
		path := filepath.Join(dir, "range")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if low, high := ephemeralPorts(path); low != want[0] || high != want[1] {
			t.Errorf("%q: %d to %d, want %v", text, low, high, want)
		}
	}
	if low, high := ephemeralPorts(filepath.Join(dir, "none")); low != 32768 || high != 60999 {
		t.Errorf("without the file: %d to %d", low, high)
	}
}

func TestLeasablePorts(t *testing.T) {
	for _, tt := range []struct{ low, high, first, last, count int }{
		{32768, 60999, 20000, 65535, 10000 + 4536}, // the kernel's own choice
		{1024, 65535, 20000, 65535, 45536 - 2768},  // all are for connections: better one of those than none
		{10000, 65000, 65001, 65535, 535},
		{25000, 65535, 20000, 24999, 5000},
		{1024, 15000, 20000, 65535, 45536 - 2768},
	} {
		got := leasablePorts(tt.low, tt.high)
		if n := got.len(); n != tt.count || got.at(0) != tt.first || got.at(n-1) != tt.last {
			t.Errorf("%d to %d: %d ports from %d to %d, want %d from %d to %d", tt.low, tt.high, n, got.at(0), got.at(n-1), tt.count, tt.first, tt.last)
		}
		for i, seen := 0, map[int]bool{}; i < got.len(); i++ {
			port := got.at(i)
			inside := port >= tt.low && port <= tt.high && tt.count != 45536-2768
			if seen[port] || inside || port < firstLeasedPort || port >= firstNodePort && port <= lastNodePort {
				t.Fatalf("%d to %d: port %d", tt.low, tt.high, port)
			}
			seen[port] = true
		}
	}
}
