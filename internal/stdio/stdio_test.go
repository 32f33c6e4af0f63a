package stdio

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/leaktest"
)

// The test binary also plays a launcher whose reader went away.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "broken-pipe" {
		ReportBrokenPipes()
		mux := NewMux(MuxOptions{Stdout: Output{Writer: os.Stdout}, Stderr: Output{Writer: os.Stderr}, Tag: TagNone})
		for i := range 3 {
			if err := mux.Write(0, "", Stdout, []byte("text\n"), time.Now()); err != nil {
				fmt.Fprintf(os.Stderr, "write %d: %v\n", i, err)
			}
		}
		os.Exit(7)
	}
	leaktest.Main(m)
}

type frame struct {
	data string
	at   time.Time
}

// pumped starts a pump over a pipe, which gives unfinished lines any time; frames come on the channel, which is closed
// when Run returns.
func pumped(t *testing.T, tail *Tail) (w *os.File, p *Pump, frames <-chan frame) {
	t.Helper()
	return pumpedFor(t, time.Hour, tail)
}

// pumpedFor is the same with a time that unfinished lines are held back.
func pumpedFor(t *testing.T, hold time.Duration, tail *Tail) (w *os.File, p *Pump, frames <-chan frame) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	ch := make(chan frame, 1000)
	p = NewPump(os.NewFile(uintptr(fds[0]), "r"), hold, func(data []byte, at time.Time) { ch <- frame{string(data), at} }, tail)
	go func() {
		defer close(ch)
		if err := p.Run(); err != nil {
			t.Error(err)
		}
	}()
	w = os.NewFile(uintptr(fds[1]), "w")
	t.Cleanup(func() { _ = w.Close() })
	return w, p, ch
}

func write(t *testing.T, w *os.File, s string) {
	t.Helper()
	if _, err := w.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

func TestPumpCutsAtLineEnds(t *testing.T) {
	w, _, frames := pumped(t, nil)
	write(t, w, "one\ntwo\nthr")
	if f := <-frames; f.data != "one\ntwo\n" || !Whole([]byte(f.data)) {
		t.Errorf("got %q", f.data)
	}
	write(t, w, "ee\r40%")
	if f := <-frames; f.data != "three\r" || !Whole([]byte(f.data)) {
		t.Errorf("got %q", f.data)
	}
	_ = w.Close()
	if f := <-frames; f.data != "40%" || Whole([]byte(f.data)) {
		t.Errorf("got %q", f.data)
	}
	if f, ok := <-frames; ok {
		t.Errorf("more: %q", f.data)
	}
}

func TestPumpFlushesUnfinishedLine(t *testing.T) {
	w, _, frames := pumpedFor(t, FlushAfter, nil)
	before := time.Now()
	write(t, w, "password: ")
	f := <-frames // with the pipe still open: only the timer can have sent it
	if f.data != "password: " || Whole([]byte(f.data)) {
		t.Errorf("got %q", f.data)
	}
	if f.at.Before(before) || time.Since(f.at) < FlushAfter {
		t.Errorf("stamped %v, want the time it was read", f.at.Sub(before))
	}
	write(t, w, "x\n")
	if f := <-frames; f.data != "x\n" {
		t.Errorf("got %q", f.data)
	}
}

func TestPumpFlushesASlowLineThatNeverPauses(t *testing.T) {
	w, _, frames := pumpedFor(t, FlushAfter, nil)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				_, _ = w.WriteString(".")
			}
		}
	})
	f := <-frames
	close(stop)
	writer.Wait()
	if strings.Trim(f.data, ".") != "" || f.data == "" {
		t.Errorf("got %q", f.data)
	}
}

func TestPumpHoldsAnUnfinishedLine(t *testing.T) {
	w, _, frames := pumped(t, nil)
	write(t, w, "half ")
	time.Sleep(2 * FlushAfter)
	write(t, w, "and half\n")
	if f := <-frames; f.data != "half and half\n" {
		t.Errorf("got %q", f.data)
	}
}

func TestPumpLosesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var want bytes.Buffer
	for want.Len() < 10<<20 {
		line := bytes.Repeat([]byte{byte('a' + rng.IntN(26))}, rng.IntN(300))
		if rng.IntN(2000) == 0 {
			line = bytes.Repeat([]byte{'L'}, 3*FrameSize)
		}
		want.Write(append(line, "\n\r\x00"[rng.IntN(3)]))
	}
	w, _, frames := pumped(t, nil)
	go func() {
		_, _ = w.Write(want.Bytes())
		_ = w.Close()
	}()
	got := sha256.New()
	for f := range frames {
		if len(f.data) > FrameSize {
			t.Fatalf("a frame of %d bytes", len(f.data))
		}
		got.Write([]byte(f.data))
	}
	if sum := sha256.Sum256(want.Bytes()); !bytes.Equal(got.Sum(nil), sum[:]) {
		t.Error("other bytes arrived than were written")
	}
}

