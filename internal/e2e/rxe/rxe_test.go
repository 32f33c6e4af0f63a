//go:build rxe

package rxe

import (
	"strings"
	"testing"
	"time"
)

// endless is a job that lasts until something ends it.
var endless = []string{"--iters", "1000000", "ag_gemm", "--m", "64", "--n", "16", "--k", "64", "--net", "ibverbs"}

// One NIC, both, both with flags that come by immediate, and tcp give the same bits; of two NICs both carry some.
func TestBitsOfTCP(t *testing.T) {
	want := product(t, "--net", "tcp").Digest
	before := counter(t, "g1", "rxe1", "sent_pkts")
	one := product(t, "--net", "ibverbs", "--net-devices", "rxe0")
	if now := counter(t, "g1", "rxe1", "sent_pkts"); now != before {
		t.Errorf("rxe1 sent %d packets for a job that was given rxe0", now-before)
	}
	two := product(t, "--net", "ibverbs", "--net-devices", "rxe0,rxe1")
	if after := counter(t, "g1", "rxe1", "sent_pkts"); after == before {
		t.Error("rxe1 sent nothing for a job with both NICs")
	}
	relaxed := product(t, "--net", "ibverbs", "--net-devices", "rxe0,rxe1", "--net-relaxed")
	for _, d := range []document{one, two, relaxed} {
		if d.Net != "ibverbs" || d.Digest != want || want == "" {
			t.Errorf("%+v, want the digest %q of tcp", d, want)
		}
	}
	if !strings.Contains(one.Why, "rxe0: RoCE v2, GID 1 (10.9.1.1)") || strings.Contains(one.Why, "rxe1") {
		t.Errorf("one NIC: %s", one.Why)
	}
	if !strings.Contains(two.Why, "rxe0: RoCE v2, GID 1 (10.9.1.1)") || !strings.Contains(two.Why, "rxe1: RoCE v2, GID 1 (10.9.2.1)") {
		t.Errorf("two NICs: %s", two.Why)
	}
	// Nothing is lost between these machines: a link of theirs blocks, and drops nothing.
	for _, nic := range []string{"rxe0", "rxe1"} {
		for _, way := range [][2]string{{"g1", "g2"}, {"g2", "g1"}} {
			sent, came := counter(t, way[0], nic, "sent_pkts"), counter(t, way[1], nic, "rcvd_pkts")
			t.Logf("%s from %s to %s: %d packets, sent again for %d time-outs", nic, way[0], way[1], sent, counter(t, way[0], nic, "completer_retry_err"))
			if sent != came {
				t.Errorf("%s of %s has sent %d packets, %s has received %d", nic, way[0], sent, way[1], came)
			}
		}
	}
}

// GIDs that cannot work are refused by name, before anything runs.
func TestWrongGID(t *testing.T) {
	refused := func(gid string, words ...string) {
		t.Helper()
		begin(t, "ag_gemm", "--m", "64", "--n", "16", "--k", "64", "--net", "ibverbs", "--net-devices", "rxe0", "--net-gid", gid).want(t, 125, words...)
	}
	refused("7", "no ibverbs at rank", "rxe0: GID 7 is an empty slot")
	on(t, "g2", "ip addr del 10.9.1.2/24 dev eth1") // what is left is the link's own address
	t.Cleanup(func() { on(t, "g2", "ip addr flush dev eth1 scope global; ip addr add 10.9.1.2/24 dev eth1") })
	refused("-1", "rank 0", "rank 1", "GID ", "10.9.1.1", "fe80:", "are of different address families")
}

// Nobody answers at the peer's address.
func TestNobodyThere(t *testing.T) {
	on(t, "g2", "tc qdisc add dev eth1 root netem loss 100%")
	t.Cleanup(func() { on(t, "g2", "tc qdisc del dev eth1 root") })
	on(t, "g1", "ip neigh flush dev eth1")
	begin(t, "ag_gemm", "--m", "64", "--n", "16", "--k", "64", "--net", "ibverbs", "--net-devices", "rxe0").
		want(t, 125, "rxe0: queue pair ", "to RTR: ", "no answer to ARP", "GID 10.9.1.1 here, 10.9.1.2 at rank 1")
}

func TestRankIsKilled(t *testing.T) {
	j := begin(t, endless...)
	j.underWay(t, "rxe0")
	on(t, "g2", "kill -9 "+rank(t, "g2"))
	j.want(t, 128+9, "rank 1 on g2 (node 1): ", "signal 9")
}

// The link of one rank's NIC goes down: that rank's NIC says so, or the other's after its retries.
func TestLinkGoesDown(t *testing.T) {
	j := begin(t, append(endless, "--net-devices", "rxe0")...)
	j.underWay(t, "rxe0")
	on(t, "g2", "ip link set eth1 down")
	t.Cleanup(func() { on(t, "g2", "ip link set eth1 up") })
	j.want(t, 125, "network: rxe0, queue pair ", " to rank ", " (GID 10.9.1.", " to GID 10.9.1.", " of rxe0, MTU 1024)", "(status ")
}

// Packets vanish on the way: nothing tells but that no acknowledgement comes.
func TestBlackHole(t *testing.T) {
	j := begin(t, append(endless, "--net-devices", "rxe0")...)
	j.underWay(t, "rxe0")
	on(t, "g2", "tc qdisc add dev eth1 root netem loss 100%")
	t.Cleanup(func() { on(t, "g2", "tc qdisc del dev eth1 root") })
	cut := time.Now()
	j.want(t, 125, "rxe0, queue pair ", "transport retry counter exceeded (status 12", "the peer or the path to it is gone")
	if took := time.Since(cut); took > 30*time.Second {
		t.Errorf("the job ended %v after the cut", took)
	}
}

// A rank dies and all are started again: over the same devices, with new queue pairs and keys.
func TestRestart(t *testing.T) {
	j := begin(t, "--max-restarts", "1", "--check", "--iters", "200", "ag_gemm", "--m", "64", "--n", "16", "--k", "64", "--net", "ibverbs")
	j.underWay(t, "rxe0")
	on(t, "g2", "kill -9 "+rank(t, "g2"))
	j.want(t, 0, "rank 1 on g2 (node 1): ", "restart")
}

// After all that: the same machines, agents and devices work as before. Tests run in the order of this file.
func TestWorksAfterwards(t *testing.T) {
	if a, b := product(t, "--net", "tcp"), product(t, "--net", "ibverbs"); a.Digest != b.Digest {
		t.Errorf("tcp gives %s, ibverbs %s", a.Digest, b.Digest)
	}
}
