package launch

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// sameInput reads all of a rank's input, in reads of some size.
func sameInput(t *testing.T, f *os.File, size int, want [32]byte) {
	t.Helper()
	h := sha256.New()
	buf := make([]byte, size)
	for {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
	if got := [32]byte(h.Sum(nil)); got != want {
		t.Error("a rank read something else")
	}
}

func silent(string) {}

// From the launcher's file over two nodes to three ranks, of which one reads slowly and one stops: every node would refuse
// what goes beyond the window.
func TestInputFromEndToEnd(t *testing.T) {
	data := make([]byte, 5*stdinWindow+12345)
	if _, err := rand.NewChaCha8([32]byte{2}).Read(data); err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256(data)
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()

	var source *stdinSource
	var mu sync.Mutex // source is set before the first acknowledgement is needed
	feeds := make([]*stdinFeed, 2)
	for node := range feeds {
		feeds[node] = newStdinFeed(func(taken uint64, closed bool) {
			mu.Lock()
			s := source
			mu.Unlock()
			s.acknowledge(node, &pb.StdinTaken{Bytes: taken, Closed: closed})
		})
	}
	var ranks []*os.File
	for _, node := range []int{0, 0, 1} {
		r, err := feeds[node].add()
		if err != nil {
			t.Fatal(err)
		}
		ranks = append(ranks, r)
	}
	for _, f := range feeds {
		f.start()
		defer f.close()
	}
	mu.Lock()
	source, err = startStdin(from, []int{0, 1}, silent, func(node int, m *pb.ToAgent) error {
		if err := feeds[node].feed(m.GetStdin()); err != nil {
			t.Error(err)
		}
		return nil
	})
	mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	defer source.close()
	var wg sync.WaitGroup
	wg.Go(func() {
		for rest := data; len(rest) > 0; { // of all lengths
			n := min(len(rest), 1+rand.IntN(200_000))
			if _, err := to.Write(rest[:n]); err != nil {
				t.Error(err)
			}
			rest = rest[n:]
		}
		_ = to.Close()
	})
	wg.Go(func() { sameInput(t, ranks[0], 64<<10, want) })
	wg.Go(func() { // stops in the middle
		if _, err := io.ReadFull(ranks[1], make([]byte, stdinWindow)); err != nil {
			t.Error(err)
		}
		_ = ranks[1].Close()
	})
	wg.Go(func() { sameInput(t, ranks[2], 777, want) })
	wg.Wait()
}

// While nobody takes anything no more than the window is read; what remains is for whoever reads next.
func TestInputIsNotReadAhead(t *testing.T) {
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	sent := make(chan int, 1000)
	source, err := startStdin(from, []int{0}, silent, func(_ int, m *pb.ToAgent) error {
		sent <- len(m.GetStdin().GetData())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = to.Write(make([]byte, stdinWindow+100))
		_ = to.Close()
	}()
	for total := 0; total < stdinWindow; {
		total += <-sent
	}
	<-written
	source.close()
	if rest, err := io.ReadAll(from); err != nil || len(rest) != 100 {
		t.Errorf("%d bytes are left, %v; want 100", len(rest), err)
	}
	if len(sent) > 0 {
		t.Errorf("%d bytes were sent beyond the window", <-sent)
	}
}

func TestInputThatBreaksTheProtocol(t *testing.T) {
	f := newStdinFeed(func(uint64, bool) {})
	if _, err := f.add(); err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.feed(&pb.Stdin{Data: bytes.Repeat([]byte{1}, stdinWindow)}); err != nil {
		t.Fatal(err)
	}
	if err := f.feed(&pb.Stdin{Data: []byte{1}}); err == nil || !strings.Contains(err.Error(), "broke the protocol") {
		t.Errorf("more than the window: %v", err)
	}
	var none *stdinFeed
	if err := none.feed(&pb.Stdin{}); err == nil {
		t.Error("input for a node that reads none was taken")
	}
	none.close()
}

func TestParseStdin(t *testing.T) {
	for text, want := range map[string]Stdin{"none": {}, "all": {All: true}, "0": {One: true}, "3": {One: true, Rank: 3}} {
		if got, err := ParseStdin(text, 4); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "4", "-1", "x", "1,2"} {
		if got, err := ParseStdin(text, 4); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
