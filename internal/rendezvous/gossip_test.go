package rendezvous

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/mkrun/mkrun/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

// config is node i of n on its own loopback address.
func config(i, n int) GossipConfig {
	return GossipConfig{Job: "j", Node: i, Nodes: n, Incarnation: uint64(i) + 100, Key: key(1),
		Bind: fmt.Sprintf("127.0.0.%d", i+1), Log: quiet()}
}

func start(t *testing.T, cfg GossipConfig) *Gossip {
	t.Helper()
	g, err := StartGossip(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// until reads events until one is wanted.
func until(t *testing.T, g *Gossip, what string, want func(MemberEvent) bool) MemberEvent {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case ev, ok := <-g.Events():
			if !ok {
				t.Fatalf("events ended before %s", what)
			}
			if want(ev) {
				return ev
			}
		case <-timeout:
			t.Fatalf("%s did not come", what)
		}
	}
}

func sees(node int, alive bool) func(MemberEvent) bool {
	return func(ev MemberEvent) bool { return ev.Node == node && ev.Alive == alive }
}

func TestJoinThroughAnyMember(t *testing.T) {
	a, b, c := start(t, config(0, 3)), start(t, config(1, 3)), start(t, config(2, 3))
	if n, err := b.Join(t.Context(), []string{a.Address()}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := c.Join(t.Context(), []string{"127.0.0.9:1", b.Address()}); n != 1 || err != nil { // not through a; one address is dead
		t.Fatal(n, err)
	}
	ev := until(t, a, "node 2", sees(2, true))
	if ev.Incarnation != 102 || ev.Address != c.Address() {
		t.Errorf("got %+v", ev)
	}
	until(t, c, "node 0", sees(0, true))
	if got := a.Members(); len(got) != 3 {
		t.Errorf("members: %v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := b.Leave(ctx); err != nil {
		t.Error(err)
	}
	until(t, a, "the leave of node 1", sees(1, false))
}

func TestStrangersStayOut(t *testing.T) {
	for name, change := range map[string]func(*GossipConfig){
		"key":        func(c *GossipConfig) { c.Key = key(2) },
		"job":        func(c *GossipConfig) { c.Job = "other" },
		"node index": func(c *GossipConfig) { c.Nodes, c.Node = 10, 7 },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := start(t, config(0, 2)), start(t, config(1, 2))
			if _, err := b.Join(t.Context(), []string{a.Address()}); err != nil {
				t.Fatal(err)
			}
			until(t, a, "node 1", sees(1, true))
			cfg := config(5, 6)
			change(&cfg)
			stray := start(t, cfg)
			for _, joining := range []struct{ from, to *Gossip }{{stray, a}, {b, stray}} {
				_, err := joining.from.Join(t.Context(), []string{joining.to.Address()})
				if err == nil && name != "node index" { // there the exchange works, and its result is refused
					t.Error("they joined")
				}
			}
			for _, g := range []*Gossip{a, b} {
				for _, m := range g.Members() {
					if m.Node > 1 {
						t.Errorf("the pool merged with a stranger: %v", g.Members())
					}
				}
				if g.list.NumMembers() != 2 {
					t.Errorf("%d members", g.list.NumMembers())
				}
			}
		})
	}
}

func TestP76JoinIsBounded(t *testing.T) {
	g := start(t, config(0, 2))
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if n, err := g.Join(ctx, []string{silent.Addr().String()}); n != 0 || err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("joined %d, %v", n, err)
	}
	if _, err := g.Join(t.Context(), []string{"some-host:1"}); err == nil || !strings.Contains(err.Error(), "some-host") {
		t.Errorf("a host name: %v", err)
	}
	if n, err := g.Join(t.Context(), nil); n != 0 || err != nil {
		t.Errorf("nobody to join: %d, %v", n, err)
	}
}

