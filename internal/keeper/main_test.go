package keeper

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/leaktest"
	"github.com/mkrun/mkrun/internal/stdio"
)

// The test binary plays the other processes: its first argument says which.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case CommandName:
			os.Exit(Main(context.Background()))
		case "agent":
			playAgent(os.Args[2:])
			os.Exit(0)
		case "fds":
			listDescriptors()
			os.Exit(0)
		case "bytes":
			writeBytes(os.Args[2])
			os.Exit(0)
		}
	}
	// The race detector's runtime would make every keeper sleep a second before it ends.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	leaktest.Main(m)
}

const markName = "KEEPER_TEST_MARK"

// playAgent starts one rank per argument, a shell script each, and prints what they print.
func playAgent(scripts []string) {
	grace, _ := time.ParseDuration(os.Getenv("KEEPER_TEST_GRACE"))
	silence, _ := time.ParseDuration(os.Getenv("KEEPER_TEST_SILENCE"))
	spec := Spec{Job: "test", Self: self(), LastLines: 20, AbortGrace: grace, Silence: silence, Heartbeat: silence / 4}
	for i, s := range scripts {
		spec.Ranks = append(spec.Ranks, shell(i, s, os.Environ()...))
	}
	g, err := Start(context.Background(), spec, printer{})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	for e := range g.Events() {
		if s, ok := e.(Started); ok {
			fmt.Printf("started %d %d\n", s.PID, g.keeper.cmd.Process.Pid)
		}
	}
	fmt.Println("wait", g.Wait())
}

type printer struct{}

func (printer) Ended(int, time.Time) {}

func (printer) Output(_ int, _ stdio.Stream, data []byte, _ time.Time) {
	_, _ = os.Stdout.Write(data)
}

// listDescriptors prints what this process inherited: a descriptor that Go opened itself is close-on-exec.
func listDescriptors() {
	for fd := range 256 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		mode, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		target, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		fmt.Printf("%d nonblock=%v %s\n", fd, mode&unix.O_NONBLOCK != 0, strings.SplitN(target, ":", 2)[0])
	}
}

func testBytes(n int) []byte {
	out := make([]byte, 0, n+sha256.Size)
	block := sha256.Sum256([]byte("seed"))
	for len(out) < n {
		block = sha256.Sum256(block[:])
		out = append(out, block[:]...)
	}
	return out[:n]
}

func writeBytes(n string) {
	size, _ := strconv.Atoi(n)
	_, _ = os.Stdout.Write(testBytes(size))
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// mark makes an environment that no other process on the machine has.
func mark() string { return markName + "=" + rand.Text() }

// marked finds the living processes that have the mark in their environment.
func marked(t testing.TB, mark string) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil || !bytes.Contains(env, []byte(mark)) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		pids = append(pids, pid)
	}
	return pids
}

func noneMarked(t testing.TB, mark string) {
	t.Helper()
	for _, pid := range marked(t, mark) {
		p, _ := readProcess(pid)
		t.Errorf("process left behind: %v", p)
	}
}

// whenGone returns a function that waits for the end of the processes as they are now.
func whenGone(t testing.TB, pids ...int) (wait func()) {
	t.Helper()
	var polls []unix.PollFd
	var there []int
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue // it was one that comes and goes
		}
		if err != nil {
			t.Fatalf("open process %d: %v", pid, err)
		}
		there = append(there, pid)
		polls = append(polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return func() {
		t.Helper()
		for i, p := range polls {
			n, err := unix.Poll(polls[i:i+1], 20_000)
			for err == unix.EINTR {
				n, err = unix.Poll(polls[i:i+1], 20_000)
			}
			if n != 1 || err != nil {
				left, _ := readProcess(there[i])
				t.Errorf("process did not end: %v (%v)", left, err)
			}
			_ = unix.Close(int(p.Fd))
		}
	}
}

func shell(rank int, script string, env ...string) RankSpec {
	return RankSpec{Rank: rank, LocalRank: rank, Argv: []string{"sh", "-c", script}, Env: append([]string{"PATH=" + os.Getenv("PATH")}, env...)}
}

// collector is a sink that keeps everything and lets tests wait for lines.
type collector struct {
	mu    sync.Mutex
	cond  *sync.Cond
	text  map[string]*bytes.Buffer
	times []time.Time
}

func newCollector() *collector {
	c := &collector{text: map[string]*bytes.Buffer{}}
	c.cond = sync.NewCond(&c.mu)
	return c
}

func key(rank int, stream stdio.Stream) string { return fmt.Sprintf("%d %v", rank, stream) }

func (c *collector) Output(rank int, stream stdio.Stream, data []byte, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := key(rank, stream)
	if c.text[k] == nil {
		c.text[k] = &bytes.Buffer{}
	}
	c.text[k].Write(data)
	c.times = append(c.times, at)
	c.cond.Broadcast()
}

func (c *collector) Ended(int, time.Time) {}

func (c *collector) get(rank int, stream stdio.Stream) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.text[key(rank, stream)]; b != nil {
		return b.String()
	}
	return ""
}

// await blocks until a rank's stdout holds each of the texts; the test's time-out bounds it.
func (c *collector) await(rank int, texts ...string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if b := c.text[key(rank, stdio.Stdout)]; b != nil {
			all := true
			for _, text := range texts {
				all = all && bytes.Contains(b.Bytes(), []byte(text))
			}
			if all {
				return b.String()
			}
		}
		c.cond.Wait()
	}
}

// start starts ranks and sees to it, at the end of the test, that nothing is left of them.
func start(t testing.TB, sink Sink, ranks ...RankSpec) *Group {
	t.Helper()
	return startSpec(t, Spec{Ranks: ranks}, sink)
}

func startSpec(t testing.TB, spec Spec, sink Sink) *Group {
	t.Helper()
	m := mark()
	for i := range spec.Ranks {
		// A second setting of one name would not reach what a shell starts.
		if own := lookupEnv(spec.Ranks[i].Env, markName, ""); own == "" {
			spec.Ranks[i].Env = append(spec.Ranks[i].Env, m)
		}
	}
	spec.Job, spec.Self, spec.LastLines = "test", self(), 20
	g, err := Start(context.Background(), spec, sink)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Kill()
		_ = g.Wait()
		noneMarked(t, m)
	})
	return g
}

// finish collects the ends of all ranks.
func finish(t testing.TB, g *Group) map[int]Exited {
	t.Helper()
	exits := map[int]Exited{}
	for e := range g.Events() {
		if x, ok := e.(Exited); ok {
			if _, twice := exits[x.Rank]; twice {
				t.Errorf("rank %d ended twice", x.Rank)
			}
			exits[x.Rank] = x
		}
	}
	return exits
}

func openFiles(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func scanLines(t testing.TB, f *os.File) <-chan string {
	t.Helper()
	lines := make(chan string, 64)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(f); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}
