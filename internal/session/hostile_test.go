package session

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// heap is the number of bytes in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Strangers who send garbage, too much, or nothing at all to the head's port cost little and stop nobody.
func TestHostileBytes(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	attack(t, r.addr, func() {
		if link := r.mustDial(0); link.Err() != nil {
			t.Error(link.Err())
		}
	})
}

// attack sends what strangers might send to a port, and wants that they cost a few KiB each while they are there, and
// that a member still gets in.
func attack(t *testing.T, address string, member func()) {
	t.Helper()
	noise := make([]byte, 1<<20)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(noise)
	hugeRecord := append([]byte{22, 3, 1, 0xff, 0xff}, noise...)                           // a TLS record of 64 KiB
	slowRecord := append([]byte{22, 3, 1, 0x3f, 0xff}, noise[:16<<10-10]...)               // the largest that is legal, but for its end
	hugeHello := append([]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, noise[:16<<10]...) // a client hello of 16 MiB
	plainHTTP2 := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), noise...)
	var pieces []byte // a client hello of 60 KiB, in records of 4 KiB, that does not end
	for i := range 14 {
		body := make([]byte, 4<<10)
		if i == 0 {
			copy(body, []byte{1, 0, 0xf0, 0})
		}
		pieces = append(append(pieces, 22, 3, 1, 0x10, 0), body...)
	}
	attacks := map[string][]byte{
		"noise": noise, "huge record": hugeRecord, "slow record": slowRecord, "huge hello": hugeHello, "hello in pieces": pieces, "plain HTTP/2": plainHTTP2,
		"HTTP/1": []byte("GET / HTTP/1.1\r\n\r\n"), "zeros": make([]byte, 1<<20), "one byte": {22}, "nothing": {},
	}
	const each = 16
	before := heap()
	var open []net.Conn
	for name, data := range attacks {
		for range each {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			open = append(open, conn)
			_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
			_, _ = conn.Write(data) // whoever listens may have closed it by now
		}
	}
	member()
	grown := int64(0)
	for range 20 { // whoever listens reads as it likes: what counts is the most it ever held
		grown = max(grown, heap()-before)
	}
	runtime.KeepAlive(attacks)
	if grown > int64(len(open))*strangerBytes {
		t.Errorf("%d strangers hold %d KiB, %.1f each", len(open), grown>>10, float64(grown)/1024/float64(len(open)))
	} else {
		t.Logf("%d strangers hold %d KiB", len(open), grown>>10)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
}

// strangerBytes bounds what one stranger may cost.
const strangerBytes = 12 << 10

// Members are trusted, but a broken one may not take the head down either.
func TestHostileMember(t *testing.T) {
	for name, data := range map[string][]byte{
		"noise":   bytes.Repeat([]byte("noise "), 10_000),
		"preface": append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), bytes.Repeat([]byte{0xff}, 10_000)...),
		"silence": nil,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, HeadConfig{Nodes: 1})
			config, err := tlsConfig(r.secret, testJob, Identity{RoleAgent, 0})
			if err != nil {
				t.Fatal(err)
			}
			conn, err := tls.Dial("tcp", r.addr, config)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write(data)
			if data != nil { // the head hangs up
				_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
					t.Error("the head keeps listening to nonsense")
				}
			}
			r.mustDial(0)
		})
	}
}

// Too many strangers at once are turned away, so that they cannot use up memory and descriptors; a
// member gets in as soon as there is room.
func TestCrowdOfStrangers(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	gate := r.head.gate
	var crowd []net.Conn
	for range strangers {
		here, there := net.Pipe()
		crowd = append(crowd, here)
		if !gate.enter(there) {
			t.Fatal("turned away too early")
		}
		go gate.admit(there)
	}
	one, more := net.Pipe()
	defer one.Close()
	defer more.Close()
	if gate.enter(more) {
		t.Error("one too many was let in")
		go gate.admit(more)
	}
	for _, conn := range crowd {
		_ = conn.Close()
	}
	r.mustDial(0)
}

// closing is a connection whose end is told.
type closing struct {
	net.Conn
	done func()
}

func (c closing) Close() error {
	defer c.done()
	return c.Conn.Close()
}

