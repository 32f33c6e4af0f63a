//go:build testbed

package e2e

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// overOFI runs ag_gemm over libfabric's provider tcp, which is what hosts without RDMA have.
var overOFI = []string{"--net", "ofi", "--net-provider", "tcp"}

// long is an operator that runs until something ends it. A network gives up after three quarters of the time of waits, so that,
// on a busy machine too, it is first.
var long = []string{"--wait-timeout", "8s", "ag_gemm", "--m", "256", "--n", "128", "--k", "256", "--iters", "1000000"}

// The same bits over ofi as over tcp, at the addresses that the job chose, in its range of ports.
func TestOFIOverHosts(t *testing.T) {
	for _, h := range hosts {
		fault(t, "only-ports", h+" 20000-20063")
	}
	type result struct {
		Status, Digest, Net string
		NetWhy              string `json:"net_why"`
	}
	var tcp, ofi result
	for net, doc := range map[string]*result{"tcp": &tcp, "ofi": &ofi} {
		j := launch(t, "-H", all+":2", "--port-range", "20000:20063", "--net", net, "--check", "--json", "ag_gemm", "--m", "512", "--n", "256", "--k", "512")
		j.want(t, 0)
		if err := json.Unmarshal([]byte(j.stdout.String()), doc); err != nil || doc.Status != "pass" || doc.Net != net {
			t.Fatalf("over %s: result %+v, %v", net, *doc, err)
		}
	}
	if ofi.Digest != tcp.Digest {
		t.Errorf("ofi gives %s, tcp %s", ofi.Digest, tcp.Digest)
	}
	if !strings.Contains(ofi.NetWhy, "eth0 10.77.23.1: libfabric ") {
		t.Errorf("ofi is %q", ofi.NetWhy)
	}
	nobody(t, time.Now(), settle)
}

var bytesSent = regexp.MustCompile(`\bbytes_sent:(\d{7,})\b`) // a megabyte: probes are over

// dataPort is where a rank on a host has its connection to another host, once data goes over it.
func dataPort(t *testing.T, host string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, line := range lines(script(t, "exec", host, "ss", "-HtnpiO", "state", "established")) {
			fields := strings.Fields(line)
			if len(fields) < 5 || !strings.Contains(line, `"mkrun"`) || !bytesSent.MatchString(line) {
				continue
			}
			here, err1 := netip.ParseAddrPort(fields[2])
			there, err2 := netip.ParseAddrPort(fields[3])
			if err1 == nil && err2 == nil && here.Addr() != there.Addr() && here.Addr().Is4() {
				return fields[2][strings.LastIndexByte(fields[2], ':')+1:]
			}
		}
	}
	t.Fatalf("no rank on %s has a connection", host)
	return ""
}

// Only the way of the data fails, not that of the control connections: the message names provider, ranks and addresses.
func TestOFIDataPathIsCut(t *testing.T) {
	j := begin(t, append(append([]string{"-H", "h[3-4]"}, overOFI...), long...)...)
	port := dataPort(t, "h4")
	cut := time.Now()
	fault(t, "drop-port", "h4 "+port)
	j.want(t, 125, ": network: rank ", " over tcp;ofi_rxm eth0 10.77.23.", ") is not complete after ")
	if n := strings.Count(j.stderr.String(), "mkrun: rank "); n != 1 {
		t.Errorf("%d messages", n)
	}
	nobody(t, cut, 10*time.Second)
}

func TestOFIHostIsCut(t *testing.T) {
	j := begin(t, append(append([]string{"-H", "h[3-4]"}, overOFI...), long...)...)
	dataPort(t, "h4")
	cut := time.Now()
	fault(t, "cut", "h4")
	j.want(t, 125, "h4 (node 1): ")
	nobody(t, cut, 6*time.Second)
}

func TestOFIRankIsKilled(t *testing.T) {
	j := begin(t, append(append([]string{"-H", "h[3-4]"}, overOFI...), long...)...)
	dataPort(t, "h4")
	at := time.Now()
	kill(t, waitFor(t, "mkrun rank", "h4")["h4"], syscall.SIGKILL)
	j.want(t, 137, "rank 1 on h4 (node 1): was killed by signal 9 (SIGKILL)")
	nobody(t, at, settle)
}
