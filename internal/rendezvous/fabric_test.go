package rendezvous

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// fabric is a network in memory. Like UDP, and unlike memberlist's own mock, it drops packets that
// nobody takes.
type fabric struct {
	mu    sync.Mutex
	ports map[string]*fabricPort
}

type fabricPort struct {
	fabric  *fabric
	addr    netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
}

func (f *fabric) port() *fabricPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ports == nil {
		f.ports = map[string]*fabricPort{}
	}
	p := &fabricPort{
		fabric:  f,
		addr:    netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(1000+len(f.ports))),
		packets: make(chan *memberlist.Packet, 1024),
		streams: make(chan net.Conn),
	}
	f.ports[p.addr.String()] = p
	return p
}

func (f *fabric) at(addr string) *fabricPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ports[addr]
}

func (p *fabricPort) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return p.addr.Addr().AsSlice(), int(p.addr.Port()), nil
}

func (p *fabricPort) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	if to := p.fabric.at(addr); to != nil {
		select {
		case to.packets <- &memberlist.Packet{Buf: slices.Clone(b), From: net.UDPAddrFromAddrPort(p.addr), Timestamp: now}:
		default:
		}
	}
	return now, nil
}

func (p *fabricPort) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to := p.fabric.at(addr)
	if to == nil {
		return nil, fmt.Errorf("nobody listens at %s", addr)
	}
	here, there := net.Pipe()
	select {
	case to.streams <- there:
		return here, nil
	case <-time.After(timeout):
		return nil, os.ErrDeadlineExceeded
	}
}

func (p *fabricPort) PacketCh() <-chan *memberlist.Packet { return p.packets }
func (p *fabricPort) StreamCh() <-chan net.Conn           { return p.streams }
func (p *fabricPort) Shutdown() error                     { return nil }