// Several addresses: those that are dead, and those where somebody else listens, do not matter.
func TestDialFindsTheParent(t *testing.T) {
	r, other := newRig(t, HeadConfig{Nodes: 1}), newRig(t, HeadConfig{Nodes: 1})
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	cfg := r.agentConfig(0)
	cfg.Parents = []string{"127.0.0.1:1", other.addr, deaf.Addr().String(), r.addr}
	if _, err := r.dial(cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Parents = []string{"127.0.0.1:1", other.addr}
	ctx, cancel := context.WithCancel(t.Context()) // when both addresses have been tried
	defer cancel()
	var tried sync.WaitGroup
	tried.Add(len(cfg.Parents))
	var first sync.Once
	cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := dialTCP(ctx, address)
		if err != nil {
			first.Do(tried.Done)
			return nil, err
		}
		return closing{conn, tried.Done}, nil
	}
	go func() { tried.Wait(); cancel() }()
	_, err = Dial(ctx, cfg)
	for _, want := range []string{"node 0 (host) cannot reach its parent", "127.0.0.1:1: ", "refused", other.addr + ": ", errStranger.Error()} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// A parent that takes long to answer gets more time with each attempt, instead of being greeted anew for ever.
func TestAttemptsGetLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, err := tlsConfig(NewSecret(), testJob, Identity{RoleAgent, 0})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		var at []time.Duration
		_, err = dialUntil(ctx, func(context.Context, string) (net.Conn, error) {
			at = append(at, time.Since(begin).Truncate(time.Second))
			ours, _ := net.Pipe() // nobody reads
			return ours, nil
		}, "busy", config)
		if want := []time.Duration{0, 5 * time.Second, 15 * time.Second, 35 * time.Second, 55 * time.Second}; !slices.Equal(at, want) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("attempts at %v, %v; want them at %v", at, err, want)
		}
	})
}

// An owner that does not read holds the output back in the agent; nothing is lost, nobody counts as
// silent, and the other direction works meanwhile.
func TestBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := bubble(t, HeadConfig{Nodes: 1})
		links, _ := r.job(1)
		const total = 32 << 20
		want := make([]byte, total)
		_, _ = rand.NewChaCha8([32]byte{2}).Read(want)
		sent := make(chan error, 1)
		go func() {
			for off := 0; off < total; off += 1 << 20 { // longer than one message may be: Send splits
				m := &pb.FromAgent{Kind: &pb.FromAgent_Output{Output: &pb.Output{Rank: 0, Stream: 1, Data: want[off : off+1<<20]}}}
				if err := links[0].Send(context.Background(), m); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		time.Sleep(time.Hour) // the owner sleeps
		if len(r.head.events) < cap(r.head.events) {
			t.Error("the head holds events back that would fit")
		}
		if err := r.head.Send(0, &pb.ToAgent{Kind: &pb.ToAgent_Signal{Signal: &pb.Signal{Number: 2}}}); err != nil {
			t.Fatal(err)
		}
		if m := next(t, links[0]); m.GetSignal().GetNumber() != 2 {
			t.Fatalf("got %v", m)
		}
		select {
		case err := <-sent:
			t.Fatalf("everything was taken though nobody reads (%v)", err)
		default:
		}
		got := make([]byte, 0, total)
		for len(got) < total {
			ev := r.event("output", func(ev HeadEvent) bool { return ev.Message.GetOutput() != nil })
			out := ev.Message.GetOutput()
			if len(out.Data) > MaxOutput {
				t.Fatalf("a message of %d bytes", len(out.Data))
			}
			got = append(got, out.Data...)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Error("the output was changed on its way")
		}
	})
}

// An agent that does not take its messages is lost; the caller of Send never waits for it.
func TestStuckAgentIsLost(t *testing.T) {
	for _, test := range []struct {
		name  string
		bytes int
		want  string
	}{
		{"some messages", 40 << 20, "it took no message for 3s"},
		{"too many messages", 100 << 20, "it let 64 MiB of messages wait"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := bubble(t, HeadConfig{Nodes: 1})
				link := r.mustDial(0)
				r.event("hello", isHello)
				start := time.Now()
				piece := &pb.ToAgent{Kind: &pb.ToAgent_Start{Start: &pb.Start{Run: make([]byte, 512<<10)}}}
				for sent := 0; sent < test.bytes && r.head.Send(0, piece) == nil; { // nobody reads link.Messages()
					sent += len(piece.GetStart().Run)
				}
				if time.Since(start) != 0 {
					t.Error("the caller had to wait")
				}
				if ev := r.event("loss", isLost); ev.Lost.Reason != test.want {
					t.Errorf("got %q, want %q", ev.Lost.Reason, test.want)
				}
				<-link.Done()
			})
		})
	}
}

