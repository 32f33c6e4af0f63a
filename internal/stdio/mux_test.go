package stdio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

type said struct {
	rank   int
	stream Stream
	text   string
}

func out(rank int, text string) said  { return said{rank, Stdout, text} }
func err2(rank int, text string) said { return said{rank, Stderr, text} }

func TestMux(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	for _, tt := range []struct {
		name     string
		opts     MuxOptions
		terminal bool
		says     []said
		want     string
		wantErr  string // on stderr, if not a terminal
	}{
		{name: "ranks in fixed width", opts: MuxOptions{Tag: TagRank, Ranks: 16},
			says: []said{out(3, "a\nb\n"), out(12, "c\n")}, want: "[ 3] a\n[ 3] b\n[12] c\n"},
		{name: "hosts in fixed width", opts: MuxOptions{Tag: TagHost, Ranks: 11, Hosts: []string{"host3", "longer-host"}},
			says: []said{out(3, "a\n")}, want: "[ 3 host3      ] a\n"},
		{name: "time stamps", opts: MuxOptions{Tag: TagRank, Timestamps: true},
			says: []said{out(3, "a\n")}, want: "03:04:05.006 [3] a\n"},
		{name: "time stamps alone", opts: MuxOptions{Tag: TagNone, Timestamps: true},
			says: []said{out(3, "a\nb\n")}, want: "03:04:05.006 a\n03:04:05.006 b\n"},
		{name: "streams apart", opts: MuxOptions{Tag: TagRank},
			says: []said{out(1, "a\n"), err2(1, "b\n")}, want: "[1] a\n", wantErr: "[1] b\n"},
		{name: "streams on one terminal", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "a\n"), err2(1, "b\n")}, want: "[1] a\n[1] b\n"},
		{name: "blank lines are lines", opts: MuxOptions{Tag: TagRank},
			says: []said{out(1, "\n\na\n")}, want: "[1] \n[1] \n[1] a\n"},
		{name: "unfinished goes on", opts: MuxOptions{Tag: TagRank},
			says: []said{out(1, "a"), out(1, "b"), out(1, "c\nd\n")}, want: "[1] abc\n[1] d\n"},
		{name: "unfinished is cut", opts: MuxOptions{Tag: TagRank},
			says: []said{out(1, "abc"), out(2, "x\n"), out(1, "def\n"), out(1, "g\n")},
			want: "[1] abc\\\n[2] x\n[1]+def\n[1] g\n"},
		{name: "unfinished on one stream does not cut the other file", opts: MuxOptions{Tag: TagRank},
			says: []said{out(1, "abc"), err2(2, "x\n"), out(1, "def\n")}, want: "[1] abcdef\n", wantErr: "[2] x\n"},
		{name: "but does on one terminal", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "abc"), err2(1, "x\n"), out(1, "def\n")}, want: "[1] abc\\\n[1] x\n[1]+def\n"},
		{name: "unfinished at the end", opts: MuxOptions{Tag: TagRank}, says: []said{out(1, "abc")}, want: "[1] abc\n"},
		{name: "CRLF", opts: MuxOptions{Tag: TagRank}, says: []said{out(1, "a\r\nb\r"), out(1, "\nc\n")}, want: "[1] a\n[1] b\n[1] c\n"},
		{name: "progress in a file", opts: MuxOptions{Tag: TagRank},
			says: []said{out(1, "\r"), out(1, " 10%\r"), out(1, " 20%\r 30%"), out(1, "\n")}, want: "[1]  10%\n[1]  20%\n[1]  30%\n"},
		{name: "raw bytes pass", opts: MuxOptions{Tag: TagNone},
			says: []said{out(1, "\ra\r\n\x00b\rc"), out(1, "d\n"), out(2, "e")}, want: "\ra\r\n\x00b\rcd\ne"},
		{name: "raw lines of two ranks do not mix", opts: MuxOptions{Tag: TagNone},
			says: []said{out(1, "abc"), out(2, "x\n"), out(1, "def\n")}, want: "abc\nx\ndef\n"},
		{name: "progress in place", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "10%\r"), out(1, "20%\r")}, want: "[1] 20%\n"},
		{name: "progress ended by a newline", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "10%\r20%\r"), out(1, "\nnext\n")}, want: "[1] 20%\n[1] next\n"},
		{name: "progress overwritten by a line", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "10%\r"), out(1, "done\n")}, want: "[1] done\n"},
		{name: "progress that was first an unfinished rest", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "\r 10%"), out(1, "\r 20%"), out(1, "\r done\n")}, want: "[1]  done\n"},
		{name: "progress stays below other lines", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "10%\r"), out(2, "x\n"), err2(3, "y\n"), out(1, "20%\r")}, want: "[2] x\n[3] y\n[1] 20%\n"},
		{name: "progress of two ranks", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "a1\r"), out(2, "b1\r"), out(1, "a2\r"), out(2, "b2\r"), out(2, "\n")}, want: "[2] b2\n[1] a2\n"},
		{name: "progress of two ranks whose \\r comes first", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "\ra1"), out(2, "\rb1"), out(1, "\ra2"), out(2, "\rb2"), out(1, "\n"), out(2, "\n")}, want: "[1] a2\n[2] b2\n"},
		{name: "the same in pieces, beside lines", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "\r1"), out(1, "0%"), out(2, "x\n"), out(1, "\r2"), out(1, "0%"), err2(2, "y\n"), out(1, " of all\ndone"), out(1, "\n")},
			want: "[2] x\n[2] y\n[1] 20% of all\n[1] done\n"},
		{name: "the same at the end", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "\r10%"), out(2, "\r20%")}, want: "[1] 10%\n[2] 20%\n"},
		{name: "too much for a progress line", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "\ra"), out(1, strings.Repeat("b", FrameSize)), out(1, "c\n")}, want: "[1] a" + strings.Repeat("b", FrameSize) + "c\n"},
		{name: "progress beside an unfinished line", opts: MuxOptions{Tag: TagRank}, terminal: true,
			says: []said{out(1, "10%\r"), out(2, "ab"), out(1, "20%\r"), out(2, "c\n")}, want: "[2] abc\n[1] 20%\n"},
		{name: "notes stand alone", opts: MuxOptions{Tag: TagRank, Timestamps: true}, terminal: true,
			says: []said{out(1, "ab"), err2(noteRank, "mkrun: x\ny"), out(2, "9%\r"), err2(noteRank, "z")},
			want: "03:04:05.006 [1] ab\\\nmkrun: x\ny\nz\n03:04:05.006 [2] 9%\n"},
		{name: "notes beside raw bytes", opts: MuxOptions{Tag: TagNone}, terminal: true,
			says: []said{out(1, "ab"), err2(noteRank, "x"), out(1, "c\n")}, want: "ab\nx\nc\n"},
		{name: "colour", opts: MuxOptions{Tag: TagRank, Stdout: Output{Color: true}},
			says: []said{out(1, "a\n")}, want: "\x1b[32m[1]\x1b[39m a\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			tt.opts.Stdout.Writer, tt.opts.Stderr.Writer = &stdout, &stderr
			if tt.terminal {
				tt.opts.Stdout.Terminal, tt.opts.Stderr.Terminal = true, true
				tt.opts.Stderr.Writer = &stdout
			}
			m := NewMux(tt.opts)
			for _, s := range tt.says {
				if s.rank == noteRank {
					if err := m.Note(s.text); err != nil {
						t.Fatal(err)
					}
					continue
				}
				if err := m.Write(s.rank, fmt.Sprintf("host%d", s.rank), s.stream, []byte(s.text), at); err != nil {
					t.Fatal(err)
				}
			}
			if err := m.Finish(); err != nil {
				t.Fatal(err)
			}
			got := stdout.String()
			if tt.terminal {
				got = render(t, got)
			}
			if got != tt.want {
				t.Errorf("got  %q\nwant %q\nwrote %q", got, tt.want, stdout.String())
			}
			if stderr.String() != tt.wantErr {
				t.Errorf("stderr %q, want %q", stderr.String(), tt.wantErr)
			}
		})
	}
}

