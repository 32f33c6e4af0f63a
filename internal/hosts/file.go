package hosts

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// Error is a host list that cannot be used: where, what stands there, and what is wrong with it.
type Error struct {
	Source    string // file, or the flag
	Line, Col int    // from 1, Col in characters; Line 0: not a file
	Text      string // the line
	Msg       string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: character %d of %q: %s", e.Source, e.Col, e.Text, e.Msg)
	}
	margin := strings.Map(func(r rune) rune { // tabs stay, so that the mark stands below its place
		if r == '\t' {
			return r
		}
		return ' '
	}, string([]rune(e.Text)[:min(e.Col-1, utf8.RuneCountInString(e.Text))]))
	return fmt.Sprintf("%s:%d:%d: %s\n  %s\n  %s^", e.Source, e.Line, e.Col, e.Msg, e.Text, margin)
}

// column counts characters up to a byte offset, from 1.
func column(line string, offset int) int {
	return utf8.RuneCountInString(line[:min(offset, len(line))]) + 1
}

// maxFile bounds what is read of a host file: MaxHosts long lines fit.
const maxFile = 8 << 20

// ParseFile reads a host file. A file that is missing, empty or wrong in one place is an error as a whole.
func ParseFile(path string) ([]Host, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("host file: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("host file: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("host file %s: more than %d bytes", path, maxFile)
	}
	return Parse(path, data)
}

// Parse reads the text of a host file; source names it in errors.
func Parse(source string, data []byte) ([]Host, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	var list []Host
	number := 0
	for raw := range strings.SplitSeq(string(data), "\n") {
		number++
		line := strings.TrimSuffix(raw, "\r")
		found, err := parseLine(line, MaxHosts-len(list))
		if err == nil {
			for i := range found {
				found[i].line = number
				found[i].col = column(line, found[i].col)
			}
			list = append(list, found...)
			continue
		}
		return nil, &Error{source, number, column(line, err.offset), strings.ToValidUTF8(line, "?"), err.msg}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s names no host", source)
	}
	if a, b, twice := duplicate(list); twice {
		text := strings.TrimSuffix(strings.Split(string(data), "\n")[b.line-1], "\r")
		return nil, &Error{source, b.line, b.col, text, fmt.Sprintf(
			"%s is named a second time, after line %d; give it once, with all its slots", b.Name, a.line)}
	}
	return list, nil
}

// parseLine reads one line: nothing, a comment, or a host.
func parseLine(line string, limit int) ([]Host, *spot) {
	for i, r := range line {
		if _, size := utf8.DecodeRuneInString(line[i:]); r == utf8.RuneError && size == 1 {
			return nil, spotf(i, "the byte %#02x is not UTF-8 text", line[i])
		}
	}
	words := fields(line)
	if len(words) == 0 {
		return nil, nil
	}
	list, err := parseHosts(words[0].text, limit)
	if err != nil {
		if key, _, isKey := strings.Cut(words[0].text, "="); isKey && key[:min(1, len(key))] != "-" {
			err = spotf(0, "%s= comes before a host: a line is `host slots=N`", key)
		}
		return nil, err.moved(words[0].offset)
	}
	for i := range list {
		list[i].col = words[0].offset
	}
	for _, w := range words[1:] {
		key, value, ok := strings.Cut(w.text, "=")
		switch {
		case !ok:
			return nil, spotf(w.offset, "%q is not understood: a line is `host slots=N`", w.text)
		case key != "slots":
			return nil, spotf(w.offset, "unknown key %q; the only one is slots, as in `host slots=8`", key)
		case list[0].Slots != 0:
			return nil, spotf(w.offset, "the number of slots is given twice")
		}
		slots, err := parseSlots(value)
		if err != nil {
			return nil, err.moved(w.offset + len(key) + 1)
		}
		for i := range list {
			list[i].Slots = slots
		}
	}
	return list, nil
}

type word struct {
	text   string
	offset int
}

// fields splits a line at blanks and tabs, up to a word that begins a comment.
func fields(line string) []word {
	var words []word
	for i := 0; i < len(line); {
		if line[i] == ' ' || line[i] == '\t' {
			i++
			continue
		}
		if line[i] == '#' {
			break
		}
		end := i
		for end < len(line) && line[end] != ' ' && line[end] != '\t' {
			end++
		}
		words = append(words, word{line[i:end], i})
		i = end
	}
	return words
}

// ParseList reads hosts separated by commas; source names the flag in errors.
func ParseList(source, text string) ([]Host, error) {
	var list []Host
	for _, w := range splitOutside(text, ',') {
		found, err := parseHosts(w.text, MaxHosts-len(list))
		if err != nil {
			return nil, &Error{source, 0, column(text, w.offset+err.offset), text, err.msg}
		}
		for i := range found {
			found[i].col = column(text, w.offset)
		}
		list = append(list, found...)
	}
	if a, b, twice := duplicate(list); twice {
		return nil, &Error{source, 0, b.col, text, fmt.Sprintf(
			"%s is named a second time, after character %d; give it once, with all its slots", b.Name, a.col)}
	}
	return list, nil
}

// splitOutside splits at a separator that is not in brackets.
func splitOutside(text string, separator byte) []word {
	var words []word
	depth, start := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '[':
			depth++
		case ']':
			depth--
		case separator:
			if depth <= 0 {
				words = append(words, word{text[start:i], start})
				start = i + 1
			}
		}
	}
	return append(words, word{text[start:], start})
}

// duplicate finds a host that is named twice.
func duplicate(list []Host) (first, second Host, found bool) {
	seen := make(map[string]int, len(list))
	for i, h := range list {
		if j, ok := seen[h.key()]; ok {
			return list[j], h, true
		}
		seen[h.key()] = i
	}
	return Host{}, Host{}, false
}
