package launch

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/doctor"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// answerOf is a node's answer, by a clock that is ahead of the head's, after 4 ms of work and 1 ms of way in each direction.
func answerOf(t *testing.T, now time.Time, ahead time.Duration, r checkReport) *pb.PreflightDone {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return &pb.PreflightDone{
		SentNs: now.Add(-6 * time.Millisecond).UnixNano(), ReceivedNs: now.Add(-5*time.Millisecond + ahead).UnixNano(),
		AnsweredNs: now.Add(-time.Millisecond + ahead).UnixNano(), Json: text,
	}
}

// checkedJob takes a job of three nodes through its checks; each node gives the reports that it is asked for.
func checkedJob(t *testing.T, set func(*Job), reports func(node int, echo bool) (checkReport, time.Duration)) (*machine, []order) {
	t.Helper()
	m := testMachine(t, 1, 2, 1)
	m.job.Preflight = true
	set(m.job)
	var orders []order
	for node := range m.nodes {
		orders = append(orders, m.hello(node, helloOf(node))...)
		orders = append(orders, m.factsFrom(node, []byte(`{"master_port":4711}`))...)
	}
	if len(orders) != 4 || orders[0].msg.GetRoster() == nil || orders[1].msg.GetPreflight() == nil {
		t.Fatalf("orders %v, want the roster and a look at each node", orders)
	}
	now := time.Unix(1000, 0)
	for _, echo := range []bool{false, true} {
		orders = nil
		for node := range m.nodes {
			r, ahead := reports(node, echo)
			orders = append(orders, m.checked(node, answerOf(t, now, ahead, r), now)...)
		}
	}
	return m, orders
}

func good(node int, echo bool) (checkReport, time.Duration) {
	if echo {
		return checkReport{Echoes: []echoResult{{Node: (node + 1) % 3, MS: 0.5}, {Node: (node + 2) % 3, MS: 0.25}}}, 0
	}
	return checkReport{Echo: "127.0.0.1:4000", Driver: "580.1", GPUs: []string{"H200", "H200"}, Findings: []doctor.Finding{{Code: "cores", Severity: doctor.OK, Text: "many"}}}, 0
}

func TestChecksThenStart(t *testing.T) {
	m, orders := checkedJob(t, func(*Job) {}, good)
	if len(orders) != 3 || orders[0].msg.GetStart() == nil {
		t.Fatalf("orders %v, want three starts", orders)
	}
	for _, c := range m.preflight.checks {
		if c.Severity != doctor.OK {
			t.Errorf("%+v", c)
		}
	}
	lines := strings.Join(CheckLines(m.preflight.checks, 3, doctor.OK), "\n")
	for _, want := range []string{"all 3 nodes: cores: many", "all 3 nodes: udp: UDP to 2 nodes and back in 0.5 ms at most", "all 3 nodes: clock: its clock is 0s ahead of the launcher's, give or take 1ms"} {
		if !strings.Contains(lines, want) {
			t.Errorf("%q is lacking in\n%s", want, lines)
		}
	}
	// A restart is not checked again.
	m.job.MaxRestarts = 1
	m.fail(&pb.Cause{Kind: pb.Cause_RANK_EXIT})
	if orders := m.restart(); orders[1].msg.GetStart() == nil {
		t.Errorf("orders %v, want starts", orders)
	}
}

func TestChecksWarn(t *testing.T) {
	m, orders := checkedJob(t, func(*Job) {}, func(node int, echo bool) (checkReport, time.Duration) {
		r, _ := good(node, echo)
		ahead := time.Duration(0)
		switch {
		case node == 2 && echo:
			ahead = -90 * time.Second
			r.Echoes[0].Why = "none came back"
		case node == 1 && !echo:
			r.Driver, r.GPUs = "570.9", r.GPUs[:1]
		}
		return r, ahead
	})
	if len(orders) != 3 || orders[0].msg.GetStart() == nil {
		t.Fatalf("orders %v, want three starts: these are warnings", orders)
	}
	lines := strings.Join(CheckLines(m.preflight.checks, 3, doctor.Warn), "\n")
	for _, want := range []string{
		"node2: clock: its clock is 1m30s behind the launcher's, give or take 1ms -> set the clocks by NTP",
		"node2: udp: UDP does not reach node0 (none came back) -> let UDP pass",
		"driver-same: the nodes' NVIDIA drivers differ: 580.1 on node0, node2; 570.9 on node1",
		"gpu-same: the nodes' GPUs differ: 2 x H200 on node0, node2; 1 x H200 on node1",
	} {
		if !strings.Contains(lines, want) {
			t.Errorf("%q is lacking in\n%s", want, lines)
		}
	}
}