func TestBadGossipConfig(t *testing.T) {
	for name, change := range map[string]func(*GossipConfig){
		"no address":          func(c *GossipConfig) { c.Bind = "" },
		"host name":           func(c *GossipConfig) { c.Bind = "localhost" },
		"nobody can reach ::": func(c *GossipConfig) { c.Bind = "::" },
		"nor 0.0.0.0":         func(c *GossipConfig) { c.Bind = "0.0.0.0" },
		"node":                func(c *GossipConfig) { c.Node = 2 },
		"short key":           func(c *GossipConfig) { c.Key = key(1)[:16] },
		"no key":              func(c *GossipConfig) { c.Key = nil },
		"no job":              func(c *GossipConfig) { c.Job = "" },
		"long job":            func(c *GossipConfig) { c.Job = strings.Repeat("j", 300) },
	} {
		cfg := config(0, 2)
		change(&cfg)
		if g, err := StartGossip(cfg); err == nil {
			_ = g.Shutdown()
			t.Errorf("%s: accepted", name)
		}
	}
}

// In fake time and without sockets: eight nodes, of which one falls silent.
func TestSilentMemberIsToldDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 8
		var network fabric
		var nodes []*Gossip
		for i := range n {
			cfg := config(i, n)
			port := network.port()
			cfg.transport, cfg.Bind, cfg.Port = port, port.addr.Addr().String(), int(port.addr.Port())
			nodes = append(nodes, start(t, cfg))
		}
		var join sync.WaitGroup
		for i := 1; i < n; i++ {
			join.Go(func() {
				if _, err := nodes[i].Join(t.Context(), []string{nodes[0].Address()}); err != nil {
					t.Error(err)
				}
			})
		}
		join.Wait()
		time.Sleep(10 * time.Second)
		for i, g := range nodes {
			if got := len(g.Members()); got != n {
				t.Errorf("node %d knows %d nodes", i, got)
			}
		}
		const victim = 3
		begin := time.Now()
		if err := nodes[victim].Shutdown(); err != nil {
			t.Fatal(err)
		}
		for i, g := range nodes {
			if i == victim {
				continue
			}
			until(t, g, "the death", sees(victim, false))
			if took := time.Since(begin); took < time.Second || took > 8*time.Second {
				t.Errorf("node %d was told after %v", i, took)
			}
		}
		for _, g := range nodes {
			if err := g.Shutdown(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute) // probes in progress run out
	})
}

func TestP82PoolConfigScales(t *testing.T) {
	small, large := poolConfig(16), poolConfig(1024)
	if small.ProbeInterval >= large.ProbeInterval || small.GossipInterval >= large.GossipInterval || large.HandoffQueueDepth < 4*1024 || large.HandoffQueueDepth < small.HandoffQueueDepth {
		t.Errorf("small %+v\nlarge %+v", small, large)
	}
}

func TestP80NamesOfMembers(t *testing.T) {
	g := &Gossip{cfg: GossipConfig{Job: "a/b", Nodes: 3}}
	if m, err := g.parse(&memberlist.Node{Name: memberName("a/b", 2, 1<<63), Addr: net.IPv4(1, 2, 3, 4), Port: 5}); err != nil || m != (Member{2, 1 << 63, "1.2.3.4:5"}) {
		t.Errorf("%+v, %v", m, err)
	}
	for _, name := range []string{"", "a", "a/b", "a/b/", "a/b/0", "a/b/3/0000000000000001", "a/b/-1/0000000000000001", "a/b/0/1", "a/b/0/0000000000000001x", "x/b/0/0000000000000001", "a/b/00/0000000000000001"} {
		if m, err := g.parse(&memberlist.Node{Name: name}); err == nil {
			t.Errorf("%q is %+v", name, m)
		}
	}
}

func TestMemberlistLogsAtDebug(t *testing.T) {
	var out strings.Builder
	w := debugLines{slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if _, err := io.WriteString(w, "[WARN] memberlist: refuting\n"); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, "[WARN] memberlist: refuting") {
		t.Error(got)
	}
}
