package ports

import (
	"net"
	"strconv"
	"strings"
	"testing"
)

// P64: both ways of writing a range are understood, everything else is refused in words that say what is wrong.
func TestP64Parse(t *testing.T) {
	for text, want := range map[string]Range{"20000-20100": {20000, 20100}, "53001:53031": {53001, 53031}, "7-7": {7, 7}, "1-65535": {1, 65535}} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		} else if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%v does not read back: %v, %v", got, again, err)
		}
	}
	for text, want := range map[string]string{
		"": "no range", "20000": "no range", "a-b": `"a" is not a port`, "0-5": `"0" is not a port`, "5-70000": `"70000" is not a port`,
		"9-8": "ends before it begins", "1-2-3": `"2-3" is not a port`, "-5": `"" is not a port`, "5 - 6": `"5 " is not a port`,
	} {
		if r, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", text, r, err, want)
		}
	}
}

func TestListenStaysInTheRange(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	taken := first.Addr().(*net.TCPAddr).Port
	r := Range{taken - 1, taken + 1}
	for range 2 {
		l, err := r.Listen(t.Context(), "127.0.0.1")
		if err != nil {
			if strings.Contains(err.Error(), "none of the ports "+strconv.Itoa(taken-1)+"-") {
				return // somebody else has one of them
			}
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if port := l.Addr().(*net.TCPAddr).Port; port == taken || port < r.First || port > r.Last {
			t.Errorf("port %d, want another one of %v", port, r)
		}
	}
	if l, err := r.Listen(t.Context(), "127.0.0.1"); err == nil || !strings.Contains(err.Error(), "none of the ports") {
		t.Errorf("%v, %v: three of three are taken", l, err)
	}
}
