package keeper

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mkrun/mkrun/internal/stdio"
)

func TestExitAsWaitTells(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         Exited
	}{
		{"success", "exit 0", Exited{}},
		{"code", "exit 7", Exited{Code: 7}},
		{"high code", "exit 255", Exited{Code: 255}},
		{"signal", "kill -9 $$", Exited{Signal: syscall.SIGKILL}},
		{"abort", "ulimit -c 0; kill -ABRT $$", Exited{Signal: syscall.SIGABRT}},
		{"last lines", "echo one >&2; printf two >&2; exit 1", Exited{Code: 1, LastLines: []string{"one", "two"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := start(t, newCollector(), shell(0, tt.script))
			got := finish(t, g)[0]
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCoreDumpFlag(t *testing.T) {
	const script = "ulimit -c unlimited; kill -SEGV $$"
	direct := exec.Command("sh", "-c", script)
	direct.Dir = t.TempDir()
	_ = direct.Run()
	want := direct.ProcessState.Sys().(syscall.WaitStatus).CoreDump()

	rank := shell(0, script)
	rank.Dir = t.TempDir()
	got := finish(t, start(t, newCollector(), rank))[0]
	if got.Signal != syscall.SIGSEGV || got.CoreDumped != want {
		t.Errorf("signal %v, core dumped %v; want SIGSEGV, %v", got.Signal, got.CoreDumped, want)
	}
}

func TestStartedBeforeExitedWithPid(t *testing.T) {
	c := newCollector()
	g := start(t, c, shell(4, "echo $$"), shell(5, "exit 2"))
	pids, seen := map[int]int{}, []string{}
	for e := range g.Events() {
		switch e := e.(type) {
		case Started:
			pids[e.Rank] = e.PID
			if e.At.IsZero() {
				t.Error("no start time")
			}
			seen = append(seen, fmt.Sprintf("start %d", e.Rank))
		case Exited:
			if !slices.Contains(seen, fmt.Sprintf("start %d", e.Rank)) {
				t.Errorf("rank %d exited before it started", e.Rank)
			}
		}
	}
	if got, want := c.get(4, stdio.Stdout), fmt.Sprintln(pids[4]); got != want {
		t.Errorf("rank 4 says its pid is %q, the event says %q", got, want)
	}
}

func TestExecFailures(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "#!/bin/sh\n", 0o644)
	noLine := write("noline", "echo hello\n", 0o755)
	badLine := write("badline", "#!/no/such/interpreter\n", 0o755)

	for _, tt := range []struct {
		name   string
		argv   []string
		dir    string
		status int
		says   []string
	}{
		{"missing in PATH", []string{"no-such-program"}, "", 127, []string{`"no-such-program"`, "PATH=", "no such file"}},
		{"missing path", []string{"./nothing"}, dir, 127, []string{`"./nothing"`, dir, "no such file"}},
		{"below a file", []string{plain + "/x"}, "", 127, []string{"not a directory"}},
		{"not executable", []string{plain}, "", 126, []string{plain, "permission denied"}},
		{"directory", []string{dir}, "", 126, []string{dir, "is a directory"}},
		{"no interpreter line", []string{noLine}, "", 126, []string{noLine, "exec format error", "#!"}},
		{"bad interpreter", []string{badLine}, "", 127, []string{badLine, "interpreter"}},
		{"missing directory", []string{"true"}, dir + "/gone", 125, []string{dir + "/gone", "no such file", "directory"}},
		{"directory is a file", []string{"true"}, plain, 125, []string{plain, "not a directory"}},
		{"empty program", []string{""}, "", 127, []string{"no program"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := RankSpec{Rank: 1, Argv: tt.argv, Env: []string{"PATH=/usr/bin:/bin"}, Dir: tt.dir}
			g := start(t, newCollector(), shell(0, "sleep 1000"), bad, shell(2, "sleep 1000"))
			exits := map[int]Exited{}
			for e := range g.Events() {
				switch e := e.(type) {
				case Started:
					t.Errorf("rank %d was called started", e.Rank)
				case Exited:
					exits[e.Rank] = e
				}
			}
			got := exits[1]
			if got.Code != tt.status || got.KilledByUs {
				t.Errorf("got %+v, want status %d", got, tt.status)
			}
			for _, text := range tt.says {
				if !strings.Contains(got.ExecError, text) {
					t.Errorf("%q does not say %q", got.ExecError, text)
				}
			}
			for _, other := range []int{0, 2} {
				if !exits[other].KilledByUs {
					t.Errorf("rank %d: %+v, want it ended by us", other, exits[other])
				}
			}
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestProgramIsFoundAsAShellWould(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "prog"), []byte("#!/bin/sh\necho $0 $PWD\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct{ argv0, path string }{
		{"bin/prog", "/bin"}, {"prog", "bin:/bin"}, {"prog", dir + "/bin"}, {dir + "/bin/prog", ""},
	} {
		c := newCollector()
		exit := finish(t, start(t, c, RankSpec{Argv: []string{tt.argv0}, Env: []string{"PATH=/ignored", "PATH=" + tt.path}, Dir: dir}))[0]
		if exit.Code != 0 || !strings.HasSuffix(c.get(0, stdio.Stdout), dir+"\n") {
			t.Errorf("%d: %+v, %q", i, exit, c.get(0, stdio.Stdout))
		}
	}
}

func TestP50P55ArgumentsAndEnvironmentAreData(t *testing.T) {
	odd := []string{"a b", `"'`, "$(id)", "new\nline", "", `back\`, "\xff\xfe", "ü"}
	c := newCollector()
	argv := append([]string{"sh", "-c", `printf '%s|' "$@"; printf %s "$ODD"`, "sh"}, odd...)
	value := strings.Repeat("x\n$'", 1<<13)
	finish(t, start(t, c, RankSpec{Argv: argv, Env: []string{"PATH=" + os.Getenv("PATH"), "ODD=" + value}}))
	if got, want := c.get(0, stdio.Stdout), strings.Join(odd, "|")+"|"+value; got != want {
		t.Errorf("got %d bytes %.80q, want %d bytes", len(got), got, len(want))
	}
}

func TestDescriptors(t *testing.T) {
	// A launcher that leaks: this pipe is not close-on-exec.
	var leak [2]int
	if err := syscall.Pipe(leak[:]); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(leak[0])
	defer syscall.Close(leak[1])
	file, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	c := newCollector()
	fds := func(rank int, files ...*os.File) RankSpec {
		return RankSpec{Rank: rank, Argv: []string{self(), "fds"}, Env: os.Environ(), Files: files}
	}
	finish(t, start(t, c, fds(0), fds(1, file, file)))
	three := "0 nonblock=false /dev/null\n1 nonblock=false pipe\n2 nonblock=false pipe\n"
	for rank, want := range map[int]string{0: three, 1: three + "3 nonblock=false /dev/zero\n4 nonblock=false /dev/zero\n"} {
		if diff := cmp.Diff(want, c.get(rank, stdio.Stdout)); diff != "" {
			t.Errorf("rank %d: %s", rank, diff)
		}
	}
}

func TestLimitsAreInherited(t *testing.T) {
	want, err := exec.Command("sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -c").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := newCollector()
	finish(t, start(t, c, shell(0, "ulimit -Sn; ulimit -Hn; ulimit -c")))
	if got := c.get(0, stdio.Stdout); got != string(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStdin(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := newCollector()
	with := shell(0, "cat")
	with.Stdin = r
	g := start(t, c, with, shell(1, "cat; echo end"))
	r.Close()
	if _, err := w.WriteString("typed\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	finish(t, g)
	if got := c.get(0, stdio.Stdout) + c.get(1, stdio.Stdout); got != "typed\nend\n" {
		t.Errorf("got %q", got)
	}
}

func TestP46OutputIsWholeBeforeExit(t *testing.T) {
	c := newCollector()
	const size = 10 << 20
	g := start(t, c,
		RankSpec{Rank: 0, Argv: []string{self(), "bytes", fmt.Sprint(size)}, Env: os.Environ()},
		shell(1, "echo whole; printf rest"),
		shell(2, "(while kill -0 $$; do :; done 2>/dev/null; echo late) & echo early"), // when the rank has ended
	)
	for e := range g.Events() {
		x, ok := e.(Exited)
		if !ok {
			continue
		}
		got := c.get(x.Rank, stdio.Stdout)
		switch x.Rank {
		case 0:
			if sha256.Sum256([]byte(got)) != sha256.Sum256(testBytes(size)) {
				t.Errorf("%d of %d bytes arrived, or others", len(got), size)
			}
		case 1:
			if got != "whole\nrest" {
				t.Errorf("got %q", got)
			}
		case 2:
			if got != "early\nlate\n" {
				t.Errorf("got %q: a background child's output was lost", got)
			}
		}
	}
}

func TestManyRanksManyLines(t *testing.T) {
	const ranks, lines = 16, 10_000
	c := newCollector()
	var specs []RankSpec
	for r := range ranks {
		specs = append(specs, shell(r, fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "rank %d line $i"; i=$((i+1)); done`, lines, r)))
	}
	finish(t, start(t, c, specs...))
	for r := range ranks {
		var want strings.Builder
		for i := range lines {
			fmt.Fprintf(&want, "rank %d line %d\n", r, i)
		}
		if got := c.get(r, stdio.Stdout); got != want.String() {
			t.Errorf("rank %d: %d bytes, want %d", r, len(got), want.Len())
		}
	}
}

// gate is a sink that lets one rank's output pass only when told.
type gate struct {
	*collector
	rank int
	open chan struct{}
}

func (g gate) Output(rank int, stream stdio.Stream, data []byte, at time.Time) {
	if rank == g.rank {
		<-g.open
	}
	g.collector.Output(rank, stream, data, at)
}

func TestBackPressureHoldsOneRankOnly(t *testing.T) {
	sink := gate{newCollector(), 0, make(chan struct{})}
	const size = 1 << 20
	g := start(t, sink,
		RankSpec{Rank: 0, Argv: []string{self(), "bytes", fmt.Sprint(size)}, Env: os.Environ()},
		shell(1, "echo free"))
	for e := range g.Events() {
		if x, ok := e.(Exited); ok {
			if x.Rank == 1 {
				close(sink.open) // rank 1 came through while rank 0 was held
			} else if got := len(sink.get(0, stdio.Stdout)); got != size {
				t.Errorf("%d of %d bytes arrived", got, size)
			}
		}
	}
}

func TestSignalGoesToTheRanksNamed(t *testing.T) {
	c := newCollector()
	script := `trap 'echo usr1' USR1; trap 'echo usr2; exit 3' USR2; echo up; while :; do sleep 0.05; done`
	g := start(t, c, shell(0, script), shell(1, script))
	c.await(0, "up")
	c.await(1, "up")
	if err := g.Signal(syscall.SIGUSR1, 1); err != nil {
		t.Fatal(err)
	}
	c.await(1, "usr1")
	if err := g.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	exits := finish(t, g)
	for rank, want := range []string{"up\nusr2\n", "up\nusr1\nusr2\n"} {
		if got := c.get(rank, stdio.Stdout); got != want || exits[rank].Code != 3 || exits[rank].KilledByUs {
			t.Errorf("rank %d: %q, %+v", rank, got, exits[rank])
		}
	}
	if err := g.Signal(syscall.SIGUSR1, 9); err == nil {
		t.Error("a signal to a rank that is not here was taken")
	}
}

// A rank's group must not count as orphaned: the kernel would keep the terminal's stop signals from it.
func TestTerminalStopSignalsWork(t *testing.T) {
	c := newCollector()
	g := start(t, c, shell(0, "echo up; exec sleep 1000"))
	c.await(0, "up")
	pid := (<-g.Events()).(Started).PID
	until := func(reached func(state byte) bool) { // bounded by the test's time-out
		for p, ok := readProcess(pid); !ok || !reached(p.State); p, ok = readProcess(pid) {
			runtime.Gosched()
		}
	}
	if err := g.Signal(syscall.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	until(func(state byte) bool { return state == 'T' })
	if err := g.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(func(state byte) bool { return state != 'T' })
}

func TestP37StopGivesGraceThenKills(t *testing.T) {
	c := newCollector()
	g := start(t, c,
		shell(0, `trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done`),
		shell(1, `trap '' TERM; echo up; while :; do sleep 0.05; done`),
		shell(2, `echo up; kill -STOP $$; echo never`))
	for r := range 3 {
		c.await(r, "up")
	}
	g.Stop(time.Hour)
	exits := map[int]Exited{}
	for len(exits) < 2 { // those that end by SIGTERM
		if x, ok := (<-g.Events()).(Exited); ok {
			exits[x.Rank] = x
		}
	}
	g.Stop(100 * time.Millisecond) // the earlier end counts
	maps.Copy(exits, finish(t, g))
	for rank, x := range exits {
		x.LastLines = nil // some shells say that their sleep was terminated
		exits[rank] = x
	}
	want := map[int]Exited{
		0: {Rank: 0, Code: 7, KilledByUs: true},
		1: {Rank: 1, Signal: syscall.SIGKILL, KilledByUs: true},
		2: {Rank: 2, Signal: syscall.SIGTERM, KilledByUs: true}, // it was stopped, and woken to hear it
	}
	if diff := cmp.Diff(want, exits); diff != "" {
		t.Error(diff)
	}
	if got := c.get(0, stdio.Stdout); got != "up\nbye\n" {
		t.Errorf("got %q", got)
	}
}

func TestEndOfContextStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, m := newCollector(), mark()
	g, err := Start(ctx, Spec{Ranks: []RankSpec{shell(0, "echo up; exec sleep 1000", m)}, Self: self(), Grace: time.Hour}, c)
	if err != nil {
		t.Fatal(err)
	}
	c.await(0, "up")
	cancel()
	if got := finish(t, g)[0]; got.Signal != syscall.SIGTERM || !got.KilledByUs {
		t.Errorf("got %+v", got)
	}
	noneMarked(t, m)
}

func TestStartErrors(t *testing.T) {
	before := openFiles(t)
	for name, spec := range map[string]Spec{
		"no rank":   {Self: self()},
		"no keeper": {Self: "/no/such/mkrun", Ranks: []RankSpec{shell(0, "true")}},
		"twice":     {Self: self(), Ranks: []RankSpec{shell(0, "true"), shell(0, "true")}},
	} {
		if _, err := Start(t.Context(), spec, newCollector()); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Log(err)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d open files before, %d after", before, after)
	}
}

func TestNoFileLeaks(t *testing.T) {
	run := func() {
		g := start(t, newCollector(), shell(0, "echo hello"), shell(1, "exit 1"), shell(2, "sleep 1000"))
		for e := range g.Events() {
			if x, ok := e.(Exited); ok && x.Rank == 1 {
				g.Kill()
			}
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
	run()
	before := openFiles(t)
	for range 3 {
		run()
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d open files before, %d after", before, after)
	}
}