func TestPumpDrainEndsThoughThePipeIsOpen(t *testing.T) {
	for _, late := range []bool{false, true} {
		w, p, frames := pumped(t, nil)
		write(t, w, "first\n")
		if f := <-frames; f.data != "first\n" {
			t.Errorf("got %q", f.data)
		}
		at := time.Now().Add(50 * time.Millisecond)
		if late {
			at = time.Now().Add(-time.Second)
		}
		write(t, w, "last\nrest")
		p.Drain(at)
		var got string
		for f := range frames {
			got += f.data
		}
		if got != "last\nrest" {
			t.Errorf("got %q", got)
		}
	}
}

func TestPumpDrainIsNotHeldByAnEndlessWriter(t *testing.T) {
	w, p, frames := pumped(t, nil)
	var writer sync.WaitGroup
	writer.Go(func() {
		for {
			if _, err := w.WriteString("more\n"); err != nil {
				return // the reader is gone
			}
		}
	})
	<-frames
	p.Drain(time.Now())
	for range frames {
	}
	writer.Wait()
}

func TestTail(t *testing.T) {
	long := strings.Repeat("x", 3*tailLine)
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", nil},
		{"last three", "a\nb\nc\nd\n", []string{"b", "c", "d"}},
		{"unfinished counts", "a\nb\nc\nd", []string{"b", "c", "d"}},
		{"CRLF", "a\r\nb\r\n", []string{"a", "b"}},
		{"progress", "10%\r20%\r30%\r\ndone\n40%\r50%", []string{"30%", "done", "50%"}},
		{"long", long + "\nend\n", []string{long[:tailLine], "end"}},
		{"blank lines", "\n\na\n", []string{"", "", "a"}},
	} {
		for _, step := range []int{1, 3, 1 << 20} {
			tail := NewTail(3)
			for chunk := range slices.Chunk([]byte(tt.text), step) {
				tail.Write(chunk)
			}
			if diff := cmp.Diff(tt.want, tail.Lines()); diff != "" {
				t.Errorf("%s in steps of %d: %s", tt.name, step, diff)
			}
		}
	}
	none := NewTail(0)
	none.Write([]byte("a\nb"))
	if got := none.Lines(); len(got) != 0 {
		t.Errorf("a tail of 0 lines kept %q", got)
	}
}

func TestExitStatus(t *testing.T) {
	for _, tt := range []struct {
		code int
		sig  syscall.Signal
		core bool
		want int
		text string
	}{
		{0, 0, false, 0, "exited with status 0"},
		{3, 0, false, 3, "exited with status 3"},
		{0, syscall.SIGINT, false, 130, "was killed by signal 2 (SIGINT)"},
		{0, syscall.SIGTERM, false, 143, "was killed by signal 15 (SIGTERM)"},
		{0, syscall.SIGKILL, false, 137, "was killed by signal 9 (SIGKILL)"},
		{0, syscall.SIGSEGV, true, 139, "was killed by signal 11 (SIGSEGV), core dumped"},
		{0, 40, false, 168, "was killed by signal 40"},
	} {
		if got := ExitStatus(tt.code, tt.sig); got != tt.want {
			t.Errorf("ExitStatus(%d, %d) = %d, want %d", tt.code, tt.sig, got, tt.want)
		}
		if got := DescribeExit(tt.code, tt.sig, tt.core); got != tt.text {
			t.Errorf("got %q, want %q", got, tt.text)
		}
	}
}

func TestClosedReaderIsOneError(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(path, "broken-pipe")
	cmd.Stdout, cmd.Stderr = w, &stderr
	_ = cmd.Run()
	_ = w.Close()
	if cmd.ProcessState.ExitCode() != 7 || strings.Count(stderr.String(), "broken pipe") != 1 || !strings.HasPrefix(stderr.String(), "write 0: ") {
		t.Errorf("%v: %s", cmd.ProcessState, stderr.String())
	}
}

func TestNoTerminalNoColor(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	if IsTerminal(f) || WantColor(f) || Width(f) != 0 {
		t.Error("/dev/null was taken for a terminal")
	}
}

// TestRealTerminal looks at a pseudo-terminal.
func TestRealTerminal(t *testing.T) {
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	defer ptmx.Close()
	if err := unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(ptmx.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 77, Row: 20}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	if !IsTerminal(ptmx) || !WantColor(ptmx) || Width(ptmx) != 77 {
		t.Errorf("terminal %v, colour %v, width %d", IsTerminal(ptmx), WantColor(ptmx), Width(ptmx))
	}
	t.Setenv("TERM", "dumb")
	if WantColor(ptmx) {
		t.Error("colour on a dumb terminal")
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	if WantColor(ptmx) {
		t.Error("colour in spite of NO_COLOR")
	}
}