func TestChecksThatFailStartNothing(t *testing.T) {
	m, orders := checkedJob(t, func(*Job) {}, func(node int, echo bool) (checkReport, time.Duration) {
		r, ahead := good(node, echo)
		if node == 1 && !echo {
			r.Findings = append(r.Findings, doctor.Finding{Code: "program", Severity: doctor.Fail, Text: "not there"})
		}
		return r, ahead
	})
	if len(orders) != 1 || orders[0].msg.GetAbort() == nil || m.cause.GetExitStatus() != 125 || !strings.Contains(m.cause.GetReason(), "node1: program: not there") {
		t.Errorf("orders %v, cause %v", orders, m.cause)
	}
}

func TestConnectOnlyStartsNothing(t *testing.T) {
	m, orders := checkedJob(t, func(j *Job) { j.ConnectOnly, j.Session = true, true }, good)
	if orders != nil || !m.over() {
		t.Errorf("orders %v, over %v", orders, m.over())
	}
	if m.conclude(); m.cause != nil {
		t.Errorf("cause %v", m.cause)
	}
}

// Of many nodes each sends to some on both sides, so that every way is tried in both directions.
func TestEchoesGoBothWays(t *testing.T) {
	ppn := make([]int, 100)
	for i := range ppn {
		ppn[i] = 1
	}
	m := testMachine(t, ppn...)
	m.preflight = &preflight{reports: make([]*checkReport, 100)}
	for i := range m.preflight.reports {
		m.preflight.reports[i] = &checkReport{Echo: "127.0.0.1:1"}
	}
	ways := map[[2]int]bool{}
	for _, o := range m.echoOrders() {
		var q checkRequest
		if err := json.Unmarshal(o.msg.GetPreflight().GetJson(), &q); err != nil {
			t.Fatal(err)
		}
		if len(q.Echo) != 2*echoSides {
			t.Errorf("node %d sends to %d others, want %d", o.node, len(q.Echo), 2*echoSides)
		}
		for _, e := range q.Echo {
			ways[[2]int{o.node, e.Node}] = true
		}
	}
	for w := range ways {
		if !ways[[2]int{w[1], w[0]}] {
			t.Errorf("nodes %v are tried in one direction only", w)
		}
	}
}

func TestCheckWritable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{dir: "", filepath.Join(dir, "a", "b"): "", file: "no folder", filepath.Join(file, "x"): "no folder"} {
		err := checkWritable(path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// A disk with little room costs files, not the job: it is told, and refused where the user asked for checks.
func TestLittleRoomForOutput(t *testing.T) {
	defer func(was uint64) { checkFree = was }(checkFree)
	checkFree = math.MaxUint64
	dir := t.TempDir()
	for _, c := range []struct {
		output          string
		preflight       bool
		told, wantError string
	}{
		{dir, false, "KiB are free there (17592186044415 MiB or more are asked for); when they are used up, files end there and the job goes on", ""},
		{dir, true, "", "KiB are free there"},
		{filepath.Join(os.DevNull, "x"), false, "", "no folder"},
	} {
		told := ""
		hosts, err := Pretend(1)
		if err != nil {
			t.Fatal(err)
		}
		err = (&Job{Dir: dir, Hosts: hosts, OutputDir: c.output, Preflight: c.preflight}).checkHere(func(what string) { told = what })
		if !strings.Contains(told, c.told) || c.told == "" && told != "" || (err == nil) != (c.wantError == "") || err != nil && !strings.Contains(err.Error(), c.wantError) {
			t.Errorf("%s, preflight %v: told %q, %v", c.output, c.preflight, told, err)
		}
	}
}

func TestEcho(t *testing.T) {
	a, b := &checker{}, &checker{}
	defer a.close()
	defer b.close()
	nonce := []byte("0123456789abcdef")
	ra := a.look(t.Context(), &checkLook{Dir: "/", Address: "127.0.0.1", Nonce: nonce}, false)
	rb := b.look(t.Context(), &checkLook{Dir: "/nowhere", Address: "127.0.0.1", Nonce: []byte("another job's 16")}, false)
	results := a.echo(t.Context(), []echoTarget{{0, ra.Echo}, {1, rb.Echo}})
	if results[0].Why != "" || results[1].Why == "" {
		t.Errorf("%+v: packets come back from this job's ports only", results)
	}
	found := false
	for _, f := range rb.Findings {
		found = found || f.Code == "wdir" && f.Severity == doctor.Fail
	}
	if !found {
		t.Errorf("the missing working directory is not found: %+v", rb.Findings)
	}
}
