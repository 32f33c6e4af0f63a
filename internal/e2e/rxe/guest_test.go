//go:build rxe

package rxe

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience bounds everything that a test waits for. How fast the machines are is their host's matter: emulated
// processors that share real ones with other work may need twenty times as long as on a quiet host.
const patience = 3 * time.Minute

// until waits for what a test needs.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: not %s", patience, what)
		}
	}
}

// run runs a shell script as root on g1 or g2.
func run(host, script string) (string, error) {
	conn, err := net.DialTimeout("tcp", host+":23", patience)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	const end = "\nstatus "
	if _, err := fmt.Fprintf(conn, "(%s) 2>&1; s=$?; echo; echo status $s; exit\n", script); err != nil {
		return "", err
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	text, status, found := strings.Cut(string(out), end)
	if !found || strings.TrimSpace(status) != "0" {
		return "", fmt.Errorf("it said: %s", out)
	}
	return text, nil
}

// on runs a shell script that must succeed and returns what it printed.
func on(t *testing.T, host, script string) string {
	t.Helper()
	out, err := run(host, script)
	if err != nil {
		t.Fatalf("%s: %q: %v", host, script, err)
	}
	return out
}

// harm runs a script on a machine, and another that undoes it when the test ends, if not before. It returns that.
func harm(t *testing.T, host, do, undo string) (undone func()) {
	t.Helper()
	on(t, host, do)
	over := false
	undone = func() {
		if !over {
			over = true
			on(t, host, undo)
		}
	}
	t.Cleanup(undone)
	return undone
}

// monitor says a line to the emulator of g2.
func monitor(t *testing.T, line string) {
	t.Helper()
	if err := os.WriteFile("/dev/vport0p3", []byte(line+"\n"), 0); err != nil {
		t.Fatal(err)
	}
}

// pull pulls the cable of g2's rxe0; the test's end, or what is returned, plugs it in.
func pull(t *testing.T) (plug func()) {
	t.Helper()
	state := func(want string) {
		until(t, "rxe0 of g2 "+want, func() bool {
			return strings.Contains(on(t, "g2", "cat /sys/class/infiniband/rxe0/ports/1/state"), want)
		})
	}
	monitor(t, "set_link n1 off")
	state("DOWN")
	plugged := false
	plug = func() {
		if !plugged {
			plugged = true
			monitor(t, "set_link n1 on")
			state("ACTIVE")
		}
	}
	t.Cleanup(plug)
	return plug
}

// ready waits until both machines are as a test wants to find them: agents that listen, NICs that are up and have their
// addresses' GIDs, packets that pass, and nothing left of other jobs.
func ready(t *testing.T) {
	t.Helper()
	for number, host := range []string{"g1", "g2"} {
		var err error
		defer func() {
			if err != nil {
				t.Log(host, err)
			}
		}()
		until(t, host+" as it should be", func() bool {
			_, err = run(host, fmt.Sprintf(`nc -w 1 %s 7611 </dev/null && for n in 0 1; do
				grep ACTIVE /sys/class/infiniband/rxe$n/ports/1/state && cat /sys/class/infiniband/rxe$n/ports/1/gids/* 2>/dev/null | grep ffff:0a09:0$((n+1))0%d &&
				! tc qdisc show dev eth$((n+1)) | grep netem || exit 1; done`, host, number+1))
			return err == nil && len(ranks(t, host)) == 0
		})
	}
}

// counter reads a counter of a NIC.
func counter(t *testing.T, host, nic, name string) int {
	t.Helper()
	text := strings.TrimSpace(on(t, host, "cat /sys/class/infiniband/"+nic+"/ports/1/hw_counters/"+name))
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ranks lists the processes on a machine that are mkrun's, but for the standing agent and this test's launcher.
func ranks(t *testing.T, host string) (pids []string) {
	t.Helper()
	for line := range strings.Lines(on(t, host, "ps -o pid,args")) {
		pid, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		program, rest, _ := strings.Cut(command, " ")
		if strings.HasSuffix(program, "mkrun") && !strings.HasPrefix(rest, "agent --listen") && !strings.HasPrefix(rest, "launch") {
			pids = append(pids, pid+" "+command)
		}
	}
	return pids
}

// rank is the process of a machine's only rank.
func rank(t *testing.T, host string) (pid string) {
	t.Helper()
	all := ranks(t, host)
	for _, line := range all {
		if id, command, _ := strings.Cut(line, " "); strings.Contains(command, " rank") {
			if pid != "" {
				t.Fatalf("several ranks on %s: %q", host, all)
			}
			pid = id
		}
	}
	if pid == "" {
		t.Fatalf("no rank on %s: %q", host, all)
	}
	return pid
}

// nobody wants that nothing is left of a job on these machines.
func nobody(t *testing.T, hosts ...string) {
	t.Helper()
	var left []string
	until(t, "the end of all processes of the job", func() bool {
		left = nil
		for _, host := range hosts {
			left = slices.Concat(left, ranks(t, host))
		}
		return len(left) == 0
	})
}
