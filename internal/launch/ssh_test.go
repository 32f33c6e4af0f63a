package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/leaktest"
	"github.com/mkrun/mkrun/internal/session"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeSSH is a program that behaves like ssh to hosts of which each has a fault of its own; it keeps count of how often
// a host was tried in DIR/HOST.
const fakeSSH = `#!/bin/sh
for last; do host=$command command=$last; done
echo x >>"$DIR/$host"
printf '%s\n' "$@" >"$DIR/$host.args"
tries=$(wc -l <"$DIR/$host")
agent() { printf '\002mkrun-agent-ready-1\003\n'; exec cat >"$DIR/$host.stdin"; }
case $host in
  good*) agent ;;
  reset*) [ "$tries" -ge 3 ] && agent; echo "kex_exchange_identification: Connection closed by remote host" >&2; exit 255 ;;
  refuse) echo "ssh: connect to host refuse port 22: Connection refused" >&2; exit 255 ;;
  noname) [ "$tries" -ge 2 ] && agent; echo "ssh: Could not resolve hostname noname: Name or service not known" >&2; exit 255 ;;
  denied) echo "me@denied: Permission denied (publickey)." >&2; exit 255 ;;
  without) echo "sh: 1: mkrun: not found" >&2; exit 127 ;;
  noisy) echo "Welcome to noisy!"; printf 'no end of line'; echo "mkrun-agent-ready-1"; agent ;;
  loud) head -c 100000 /dev/zero; agent ;;
  early) cat >"$DIR/early.stdin"; exit 0 ;;
  hang) exec sleep 1000 ;;
  *) exit 9 ;;
esac
`