// render is what a terminal shows after the text: \r goes to the start of the line, ESC[K erases to its end.
func render(t *testing.T, text string) string {
	t.Helper()
	var done strings.Builder
	var line []byte
	column := 0
	for len(text) > 0 {
		if rest, ok := strings.CutPrefix(text, "\x1b[K"); ok {
			line, text = line[:column], rest
			continue
		}
		c := text[0]
		text = text[1:]
		switch c {
		case '\r':
			column = 0
		case '\n':
			done.Write(append(line, '\n'))
			line, column = line[:0], 0
		default:
			line = append(line[:column], append([]byte{c}, line[min(column+1, len(line)):]...)...)
			column++
		}
	}
	return done.String() + string(line)
}

func TestProgressFitsTheTerminal(t *testing.T) {
	var b bytes.Buffer
	m := NewMux(MuxOptions{Stdout: Output{Writer: &b, Terminal: true, Width: func() int { return 20 }}, Tag: TagRank})
	if err := m.Write(1, "", Stdout, []byte(strings.Repeat("█", 100)+"\r"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if n := utf8.RuneCountInString(strings.ReplaceAll(b.String(), eraseLine, "")); n >= 20 {
		t.Errorf("%d columns of 20 used: %q", n, b.String())
	}
	b.Reset()
	if err := m.Finish(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "█"); n != 100 {
		t.Errorf("%d of 100 characters in the end", n)
	}
}

type broken struct{ calls int }

func (b *broken) Write([]byte) (int, error) {
	b.calls++
	return 0, io.ErrClosedPipe
}

func TestMuxReportsABrokenOutputOnce(t *testing.T) {
	var stderr bytes.Buffer
	bad := &broken{}
	m := NewMux(MuxOptions{Stdout: Output{Writer: bad}, Stderr: Output{Writer: &stderr}, Tag: TagRank})
	failed := 0
	for range 5 {
		if err := m.Write(0, "", Stdout, []byte("x\n"), time.Time{}); err != nil {
			failed++
			if !errors.Is(err, io.ErrClosedPipe) || !strings.Contains(err.Error(), "stdout") {
				t.Errorf("got %v", err)
			}
		}
		if err := m.Write(0, "", Stderr, []byte("y\n"), time.Time{}); err != nil {
			t.Error(err)
		}
	}
	if err := m.Finish(); err != nil {
		t.Error(err)
	}
	if failed != 1 || bad.calls != 1 || strings.Count(stderr.String(), "y") != 5 {
		t.Errorf("%d errors, %d writes, stderr %q", failed, bad.calls, stderr.String())
	}
}

func TestMuxIsSafeForManyRanks(t *testing.T) {
	const ranks, lines = 16, 2000
	var b bytes.Buffer
	m := NewMux(MuxOptions{Stdout: Output{Writer: &b}, Tag: TagRank, Ranks: ranks})
	var all sync.WaitGroup
	for r := range ranks {
		all.Go(func() {
			for i := range lines {
				if err := m.Write(r, "", Stdout, fmt.Appendf(nil, "rank %d line %d\n", r, i), time.Time{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	next := make([]int, ranks)
	for line := range strings.Lines(b.String()) {
		var tag, r, i int
		if n, err := fmt.Sscanf(line, "[%d] rank %d line %d\n", &tag, &r, &i); n != 3 || tag != r || i != next[r] {
			t.Fatalf("%q: %v", line, err)
		}
		next[r]++
	}
	for r, n := range next {
		if n != lines {
			t.Errorf("rank %d: %d of %d lines", r, n, lines)
		}
	}
}

func TestParseTag(t *testing.T) {
	for _, s := range []string{"rank", "host", "none"} {
		if got, err := ParseTag(s); err != nil || string(got) != s {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	if _, err := ParseTag("Rank"); err == nil || !strings.Contains(err.Error(), "host") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkMux writes frames of 100 lines of 16 ranks.
func BenchmarkMux(b *testing.B) {
	m := NewMux(MuxOptions{Stdout: Output{Writer: io.Discard}, Tag: TagHost, Ranks: 16, Hosts: []string{"node15"}})
	frame := bytes.Repeat([]byte("a line of some sixty characters, as a program may well print\n"), 100)
	b.SetBytes(int64(len(frame)))
	for i := 0; b.Loop(); i++ {
		if err := m.Write(i%16, "node3", Stdout, frame, time.Time{}); err != nil {
			b.Fatal(err)
		}
	}
}
