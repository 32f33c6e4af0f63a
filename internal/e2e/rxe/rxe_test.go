//go:build rxe

package rxe

import (
	"regexp"
	"slices"
	"testing"
)

// small is the least product.
var small = slices.Concat([]string{"ag_gemm", "--m", "64", "--n", "16", "--k", "64"}, oneNIC)

// endless is a job that lasts until something ends it.
var endless = slices.Concat([]string{"--iters", "1000000"}, small)

// dead ends a job over a NIC that nobody answers, well before anything else would. A machine that stands still for so long, as
// its host has other work, is taken for dead, too: only jobs that are to end so have it.
var dead = []string{"--net-dead-peer", "7.5s"}

// One NIC, both, both with flags that come by immediate, and tcp give the same bits; of two NICs both carry some.
func TestBitsOfTCP(t *testing.T) {
	ready(t)
	want := product(t, "--net", "tcp").Digest
	before := counter(t, "g1", "rxe1", "sent_pkts")
	one := product(t, oneNIC...)
	if now := counter(t, "g1", "rxe1", "sent_pkts"); now != before {
		t.Errorf("rxe1 sent %d packets for a job that was given rxe0", now-before)
	}
	two := product(t, twoNICs...)
	if after := counter(t, "g1", "rxe1", "sent_pkts"); after == before {
		t.Error("rxe1 sent nothing for a job with both NICs")
	}
	relaxed := product(t, slices.Concat(twoNICs, []string{"--net-relaxed"})...)
	for _, d := range []document{one, two, relaxed} {
		if d.Net != "ibverbs" || d.Digest != want || want == "" {
			t.Errorf("%+v, want the digest %q of tcp", d, want)
		}
	}
	first, second := regexp.MustCompile(`rxe0: RoCE v2, GID \d+ \(10\.9\.1\.1\)`), regexp.MustCompile(`rxe1: RoCE v2, GID \d+ \(10\.9\.2\.1\)`)
	if !first.MatchString(one.Why) || second.MatchString(one.Why) {
		t.Errorf("one NIC: %s", one.Why)
	}
	if !first.MatchString(two.Why) || !second.MatchString(two.Why) {
		t.Errorf("two NICs: %s", two.Why)
	}
}

// GIDs that cannot work are refused by name, before anything runs.
func TestWrongGID(t *testing.T) {
	ready(t)
	begin(t, slices.Concat(small, []string{"--net-gid", "7"})...).want(t, 125, "no ibverbs at rank", "rxe0: GID 7 is an empty slot")
	harm(t, "g2", "ip addr del 10.9.1.2/24 dev eth1", "ip addr flush dev eth1 scope global; ip addr add 10.9.1.2/24 dev eth1")
	// What is left is the link's own address.
	begin(t, small...).want(t, 125, "rank 0", "rank 1", "GID ", `10\.9\.1\.1`, "fe80:", "are of different address families")
}

// Nobody answers at the peer's address.
func TestNobodyThere(t *testing.T) {
	ready(t)
	harm(t, "g2", "tc qdisc add dev eth1 root netem loss 100%", "tc qdisc del dev eth1 root")
	harm(t, "g1", "ip neigh del 10.9.1.2 dev eth1", "ip neigh replace 10.9.1.2 lladdr 52:54:00:00:01:02 dev eth1 nud permanent")
	begin(t, small...).want(t, 125, "rxe0: queue pair ", "to RTR: ", "no answer to ARP", `GID 10\.9\.1\.1 here, 10\.9\.1\.2 at rank 1`)
}

func TestRankIsKilled(t *testing.T) {
	ready(t)
	j := begin(t, endless...)
	j.underWay(t, 200)
	on(t, "g2", "kill -9 "+rank(t, "g2"))
	j.want(t, 128+9, `rank 1 on g2 \(node 1\): `, "signal 9")
}

// Packets are lost in both directions: they are sent again, and the bits are those of tcp.
func TestLoss(t *testing.T) {
	ready(t)
	want := product(t, "--net", "tcp").Digest
	for _, host := range []string{"g1", "g2"} {
		harm(t, host, "tc qdisc add dev eth1 root netem loss 5%", "tc qdisc del dev eth1 root")
	}
	again := func() int {
		return counter(t, "g1", "rxe0", "completer_retry_err") + counter(t, "g1", "rxe0", "rcvd_seq_err")
	}
	before := again()
	// A packet that no later one tells of is sent again after a seventh of this time.
	patient := slices.Concat(oneNIC, []string{"--net-dead-peer", "31s"})
	until(t, "a packet that was sent again", func() bool {
		if d := product(t, patient...); d.Digest != want {
			t.Fatalf("%+v, want the digest %s", d, want)
		}
		return again() > before
	})
}

// The cable of one rank's NIC is pulled: that rank's NIC says so, or the other's after its retries.
func TestCableIsPulled(t *testing.T) {
	ready(t)
	j := doomed(t)
	plug := pull(t)
	j.want(t, 125, `network: rxe0, queue pair \d+ to rank \d \(GID 10\.9\.1\.\d to GID 10\.9\.1\.\d of rxe0, MTU 1024\)`, `\(status \d+`)
	plug()
	ready(t)
	product(t, oneNIC...)
}

// Packets vanish on the way: nothing tells but that no acknowledgement comes.
func TestBlackHole(t *testing.T) {
	ready(t)
	j := doomed(t)
	harm(t, "g2", "tc qdisc add dev eth1 root netem loss 100%", "tc qdisc del dev eth1 root")
	j.want(t, 125, "rxe0, queue pair ", `transport retry counter exceeded \(status 12`, "the peer or the path to it is gone")
}

// A rank dies and all are started again: over the same devices, with new queue pairs and keys.
func TestRestart(t *testing.T) {
	ready(t)
	// Packets are late until the rank is dead, so the job cannot have ended by then.
	quick := harm(t, "g2", "tc qdisc add dev eth1 root netem delay 1s", "tc qdisc del dev eth1 root")
	j := begin(t, slices.Concat([]string{"--max-restarts", "1", "--check", "--iters", "200"}, small)...)
	j.underWay(t, 5)
	on(t, "g2", "kill -9 "+rank(t, "g2"))
	quick()
	j.want(t, 0, `rank 1 on g2 \(node 1\): `, "signal 9", "restart")
}

// A machine dies, and comes back under the same addresses: jobs do not talk to what it was.
func TestMachineDies(t *testing.T) {
	ready(t)
	j := doomed(t, "--abort-grace", "300ms")
	monitor(t, "quit")
	// The NIC misses acknowledgements, unless the machine is back by then and knows nothing of its connections.
	j.ends(t, 125, `rxe0, queue pair .* to rank 1 .*transport retry counter exceeded \(status 12|g2 \(node 1\): its agent is gone`)
	nobody(t, "g1")
	ready(t)
	if a, b := product(t, "--net", "tcp"), product(t, verbs...); a.Digest != b.Digest {
		t.Errorf("tcp gives %s, ibverbs %s", a.Digest, b.Digest)
	}
}
