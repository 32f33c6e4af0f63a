//go:build testbed

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// P64: hosts let nothing in but ssh and a range of ports; the job listens on nothing else, its ranks included.
func TestP64PortRange(t *testing.T) {
	for _, h := range hosts {
		fault(t, "only-ports", h+" 20000-20031")
	}
	way := []string{"-H", all + ":2", "--port-range", "20000:20031", "--radix", "2"}
	launch(t, append(way, "--check", "ag_gemm", "--m", "256", "--n", "128", "--k", "256")...).want(t, 0)
	j := launch(t, append(way, "--tag", "none", "--only-rank", "0", "--", "sh", "-c", "echo $MASTER_PORT $MKRUN_PORTS")...)
	j.want(t, 0)
	if port, rest, _ := strings.Cut(strings.TrimSpace(j.stdout.String()), " "); len(port) != 5 || port < "20000" || port > "20031" || rest != "20000-20031" {
		t.Errorf("the rank has %q", j.stdout.String())
	}
	launch(t, "-H", all, "--start-timeout", "8s", "--", "true").want(t, 124, "has not reached this host") // without the range
	launch(t, "-H", all, "--port-range", "20000", "--", "true").want(t, 2, "--port-range", "expected a form such as 20000-20100")
	nobody(t, time.Now(), settle)
}

// Hosts without any IPv4 address.
func TestIPv6Only(t *testing.T) {
	for _, h := range hosts {
		fault(t, "no-ipv4", h)
	}
	six := "[fd77:23::1]:2,[fd77:23::2]:2,[fd77:23::3]:2,[fd77:23::4]:2"
	j := launch(t, "-H", six, "--tag", "none", "--only-rank", "7", "--", "sh", "-c", "echo $MASTER_ADDR $MKRUN_NODE_ADDR")
	j.want(t, 0)
	if got := strings.TrimSpace(j.stdout.String()); got != "fd77:23::1 fd77:23::4" {
		t.Errorf("rank 7 has %q", got)
	}
	launch(t, "-H", six, "--radix", "1", "--check", "ag_gemm", "--m", "256", "--n", "128", "--k", "256").want(t, 0)
	j = begin(t, append([]string{"-H", six}, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	cut := time.Now()
	fault(t, "cut", "h2")
	j.want(t, 125, "(node 1): ")
	nobody(t, cut, 6*time.Second, hosts...)
}

// A host behind a slow link is slow, not dead: neither its output nor its operator ends the job.
func TestSlowLink(t *testing.T) {
	fault(t, "slow", "h3 2mbit")
	j := launch(t, "-H", all, "--tag", "none", "--only-rank", "2", "--", "sh", "-c", "if [ $RANK = 2 ]; then head -c 1500000 /dev/zero | tr '\\0' x | fold -w 100; fi")
	j.want(t, 0)
	if n := strings.Count(j.stdout.String(), "x"); n != 1500000 {
		t.Errorf("%d bytes came, want 1500000", n)
	}
	if j.took < 4*time.Second {
		t.Errorf("1.5 MB took %v: the link was not slow", j.took)
	}
	launch(t, "-H", all, "--check", "ag_gemm", "--m", "256", "--n", "128", "--k", "256").want(t, 0)
	nobody(t, time.Now(), settle)
}

// Operators on hosts whose ranks are dealt in turn: each rank is told, and reported, by the number that its user counts.
func TestOperatorWithCyclicRanks(t *testing.T) {
	j := launch(t, "-H", "h[1-3]:2", "--map-by", "cyclic", "--check", "--json", "ag_gemm", "--m", "240", "--n", "64", "--k", "64")
	j.want(t, 0)
	var doc struct {
		Status string
		Ranks  []struct {
			Rank, Node int
			Local      int `json:"local_rank"`
		}
	}
	if err := json.Unmarshal([]byte(j.stdout.String()), &doc); err != nil || doc.Status != "pass" || len(doc.Ranks) != 6 {
		t.Fatalf("result %+v, %v", doc, err)
	}
	for _, r := range doc.Ranks {
		if r.Rank%3 != r.Node || r.Rank/3 != r.Local {
			t.Errorf("rank %d is number %d of node %d", r.Rank, r.Local, r.Node)
		}
	}
}

// P62: a launcher that cannot resolve its own name is reached all the same: its addresses are given by number.
func TestP62LauncherDoesNotKnowItself(t *testing.T) {
	names := filepath.Join(bed.dir, "hosts")
	before, err := os.ReadFile(names)
	if err != nil {
		t.Fatal(err)
	}
	after := strings.ReplaceAll(string(before), " h1\n", " someone\n")
	if err := os.WriteFile(names, []byte(after), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(names, before, 0o644) })
	if out, err := exec.Command(bed.script, "exec", bed.dir, "h1", "getent", "hosts", "h1").CombinedOutput(); err == nil {
		t.Fatalf("h1 still knows itself: %s", out)
	}
	launch(t, "-H", "h2,h3", "--", "true").want(t, 0)
}