func fakeStarter(t *testing.T, targets ...string) (s *sshStarter, dir string, notices *[]string) {
	t.Helper()
	dir = t.TempDir()
	path := filepath.Join(dir, "fake ssh")
	if err := os.WriteFile(path, []byte(fakeSSH), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DIR", dir)
	var mu sync.Mutex
	notices = new([]string)
	return newSSHStarter(SSH{Command: []string{path, "-v"}, Options: []string{"-p", "2222"}}, maps.Collect(slices.All(targets)), nil, func(_ int, text string) {
		mu.Lock()
		defer mu.Unlock()
		*notices = append(*notices, text)
	}), dir, notices
}

// startOne starts the only agent; what it was handed is returned once its ssh has ended.
func startOne(t *testing.T, target string) (handed []byte, tries int, err error) {
	t.Helper()
	s, dir, _ := fakeStarter(t, target)
	secret := session.NewSecret()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, err := s.start(ctx, AgentConfig{Job: "job", AgentPart: AgentPart{Name: target}}, secret)
	if a != nil {
		a.end(t.Context())
		handed, _ = os.ReadFile(filepath.Join(dir, target+".stdin"))
	}
	counted, _ := os.ReadFile(filepath.Join(dir, target))
	return handed, strings.Count(string(counted), "x"), err
}

func TestP32P61P67P70SSHStart(t *testing.T) {
	tests := []struct {
		name, target string
		tries        int
		want         []string // in the error; none: it starts
	}{
		{"starts", "good", 1, nil},
		{"P70 banner before the agent", "noisy", 1, nil},
		{"P70 endless banner", "loud", 1, []string{"more than 64 KiB"}},
		{"P67 reset before authentication", "reset", 3, nil},
		{"P61 name not known yet", "noname", 2, nil},
		{"refused", "refuse", sshTries, []string{"Connection refused", "exit status 255", "tried 4 times"}},
		{"P32 255 is explained", "denied", 1, []string{"ssh failed", "Permission denied (publickey)", "BatchMode"}},
		{"no mkrun there", "without", 1, []string{`there is no "mkrun"`, "--remote-mkrun", "mkrun: not found"}},
		{"ends", "other", 1, []string{"exit status 9"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			handed, tries, err := startOne(t, tt.target)
			if tries != tt.tries {
				t.Errorf("tried %d times, want %d", tries, tt.tries)
			}
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				if len(handed) < session.SecretSize || !strings.Contains(string(handed), `"job":"job"`) {
					t.Errorf("the agent was handed %q", handed)
				}
				return
			}
			if err == nil {
				t.Fatal("started")
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

func TestSecretGoesToAgentsOnly(t *testing.T) {
	s, dir, _ := fakeStarter(t, "early")
	early := filepath.Join(dir, "early.stdin")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var watching sync.WaitGroup
	watching.Go(func() { // the start ends when it has had time to read something
		for ctx.Err() == nil {
			time.Sleep(200 * time.Millisecond)
			if _, err := os.Stat(early); err == nil {
				cancel()
			}
		}
	})
	if _, err := s.start(ctx, AgentConfig{Job: "job"}, session.NewSecret()); err == nil {
		t.Error("something that is no agent was taken for one")
	}
	cancel()
	watching.Wait()
	if got, err := os.ReadFile(early); err != nil || len(got) > 0 {
		t.Errorf("it was handed %d bytes (%v)", len(got), err)
	}
}

func TestSSHThatHangsEndsWithTheStart(t *testing.T) {
	s, _, _ := fakeStarter(t, "hang")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if a, err := s.start(ctx, AgentConfig{}, session.NewSecret()); err == nil {
		t.Fatalf("%v was started", a)
	}
}

// The command line holds nothing of the job, and no word of the user's becomes an option or shell text.
func TestSSHArguments(t *testing.T) {
	got := SSH{Command: []string{"ssh", "-F", "my config"}, Options: []string{"-p", "22"}, ConnectTimeout: 3 * time.Second}.args("me@host")
	if i := slices.Index(got, "--"); i < 0 || !slices.Equal(got[i:], []string{"--", "me@host", "mkrun agent"}) {
		t.Errorf("arguments %q", got)
	}
	if text := strings.Join(got, " "); !strings.HasPrefix(text, "ssh -F my config -T") || !strings.Contains(text, "-o BatchMode=yes") ||
		!strings.Contains(text, "-o ConnectTimeout=3") || !strings.Contains(text, " -p 22 --") {
		t.Errorf("arguments %q", got)
	}
	for _, bad := range []string{"a b", "$(x)", "-x", "a;b", "~/x", "a'b", "é"} {
		if (SSH{Mkrun: bad}).Check() == nil {
			t.Errorf("remote program %q was accepted", bad)
		}
	}
}

func TestWords(t *testing.T) {
	for text, want := range map[string][]string{
		"ssh":                      {"ssh"},
		"  ssh   -p 22 ":           {"ssh", "-p", "22"},
		`ssh -F "my config" ''`:    {"ssh", "-F", "my config", ""},
		`a'b c'd "e'f" $x *`:       {"ab cd", "e'f", "$x", "*"},
		"":                         nil,
		"-o ProxyCommand='a b\tc'": {"-o", "ProxyCommand=a b\tc"},
	} {
		got, err := Words(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	if _, err := Words(`a "b`); err == nil {
		t.Error("an open quote was accepted")
	}
}

// P65, P68: any number of hosts starts, with at most sshAtOnce connections in the making and no throttle besides.
func TestP65P68ManyHosts(t *testing.T) {
	for _, n := range []int{1, 31, 32, 33, 64, 65, 130} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			targets := make([]string, n)
			for i := range targets {
				targets[i] = fmt.Sprintf("good%d", i)
			}
			s, dir, _ := fakeStarter(t, targets...)
			var wg sync.WaitGroup
			errs := make([]error, n)
			agents := make([]*agentProcess, n)
			for i := range n {
				wg.Go(func() {
					agents[i], errs[i] = s.start(t.Context(), AgentConfig{Job: "job", AgentPart: AgentPart{Node: i}}, session.NewSecret())
				})
			}
			wg.Wait()
			for i := range n {
				if agents[i] != nil {
					agents[i].end(t.Context())
				}
			}
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				if _, err := os.Stat(filepath.Join(dir, targets[i]+".stdin")); err != nil {
					t.Fatal(err)
				}
			}
			if len(s.slots) != 0 || cap(s.slots) != sshAtOnce {
				t.Errorf("%d of %d places are still taken", len(s.slots), cap(s.slots))
			}
		})
	}
}

func TestClassify(t *testing.T) {
	for said, want := range map[string]sshKind{
		"ssh_exchange_identification: Connection closed by remote host":           sshReset,
		"kex_exchange_identification: read: Connection reset by peer":             sshReset,
		"ssh: connect to host h port 22: Connection refused":                      sshReset,
		"ssh: Could not resolve hostname h: Temporary failure in name resolution": sshNoName,
		"ssh: connect to host h port 22: Connection timed out":                    sshFinal,
		"me@h: Permission denied (publickey).\nConnection closed by 10.0.0.1":     sshFinal,
		"Host key verification failed.":                                           sshFinal,
		"ssh: connect to host h port 22: No route to host":                        sshFinal,
	} {
		if got := classify(said); got != want {
			t.Errorf("%q: %v, want %v", said, got, want)
		}
	}
}
