package launch

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

	"github.com/mkrun/mkrun/internal/ports"
)

// portLease keeps a TCP port of this host for the ranks of one job: no other job of mkrun's takes it, whoever runs
// that, and the kernel does not give it to connections, since it is outside the range for those. Nothing is bound to
// the port itself, so that rank 0 can listen there like on any other.
type portLease struct {
	port int
	lock *net.UnixListener // an abstract socket of this network namespace, gone with this process
}

const (
	firstLeasedPort = 20000 // below are ports of well-known services
	lastPort        = 65535
	firstNodePort   = 30000 // at these every host of a Kubernetes cluster answers for its services
	lastNodePort    = 32767
	portTries       = 200
)

// leasePort finds a port, within a range if one is given, on which nobody listens, at any address of this host.
func leasePort(ctx context.Context, within ports.Range) (*portLease, error) {
	if !within.Any() {
		var lease *portLease
		err := within.Try(func(port int) (err error) {
			lease, err = tryLease(ctx, port)
			return err
		})
		return lease, err
	}
	low, high := ephemeralPorts("/proc/sys/net/ipv4/ip_local_port_range")
	from := leasablePorts(low, high)
	var last error
	for range portTries {
		port := from.at(rand.IntN(from.len()))
		lease, err := tryLease(ctx, port)
		if err == nil {
			return lease, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, err
		}
		last = err
	}
	return nil, fmt.Errorf("looking for a free port: none of %d tried: %w", portTries, last)
}

// portSet is some ranges of ports.
type portSet []ports.Range

func (s portSet) len() (n int) {
	for _, r := range s {
		n += r.Last - r.First + 1
	}
	return n
}

// at is the i-th port, from 0.
func (s portSet) at(i int) int {
	for _, r := range s {
		if n := r.Last - r.First + 1; i >= n {
			i -= n
		} else {
			return r.First + i
		}
	}
	return 0
}

// leasablePorts are the ports to choose from: those outside the range for connections or, where that has them all, any.
func leasablePorts(low, high int) portSet {
	all := portSet{{First: firstLeasedPort, Last: firstNodePort - 1}, {First: lastNodePort + 1, Last: lastPort}}
	var outside portSet
	for _, r := range all {
		if below := (ports.Range{First: r.First, Last: min(r.Last, low-1)}); below.First <= below.Last {
			outside = append(outside, below)
		}
		if above := (ports.Range{First: max(r.First, high+1), Last: r.Last}); above.First <= above.Last {
			outside = append(outside, above)
		}
	}
	if outside == nil {
		return all
	}
	return outside
}

func tryLease(ctx context.Context, port int) (*portLease, error) {
	lock, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@mkrun/port/" + strconv.Itoa(port)})
	if err != nil {
		return nil, fmt.Errorf("reserving port %d: %w", port, err)
	}
	var lc net.ListenConfig
	probe, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("trying port %d: %w", port, err)
	}
	if err := probe.Close(); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("trying port %d: %w", port, err)
	}
	return &portLease{port, lock}, nil
}

// another finds another port, and lets go of this one. Where there is no other it is the same one again. On a nil lease it
// is leasePort.
func (l *portLease) another(ctx context.Context, within ports.Range) (*portLease, error) {
	next, err := leasePort(ctx, within)
	l.close()
	if err != nil && l != nil {
		return leasePort(ctx, within)
	}
	return next, err
}

func (l *portLease) close() {
	if l != nil {
		_ = l.lock.Close()
	}
}

// ephemeralPorts is the range from which the kernel takes ports for connections.
func ephemeralPorts(path string) (low, high int) {
	const usualLow, usualHigh = 32768, 60999
	data, err := os.ReadFile(path)
	fields := strings.Fields(string(data))
	if err != nil || len(fields) != 2 {
		return usualLow, usualHigh
	}
	low, errLow := strconv.Atoi(fields[0])
	high, errHigh := strconv.Atoi(fields[1])
	if errLow != nil || errHigh != nil || low < 1 || high < low || high > lastPort {
		return usualLow, usualHigh
	}
	return low, high
}
