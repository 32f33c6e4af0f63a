package cpu

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/engine"
)

func testLayout() layout {
	return layout{flags: headerSize, cells: 2 * pageSize, landing: []int64{2 * pageSize}, size: 3 * pageSize}
}

func TestLayoutIsAlignedAndDisjoint(t *testing.T) {
	p := agGemm(t, 3, 3, 2)
	l, err := newLayout(p, small, engine.BF16)
	if err != nil {
		t.Fatal(err)
	}
	if end := l.flags + int64(len(p.Flags))*cellSize; l.landing[3] < end || l.landing[3]%pageSize != 0 || l.size < l.landing[3]+2*small.M*small.K {
		t.Errorf("flags end at %d, landing at %d, size %d", end, l.landing[3], l.size)
	}
	for _, i := range []int{0, 1, 2} {
		if l.landing[i] != -1 {
			t.Errorf("buffer %d is in the heap", i)
		}
	}
}

func TestForeignHeapsAreRefused(t *testing.T) {
	l := testLayout()
	h, f, err := newMappedHeap(l, 42)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = h.close(), f.Close() }()
	if err := f.Truncate(0); err == nil {
		t.Error("the heap's file could be shrunk under its users")
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the heap would leak into child processes: flags %#x, %v", flags, err)
	}
	larger := l
	larger.size += pageSize
	plain, err := os.CreateTemp(t.TempDir(), "heap")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	if err := plain.Truncate(l.size); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	unsealed := os.NewFile(uintptr(fd), "unsealed")
	defer func() { _ = unsealed.Close() }()
	if err := unsealed.Truncate(l.size); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		f      *os.File
		l      layout
		digest uint64
		want   string
	}{
		"size":     {f, larger, 42, "do not run the same plan and shape"},
		"digest":   {f, l, 43, "made for another plan or shape"},
		"file":     {plain, l, 42, "not sealed"},
		"unsealed": {unsealed, l, 42, "not sealed against shrinking"},
	} {
		_, err := openMappedHeap(c.f, c.l, c.digest)
		if err == nil || !strings.Contains(err.Error(), c.want) && !strings.Contains(err.Error(), "not a sealable memfd") {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// open counts the descriptors and heap mappings of this process.
func open(t *testing.T) (files, maps int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries), bytes.Count(b, []byte("mkrun-heap"))
}

func TestNothingIsLeftOpen(t *testing.T) {
	t.Run("warm", func(t *testing.T) { openJob(t, agGemm(t, 1, 1, 1), small, options{mapped: true}) }) // the poller's own descriptors
	files, maps := open(t)
	for end := time.Now().Add(time.Minute); maps > 0 && time.Now().Before(end); files, maps = open(t) {
		runtime.GC() // heaps that ranks of this process shared in tests before go with the collector
		runtime.Gosched()
	}
	t.Run("job", func(t *testing.T) {
		j := openJob(t, agGemm(t, 1, 2, 2), small, options{mapped: true})
		j.gather(t, small, randomOperands(1, small, 4, engine.BF16))
		if _, now := open(t); now != maps+8 {
			t.Errorf("%d heaps are mapped, want 8: two on each rank", now-maps)
		}
	})
	if f, m := open(t); f != files || m != maps {
		t.Errorf("%d descriptors and %d mappings are left", f-files, m-maps)
	}
}

// The litmus test passes messages between two mappings of a heap: many words of plain data, then the
// flag, as the engine does. The reader must never see old data behind a new flag.

const (
	litmusRounds = 20000
	litmusWords  = 512
	litmusEnv    = "MKRUN_TEST_LITMUS" // how the writer writes, in the process that TestMain's binary starts again
)

// litmusWrite is the writer. A broken one raises the flag first and writes the data when the reader
// has looked.
func litmusWrite(h *heap, rounds int, broken bool) error {
	data := h.elements(testLayout().landing[0], litmusWords)
	for r := 1; r <= rounds; r++ {
		fill := func() {
			for i := range data {
				data[i] = uint16(r)
			}
		}
		if !broken {
			fill()
		}
		h.flag(0).raise(uint64(r))
		if _, err := h.await(h.flag(1), uint64(r), time.Minute); err != nil {
			return err
		}
		if broken {
			fill()
		}
	}
	return nil
}

// litmusRead returns how many rounds showed old data.
func litmusRead(h *heap, rounds int) (stale int, err error) {
	data := h.elements(testLayout().landing[0], litmusWords)
	for r := 1; r <= rounds; r++ {
		if _, err := h.await(h.flag(0), uint64(r), time.Minute); err != nil {
			return stale, err
		}
		for _, w := range data {
			if w != uint16(r) {
				stale++
				break
			}
		}
		h.flag(1).raise(uint64(r))
	}
	return stale, nil
}

func TestLitmusBetweenMappings(t *testing.T) {
	for _, broken := range []bool{false, true} {
		h, f, err := newMappedHeap(testLayout(), 1)
		if err != nil {
			t.Fatal(err)
		}
		peer, err := openMappedHeap(f, testLayout(), 1)
		if err != nil {
			t.Fatal(err)
		}
		rounds := litmusRounds
		if broken {
			rounds = 100
		}
		done := make(chan error)
		go func() { done <- litmusWrite(peer, rounds, broken) }()
		stale, err := litmusRead(h, rounds)
		if werr := <-done; err != nil || werr != nil {
			t.Fatal(err, werr)
		}
		if (stale > 0) != broken {
			t.Errorf("broken=%v: %d of %d rounds showed old data", broken, stale, rounds)
		}
		_, _, _ = h.close(), peer.close(), f.Close()
	}
}

func TestLitmusBetweenProcesses(t *testing.T) {
	for _, broken := range []bool{false, true} {
		h, f, err := newMappedHeap(testLayout(), 1)
		if err != nil {
			t.Fatal(err)
		}
		rounds := litmusRounds
		if broken {
			rounds = 100
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestLitmusWriter$", "-test.v")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%v", litmusEnv, rounds, broken))
		cmd.ExtraFiles = []*os.File{f}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stale, err := litmusRead(h, rounds)
		if werr := cmd.Wait(); err != nil || werr != nil {
			t.Fatalf("%v, %v\n%s", err, werr, out.String())
		}
		if (stale > 0) != broken {
			t.Errorf("broken=%v: %d of %d rounds showed old data", broken, stale, rounds)
		}
		_, _ = h.close(), f.Close()
	}
}

// TestLitmusWriter is the other process of TestLitmusBetweenProcesses.
func TestLitmusWriter(t *testing.T) {
	how, isChild := os.LookupEnv(litmusEnv)
	if !isChild {
		return
	}
	count, broken, _ := strings.Cut(how, ",")
	rounds, err := strconv.Atoi(count)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(3, "heap")
	h, err := openMappedHeap(f, testLayout(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := litmusWrite(h, rounds, broken == "true"); err != nil {
		t.Error(err)
	}
	_, _ = h.close(), f.Close()
}