func TestTooLongMessages(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	link := r.mustDial(0)
	down := &pb.ToAgent{Kind: &pb.ToAgent_Start{Start: &pb.Start{Run: make([]byte, MaxDown)}}}
	for _, err := range []error{r.head.Send(0, down), r.head.Broadcast(down)} {
		if err == nil || !strings.Contains(err.Error(), "limit of 64 MiB") {
			t.Errorf("got %v", err)
		}
	}
	up := &pb.FromAgent{Kind: &pb.FromAgent_Facts{Facts: &pb.Facts{Json: make([]byte, MaxUp)}}}
	if err := link.Send(t.Context(), up); err == nil || !strings.Contains(err.Error(), "limit of 4 MiB") {
		t.Errorf("got %v", err)
	}
	send(t, link, &pb.FromAgent{Kind: &pb.FromAgent_Facts{Facts: &pb.Facts{Json: make([]byte, MaxUp-100)}}})
	r.event("facts", func(ev HeadEvent) bool { return ev.Message.GetFacts() != nil })
}

// FuzzHello checks that whatever comes as a hello is admitted or refused with a reason that can be sent.
func FuzzHello(f *testing.F) {
	good := &pb.Hello{Protocol: ProtocolVersion, Job: testJob, Node: 1, Incarnation: 5, Addresses: []string{"127.0.0.1:1"}}
	for _, change := range []func(*pb.Hello){
		func(*pb.Hello) {}, func(h *pb.Hello) { h.Node = -1 }, func(h *pb.Hello) { h.Protocol = 1 << 31 },
		func(h *pb.Hello) { h.Build = strings.Repeat("x", 1000) }, func(h *pb.Hello) { h.Job = "\n\x00" },
	} {
		h := proto.Clone(good).(*pb.Hello)
		change(h)
		b, err := proto.Marshal(h)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	head, err := NewHead(HeadConfig{Job: testJob, Secret: NewSecret(), Nodes: 3})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var hello pb.Hello
		if proto.Unmarshal(data, &hello) != nil {
			return
		}
		reason := head.examine(&hello, Identity{RoleAgent, 1}, theHead)
		if len(reason) > 2000 {
			t.Errorf("a reason of %d bytes", len(reason))
		}
		if reason == "" && (hello.Node != 1 || hello.Job != testJob || hello.Protocol != ProtocolVersion || hello.Incarnation == 0) {
			t.Errorf("%v was admitted", &hello)
		}
		if _, err := proto.Marshal(&pb.Refusal{Reason: reason}); err != nil {
			t.Errorf("the refusal %q cannot be sent: %v", reason, err)
		}
	})
}

func BenchmarkHelloToRoster(b *testing.B) {
	for _, n := range []int{2, 16} {
		b.Run(fmt.Sprintf("agents=%d", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := newRig(b, HeadConfig{Nodes: n})
				b.StartTimer()
				links := make(chan *AgentLink, n)
				for node := range n {
					go func() {
						link, err := Dial(context.Background(), r.agentConfig(node))
						if err != nil {
							b.Error(err)
						}
						links <- link
					}()
				}
				roster := &pb.Roster{Job: testJob}
				for node := range n {
					r.event("hello", isHello)
					roster.Nodes = append(roster.Nodes, &pb.Node{Index: int32(node), FirstRank: int32(node), Ranks: 1})
				}
				if err := r.head.PushRoster(roster); err != nil {
					b.Fatal(err)
				}
				var open []*AgentLink
				for range n {
					link := <-links
					next(b, link)
					open = append(open, link)
				}
				b.StopTimer()
				done, cancel := context.WithCancel(context.Background())
				cancel()
				for _, link := range open {
					_ = link.Close(done)
				}
				r.head.Close(done)
				b.StartTimer()
			}
		})
	}
}
