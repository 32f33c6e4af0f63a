package hosts

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var ignorePlace = cmpopts.IgnoreUnexported(Host{})

func host(user, name string, slots int) Host { return Host{User: user, Name: name, Slots: slots} }

func TestParseFile(t *testing.T) {
	tests := []struct {
		name, text string
		want       []Host
	}{
		{"one", "a\n", []Host{host("", "a", 0)}},
		{"P2 last line without newline", "a\nlocalhost", []Host{host("", "a", 0), host("", "localhost", 0)}},
		{"slots both ways", "a slots=4\nb:8\n", []Host{host("", "a", 4), host("", "b", 8)}},
		{"user", "me@a:2\nme@realm@b slots=3\n", []Host{host("me", "a", 2), host("me@realm", "b", 3)}},
		{"P1 IPv6", "[2620:0:1::5]\n[::2]:8\nfe80::1\n[fe80::2%eth0]:4\nme@[::3]:2\n", []Host{
			host("", "2620:0:1::5", 0), host("", "::2", 8), host("", "fe80::1", 0), host("", "fe80::2%eth0", 4), host("me", "::3", 2)}},
		{"IPv4", "10.0.0.1:8\n10.0.0.2", []Host{host("", "10.0.0.1", 8), host("", "10.0.0.2", 0)}},
		{"comments", "# all of it\n\n  # indented\na # behind\nb slots=2 #x\n", []Host{host("", "a", 0), host("", "b", 2)}},
		{"CRLF, tabs, blanks at the end", "a\tslots=4 \t\r\n\r\n b:2 \r\n", []Host{host("", "a", 4), host("", "b", 2)}},
		{"byte order mark", "\xef\xbb\xbfa:2\n", []Host{host("", "a", 2)}},
		{"keywords of others are hosts", "slots\nport:2\ncores slots=3\n17\n", []Host{
			host("", "slots", 0), host("", "port", 2), host("", "cores", 3), host("", "17", 0)}},
		{"range", "n[08-10,20] slots=2\n", []Host{host("", "n08", 2), host("", "n09", 2), host("", "n10", 2), host("", "n20", 2)}},
		{"range with slots and user", "me@n[1-2].x:4\n", []Host{host("me", "n1.x", 4), host("me", "n2.x", 4)}},
		{"P11 the user's spelling is kept", "NodeA\n", []Host{host("", "NodeA", 0)}},
		{"P4 one name in front of another", "node1\nnode10\nnode100\n", []Host{host("", "node1", 0), host("", "node10", 0), host("", "node100", 0)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse("hosts", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, ignorePlace); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestP1P8P10ParseFileRefuses(t *testing.T) {
	tests := []struct {
		name, text, want string
	}{
		{"P10 unknown key", "a\nb max_slots=4\n", "hosts:2:3: unknown key \"max_slots\"; the only one is slots, as in `host slots=8`\n  b max_slots=4\n    ^"},
		{"P10 the mark stands below its place behind a tab", "b\tx=4\n", "hosts:1:3: unknown key \"x\"; the only one is slots, as in `host slots=8`\n  b\tx=4\n   \t^"},
		{"P10 columns are characters", "é cores=1", "hosts:1:3: unknown key \"cores\""},
		{"P10 key before the host", "slots=4 a\n", "hosts:1:1: slots= comes before a host"},
		{"two words", "a b\n", `hosts:1:3: "b" is not understood`},
		{"no slots", "a slots=\n", `hosts:1:9: "" is not a number of slots`},
		{"no slots behind a colon", "a:\n", `hosts:1:3: "" is not a number of slots`},
		{"P8 negative", "a slots=-2\n", `hosts:1:9: "-2" is not a number of slots`},
		{"zero", "a:0\n", `hosts:1:3: "0" is not a number of slots`},
		{"signed", "a:+3\n", `hosts:1:3: "+3" is not a number of slots`},
		{"huge", "a:99999999999999999999\n", "is not a number of slots: 1 to 4096"},
		{"twice", "a:2 slots=2\n", "hosts:1:5: the number of slots is given twice"},
		{"P8 the same host on two lines", "a slots=2\nb\n  A:3\n", "hosts:3:3: A is named a second time, after line 1"},
		{"the same IPv6 address", "[::1]\n0:0:0:0:0:0:0:1\n", "hosts:2:1: 0:0:0:0:0:0:0:1 is named a second time, after line 1"},
		{"the same host as two users", "a\nme@a\n", "after line 1"},
		{"in a range", "n[1-3]\nn2\n", "hosts:2:1: n2 is named a second time, after line 1"},
		{"P1 scheme", "tcp6://[::1]\n", `hosts:1:1: "tcp6://" is a scheme`},
		{"P1 IPv6 that is none", "[fe80::g]:3\n", `hosts:1:2: "fe80::g" is not an IPv6 address`},
		{"P1 bare IPv6 with slots says how", "fe80:::8\n", "with a number of slots write [address]:slots"},
		{"bracket left open", "[fe80::1\n", "no closing bracket"},
		{"words behind the bracket", "[::1]8\n", `hosts:1:6: "8" behind an address`},
		{"option as host", "-oProxyCommand=x\n", "begins with \"-\", which ssh would take for an option"},
		{"option as user", "-l@a\n", "begins with \"-\""},
		{"option as host behind a user", "me@-a\n", "hosts:1:4: host \"-a\" begins with \"-\""},
		{"a comment needs a blank before it", "c#d\n", `hosts:1:1: host "c#d": '#' may not be in it`},
		{"shell text", "a;reboot\n", `hosts:1:1: host "a;reboot": ';' may not be in it`},
		{"command substitution as user", "$(x)@a\n", "'$' may not be in it"},
		{"NUL", "a\x00b\n", `'\x00' may not be in it`},
		{"no UTF-8", "a\nnode\xc3\xa9 b\xff\n", "hosts:2:8: the byte 0xff is not UTF-8 text"},
		{"range left open", "n[1-3\n", "hosts:1:2: \"[\" has no closing \"]\""},
		{"range backwards", "n[3-1]\n", "hosts:1:3: range 3-1 runs backwards"},
		{"range of letters", "n[1,a-b]\n", `hosts:1:5: "a-b" is not a range`},
		{"empty range", "n[]\n", `"" is not a range`},
		{"nested", "n[[1]]\n", "has no closing"},
		{"shut before open", "n]1[\n", "without"},
		{"too many", "n[0-99999]\n", "more than 16384 hosts"},
		{"too many by combination", "n[0-999]m[0-999]\n", "more than 16384 hosts"},
		{"too many by lines", "n[0-16383]\nm\n", "hosts:2:1: more than 16384 hosts"},
		{"too wide a number", "n[0-9999999999999999]\n", "is not a range"},
		{"nothing", "# only words\n", "hosts names no host"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse("hosts", []byte(tt.text))
			if err == nil {
				t.Fatalf("accepted as %v", got)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error:\n%v\nwant in it:\n%v", err, tt.want)
			}
		})
	}
}

func TestP10MissingFileIsFatal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	if _, err := ParseFile(path); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want one that names %s", err, path)
	}
}

func TestParseList(t *testing.T) {
	got, err := ParseList("-H", "a:8,me@n[01-02,4]:2,[fe80::1%eth0]:3,::1")
	if err != nil {
		t.Fatal(err)
	}
	want := []Host{host("", "a", 8), host("me", "n01", 2), host("me", "n02", 2), host("me", "n4", 2), host("", "fe80::1%eth0", 3), host("", "::1", 0)}
	if diff := cmp.Diff(want, got, ignorePlace); diff != "" {
		t.Error(diff)
	}
	for text, want := range map[string]string{
		"":         `-H: character 1 of "": the host is missing`,
		"a,,b":     `-H: character 3 of "a,,b": the host is missing`,
		"a:8,b:x":  `-H: character 7 of "a:8,b:x": "x" is not a number of slots`,
		"a,b,A:8":  `-H: character 5 of "a,b,A:8": A is named a second time, after character 1`,
		"a,-b":     `begins with "-"`,
		"a b":      `' ' may not be in it`,
		"n[1-2],x": "",
	} {
		_, err := ParseList("-H", text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", text, err, want)
		}
	}
}

// randomHosts makes hosts of every form.
func randomHosts(rng *rand.Rand) []Host {
	var list []Host
	for i := range 1 + rng.IntN(8) {
		h := Host{Slots: rng.IntN(4) * rng.IntN(1000)}
		if rng.IntN(2) == 0 {
			h.User = []string{"me", "-x"[1:], `DOM\me`, "a@b", "u+v"}[rng.IntN(5)]
		}
		switch rng.IntN(3) {
		case 0:
			h.Name = fmt.Sprintf("Node-%d.x_y", i)
		case 1:
			h.Name = fmt.Sprintf("10.0.0.%d", i)
		case 2:
			h.Name = fmt.Sprintf("fe80::%d%%eth0", i)
		}
		list = append(list, h)
	}
	return list
}

func TestP2WhatIsPrintedReadsBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		want := randomHosts(rng)
		words := make([]string, 0, len(want))
		for _, h := range want {
			words = append(words, h.String())
		}
		fromList, err := ParseList("-H", strings.Join(words, ","))
		if err != nil {
			t.Fatal(err)
		}
		fromFile, err := Parse("hosts", []byte(strings.Join(words, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, fromList, ignorePlace); diff != "" {
			t.Fatalf("%q: %s", words, diff)
		}
		if diff := cmp.Diff(want, fromFile, ignorePlace); diff != "" {
			t.Fatalf("%q: %s", words, diff)
		}
	}
}

func TestP4P11NamesAreComparedWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		name := fmt.Sprintf("node%d", rng.IntN(100))
		longer := name + []string{"0", ".x", "-a", "1"}[rng.IntN(4)]
		if _, err := ParseList("-H", name+","+longer); err != nil {
			t.Fatalf("%s and %s are taken for one host: %v", name, longer, err)
		}
		if _, err := ParseList("-H", name+","+strings.ToUpper(name)); err == nil {
			t.Fatalf("P11: %s and %s are taken for two hosts", name, strings.ToUpper(name))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"a slots=4\r\nb:8\n# x\n", "n[01-16,20]", "[fe80::1%eth0]:4", "me@[::1]", "\xef\xbb\xbfa", "a[1-2]b[3-4]:7", "-x", "tcp6://[::1]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := Parse("hosts", data)
		if err != nil {
			return
		}
		var text strings.Builder
		for _, h := range list {
			if h.Name == "" || h.Name[0] == '-' || strings.HasPrefix(h.Target(), "-") || h.Slots < 0 || h.Slots > MaxSlots {
				t.Fatalf("accepted %+v", h)
			}
			text.WriteString(h.String() + "\n")
		}
		again, err := Parse("again", []byte(text.String()))
		if err != nil {
			t.Fatalf("%q was printed as %q: %v", data, text.String(), err)
		}
		if diff := cmp.Diff(list, again, ignorePlace); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzParseList(f *testing.F) {
	for _, s := range []string{"a:8,b:8", "n[1-2,4],me@x", "[::1]:8,::2", ",", "a[,]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := ParseList("-H", s)
		var words []string
		for _, h := range list {
			words = append(words, h.String())
		}
		if err != nil {
			return
		}
		again, err := ParseList("-H", strings.Join(words, ","))
		if err != nil {
			t.Fatalf("%q was printed as %q: %v", s, words, err)
		}
		if diff := cmp.Diff(list, again, ignorePlace); diff != "" {
			t.Fatal(diff)
		}
	})
}
