package hosts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
)

// Host is one host as the user named it.
type Host struct {
	User  string // "": whoever ssh takes
	Name  string // a name or an address without brackets, in the user's own spelling
	Slots int    // ranks it has room for; 0: not said

	// Devices are the indices of the GPUs that may be used there, in order; nil: all.
	Devices []int

	line, col int // where it was named; line 0: on the command line
}

// MaxSlots bounds the ranks of one host, so that a slip of the finger does not ask for a million processes.
const MaxSlots = 4096

// String is the host in the form that ParseList and ParseFile read back (Devices aside).
func (h Host) String() string {
	s := h.Name
	if strings.Contains(s, ":") {
		s = "[" + s + "]"
	}
	if h.User != "" {
		s = h.User + "@" + s
	}
	if h.Slots > 0 {
		s += ":" + strconv.Itoa(h.Slots)
	}
	return s
}

// Target is the destination as ssh wants it: [user@]name, an IPv6 address without brackets.
func (h Host) Target() string {
	if h.User != "" {
		return h.User + "@" + h.Name
	}
	return h.Name
}

// key is what two spellings of one host have in common: names differ in case for people only, and an address can
// be written in several ways. Nothing shorter than the whole is ever compared.
func (h Host) key() string {
	if addr, err := netip.ParseAddr(h.Name); err == nil {
		return addr.Unmap().String()
	}
	return strings.ToLower(h.Name)
}

// spot is an error at a byte offset of the text that was parsed.
type spot struct {
	offset int
	msg    string
}

func (s *spot) Error() string { return s.msg }

func spotf(offset int, format string, args ...any) *spot {
	return &spot{offset, fmt.Sprintf(format, args...)}
}

// moved is the same error in a text in which the parsed one begins at an offset.
func (s *spot) moved(by int) *spot {
	if s == nil {
		return nil
	}
	return &spot{s.offset + by, s.msg}
}

// parseHosts reads one [user@]host[:slots] with its ranges, into at most limit hosts.
func parseHosts(text string, limit int) ([]Host, *spot) {
	if i := strings.Index(text, "://"); i >= 0 {
		return nil, spotf(0, "%q is a scheme, which a host has not: write name, name:slots or [IPv6 address]:slots", text[:i+3])
	}
	var h Host
	start := 0
	if at := strings.LastIndexByte(text, '@'); at >= 0 {
		h.User, start = text[:at], at+1
		if err := checkWord(h.User, "user", `._-+\@`); err != nil {
			return nil, err
		}
	}
	name, count, err := cutCount(text[start:])
	if err != nil {
		return nil, err.moved(start)
	}
	if count >= 0 {
		if h.Slots, err = parseSlots(text[start+count:]); err != nil {
			return nil, err.moved(start + count)
		}
	}
	if strings.HasPrefix(name, "[") && strings.Contains(name, ":") { // cutCount has checked it
		h.Name = name[1 : len(name)-1]
		return []Host{h}, nil
	}
	if strings.Contains(name, ":") {
		h.Name = name
		return []Host{h}, nil
	}
	names, err := Expand(name, limit)
	if err != nil {
		return nil, err.moved(start)
	}
	list := make([]Host, 0, len(names))
	for _, n := range names {
		if err := checkWord(n, "host", "._-"); err != nil {
			return nil, &spot{start, err.msg}
		}
		h.Name = n
		list = append(list, h)
	}
	return list, nil
}

// cutCount splits host[:count]; count is the offset behind the colon, -1 if there is none. An IPv6 address is
// checked here, since only its form tells its colons from that one.
func cutCount(s string) (name string, count int, err *spot) {
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']') + 1
		if end == 0 {
			return "", 0, spotf(0, "%q has no closing bracket", s)
		}
		if inside := s[1 : end-1]; strings.Contains(inside, ":") {
			if err := checkV6(inside); err != nil {
				return "", 0, err.moved(1)
			}
			switch rest := s[end:]; {
			case rest == "":
				return s, -1, nil
			case rest[0] == ':':
				return s[:end], end + 1, nil
			default:
				return "", 0, spotf(end, "%q behind an address: only :slots may follow", rest)
			}
		}
	}
	colon := strings.IndexByte(s, ':')
	switch {
	case colon < 0:
		return s, -1, nil
	case strings.Count(s, ":") == 1:
		return s[:colon], colon + 1, nil
	}
	if err := checkV6(s); err != nil {
		return "", 0, &spot{err.offset, err.msg + "; with a number of slots write [address]:slots"}
	}
	return s, -1, nil
}

func checkV6(s string) *spot {
	addr, err := netip.ParseAddr(s)
	if err != nil || !addr.Is6() {
		return spotf(0, "%q is not an IPv6 address", s)
	}
	if zone := addr.Zone(); zone != "" {
		if err := checkWord(zone, "zone", "._-"); err != nil {
			return &spot{strings.IndexByte(s, '%') + 1, err.msg}
		}
	}
	return nil
}

// checkWord refuses what neither a name nor a user has, and whatever ssh would take for an option.
func checkWord(s, what, punctuation string) *spot {
	if s == "" {
		return spotf(0, "the %s is missing", what)
	}
	if s[0] == '-' {
		return spotf(0, "%s %q begins with \"-\", which ssh would take for an option", what, s)
	}
	for i, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(punctuation, r) {
			return spotf(i, "%s %q: %q may not be in it", what, s, r)
		}
	}
	return nil
}

func parseSlots(s string) (int, *spot) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n < 1 || n > MaxSlots {
		return 0, spotf(0, "%q is not a number of slots: 1 to %d", s, MaxSlots)
	}
	return int(n), nil
}
