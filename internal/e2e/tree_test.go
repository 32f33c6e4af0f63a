//go:build testbed

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeSSH runs what is wanted on another host here, and keeps count of who asked for it.
const fakeSSH = `#!/bin/sh
for last; do host=$command command=$last; done
echo "$PPID" >>"$SSH_LOG/$host"
exec $command
`

// stagingSSH does what a login shell would. The copies of the launcher, which are tested elsewhere, are links: 62 copies of
// mkrun would take their time.
const stagingSSH = `#!/bin/sh
for last; do host=$command command=$last; done
echo "$PPID" >>"$SSH_LOG/$host"
case $command in
  *sha256sum*)
    if [ "${host##*.}" -le %d ]; then
      d=$TMPDIR/$(printf %%s "$command" | sed 's/.*\(mkrun-staged\.[a-z0-9]*\).*/\1/')
      mkdir "$d" && ln "$BED_MKRUN" "$d/mkrun" && printf '\002mkrun-staged-1\003 %%s\n' "$d"
      exit
    fi ;;
esac
exec sh -c "$command"
`

// P65: jobs of sizes around those at which a tree grows come up whole: beyond 32 nodes agents report to each other, beyond 64
// they start each other.
func TestP65SizesAroundTheTreesBoundaries(t *testing.T) {
	dir := t.TempDir()
	ssh := filepath.Join(dir, "ssh")
	if err := os.WriteFile(ssh, []byte(fakeSSH), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2, 31, 32, 33, 64, 65, 130} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			log := t.TempDir()
			t.Setenv("SSH_LOG", log)
			j := launch(t, "--agent", "ssh", "--ssh-cmd", ssh, "--remote-mkrun", bed.mkrun, "-H", fmt.Sprintf("127.0.1.[1-%d]", n),
				"--tag", "none", "--", "sh", "-c", "echo $RANK")
			j.want(t, 0)
			ranks := map[string]bool{}
			for _, line := range strings.Fields(j.stdout.String()) {
				ranks[line] = true
			}
			if len(ranks) != n {
				t.Errorf("%d ranks spoke, want %d", len(ranks), n)
			}
			starters := map[string]int{}
			for i := range n {
				who, err := os.ReadFile(filepath.Join(log, fmt.Sprintf("127.0.1.%d", i+1)))
				if err != nil || len(strings.Fields(string(who))) != 1 {
					t.Errorf("host %d was asked by %q (%v), want once", i, who, err)
				}
				starters[strings.TrimSpace(string(who))]++
			}
			want := map[bool]int{false: 1, true: 1 + (n-1)/32}[n > 64] // the launcher, and the agents that others report to
			if len(starters) != want {
				t.Errorf("%d processes started agents, want %d: %v", len(starters), want, starters)
			}
		})
	}
	nobody(t, time.Now(), settle)
}

// --copy-self in a job of more hosts than the launcher starts itself: those that others report to copy what they are
// themselves, though the file that they were started from is gone.
func TestCopySelfDownTheTree(t *testing.T) {
	const n, top = 65, 62 // hosts in all, and those that the launcher starts
	dir, log, tmp := t.TempDir(), t.TempDir(), t.TempDir()
	ssh := filepath.Join(dir, "ssh")
	if err := os.WriteFile(ssh, []byte(fmt.Sprintf(stagingSSH, top)), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSH_LOG", log)
	t.Setenv("TMPDIR", tmp)
	t.Setenv("BED_MKRUN", bed.mkrun)
	j := launch(t, "--agent", "ssh", "--ssh-cmd", ssh, "--remote-mkrun", "/no/such/mkrun", "--copy-self", "--radix", strconv.Itoa(top),
		"-H", fmt.Sprintf("127.0.1.[1-%d]", n), "--tag", "none", "--", "sh", "-c", "echo $RANK")
	j.want(t, 0)
	if got := len(lines(j.stdout.String())); got != n {
		t.Errorf("%d ranks spoke, want %d", got, n)
	}
	starters := map[string]bool{}
	for i := range n {
		who, err := os.ReadFile(filepath.Join(log, fmt.Sprintf("127.0.1.%d", i+1)))
		words := strings.Fields(string(who))
		if err != nil || len(words) != 2 || words[0] != words[1] { // for the copy, and for the agent
			t.Errorf("host %d was asked by %q (%v), want twice by one", i, who, err)
			continue
		}
		starters[words[0]] = true
	}
	if len(starters) != 2 { // the launcher, and the first host
		t.Errorf("%d processes started agents, want 2", len(starters))
	}
	if left, err := filepath.Glob(filepath.Join(tmp, "mkrun-staged.*")); err != nil || len(left) > 0 {
		t.Errorf("copies are left: %q, %v", left, err)
	}
	nobody(t, time.Now(), settle)
}

// A tree as deep as it gets: each host reports to the one before it. One in the middle is cut: those before it end, it and
// those behind it do too.
func TestTreeHostIsCut(t *testing.T) {
	j := begin(t, append([]string{"-H", all, "--radix", "1"}, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	cut := time.Now()
	fault(t, "cut", "h3")
	j.want(t, 125, "h3 (node 2): ", "said nothing for 3s")
	if took := time.Since(cut); took > allowed(5*time.Second) {
		t.Errorf("the launcher ended %v after the cut", took)
	}
	nobody(t, cut, 5*time.Second, "h1", "h2")
	nobody(t, cut, 6*time.Second, "h3", "h4")
}

// P17, P31: an agent in the middle of the tree is killed; a rank at its end fails; the launcher is killed.
func TestP17TreeEnds(t *testing.T) {
	chain := []string{"-H", all, "--radix", "1"}
	j := begin(t, append(chain, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	at := time.Now()
	kill(t, waitFor(t, "mkrun agent", "h2")["h2"], syscall.SIGKILL)
	j.want(t, 125, "h2 (node 1): ")
	if took := time.Since(at); took > allowed(3*time.Second) {
		t.Errorf("the launcher ended after %v", took)
	}
	nobody(t, at, 3*time.Second)

	j = launch(t, append(chain, "--", "sh", "-c", "[ $RANK = 3 ] && exit 5; exec sleep 7777")...)
	j.want(t, 5, "rank 3 on h4 (node 3): ")
	nobody(t, time.Now(), settle)

	j = begin(t, append(chain, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	at = time.Now()
	kill(t, j.cmd.Process.Pid, syscall.SIGKILL)
	<-j.done
	nobody(t, at, 5*time.Second)
}

// Operators, all output, and the end in order work through agents that pass everything on.
func TestTreeCarriesEverything(t *testing.T) {
	for _, radix := range []string{"1", "2"} {
		launch(t, "-H", all, "--radix", radix, "--check", "ag_gemm", "--m", "256", "--n", "128", "--k", "256").want(t, 0)
	}
	j := launch(t, "-H", all+":4", "--radix", "1", "--tag", "none", "--", "sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo $RANK $i; i=$((i+1)); done")
	j.want(t, 0)
	if n := len(lines(j.stdout.String())); n != 32000 {
		t.Errorf("%d lines came, want 32000", n)
	}
	nobody(t, time.Now(), settle)
}
