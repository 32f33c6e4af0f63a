package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Texts that would take a YAML reader long, or deep, are refused before one sees them.
func TestHostileTexts(t *testing.T) {
	const n = maxFile
	fill := func(piece string) string { return strings.Repeat(piece, n/len(piece)) }
	many := func(piece string) string { return strings.Repeat(piece, 8000) } // few enough that the reader sees them
	deep := func(piece string, levels int) string {
		var b strings.Builder
		for i := range levels {
			b.WriteString(strings.Repeat(" ", i*len(piece)) + piece + "\n")
		}
		return b.String()
	}
	for _, tt := range []struct{ name, yaml, want string }{
		{"too large", fill("# comment\n") + strings.Repeat("# comment\n", 2), "1:1: the file has more than 512 KiB"},
		{"too many words", fill("a: 1\n"), "10923:4: the file goes on with more than the 32768 words, numbers and marks that are read"},
		{"one line", "schema: " + fill("x"), "1:1: the "},
		{"long line", "schema: x\noperator: " + strings.Repeat("x", maxLine) + "\n", "2:1: the line has 4106 bytes; at most 4096 are read"},
		{"lists in lists", strings.Repeat("[", maxLine), "1:25: more than 24 lists and mappings within each other"},
		{"lists in lists, line by line", many("[\n"), "25:1: more than 24 lists"},
		{"mappings in mappings", strings.Repeat("{a: ", 1000), "1:97: more than 24 lists"},
		{"dashes", strings.Repeat("- ", 2000), "1:49: more than 24 lists"},
		{"indented mappings", deep("a:", 80), "25:49: more than 24 lists"},
		{"complex keys", many("? \n"), `1:1: "?" is YAML that is not read here`},
		{"anchors", many("&a\n"), `1:1: "&" is YAML that is not read here`},
		{"expanding aliases", "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", `1:4: "&" is YAML that is not read here`},
		{"tags", many("!a\n"), `1:1: "!a" is YAML that is not read here`},
		{"directive", "%YAML 1.2\n---\nschema: x\n", `1:1: "%" is YAML that is not read here`},
		{"quotes", many("\"\"\n"), "2:1: "},
		{"quotes in a line", strings.Repeat("\"\" ", 1300), "1:4: "},
		{"colons", many(":\n"), "1:1: "},
		{"dashes, line by line", many("-\n"), "1:2: want a mapping of keys to values, found a list"},
		{"entries of nothing", "schema: mkrun.config/1\noperator: ag_gemm\nentries:\n" + many("  - a: 1\n"), "4:5: unknown key \"a\""},
		{"equal entries", "schema: mkrun.config/1\noperator: ag_gemm\nentries:\n" + strings.Repeat("  - match: {engine: cpu}\n    provenance: {how: chosen}\n", 1500), "6:12: entry 2 overlaps entry 1"},
		{"one name", "schema: mkrun.config/1\noperator: ag_gemm\nentries:\n" + many("  - name: a\n"), "4:5: entry 1: engine is \"\""},
		{"documents", many("a: 1\n---\n"), "3:1: a second document begins here"},
		{"keys", many("a: 1\n"), "1:1: unknown key \"a\""},
		{"bare text", fill("a\n"), "1:1: want a mapping of keys to values, found a text"},
		{"unclosed quote", "a: '" + fill("x\n"), ""},
		{"carriage returns", fill("\r"), "1:1: "},
		{"zeroes", fill("\x00"), "1:1: "},
		{"not text", fill("\xff\xfe\n"), "1:1: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := CheckFile("f", []byte(tt.yaml))
			if err == nil || !strings.HasPrefix(err.Error(), "f:"+tt.want) {
				t.Errorf("error = %.300v\nwant one that begins with %q", err, "f:"+tt.want)
			}
			if err != nil && len(err.Error()) > 64<<10 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

// What a hostile file may hold is nested less deep in files that mean something.
func TestSoundNesting(t *testing.T) {
	text := "a:\n" + strings.Repeat("  - [{a: 1}]\n", 4000)
	if d := parse("f", []byte(text)); d.body == nil {
		t.Error(d.err())
	}
}

// Nobody need know which library reads the files.
func TestSyntaxMistakes(t *testing.T) {
	for _, tt := range []struct{ yaml, want string }{
		{"a: [1\n", "1:4: a list [...] without its closing ]"},
		{"a: [1 2: 3\n", "1:"},
		{"a: [1,, 2]\n", "1:7: a comma with nothing in front of it"},
		{"a: {b: 1,, c: 2}\n", "1:10: a comma with nothing in front of it"},
		{"a: {b: 1, , c: 2}\n", "1:11: a comma with nothing in front of it"},
		{"a: [1, # one\n  , 2]\n", "2:3: a comma with nothing in front of it"},
		{"a: {, b: 1}\n", "1:5: a comma with nothing in front of it"},
		{"a: [,]\n", "1:5: a comma with nothing in front of it"},
		{"a: {b: 1\n", "1:4: a mapping {...} without its closing }"},
		{"a: {b: 1 c: 2}\n", "1:"},
		{"a: ]\n", "1:4: a ] without its ["},
		{"a: {b: 1}}\n", "1:10: "},
		{"a: \"x\n", "1:4: a quoted text without its closing quote"},
		{"a: 'x\n", "1:4: a quoted text without its closing quote"},
		{"a:\n\tb: 1\n", "2:1: a tab; YAML is indented with spaces"},
		{"a: b: 1\n", "1:4: a second colon in this line, or a line that is indented too far"},
		{"a: 1\n  b: 2\n", "1:4: "},
		{"a: 1\nb\n", "2:1: "},
		{"a: 1\n- b\n", "2:1: "},
		{"\"a\" b: 1\n", "1:"},
	} {
		_, err := CheckFile("f", []byte(tt.yaml))
		if err == nil || !strings.HasPrefix(err.Error(), "f:"+tt.want) {
			t.Errorf("%q: error %v\nwant one that begins with %q", tt.yaml, err, "f:"+tt.want)
			continue
		}
		for _, theirs := range []string{"token", "flow", "non-map", "context", "pre-defined", "could not find", "mapping value", "unmarshal", "node", "["} {
			first, _, _ := strings.Cut(err.Error(), "\n")
			if strings.Contains(strings.ReplaceAll(first, "[...]", ""), theirs) && !strings.Contains(tt.want, theirs) {
				t.Errorf("%q: %s\nare the words of a library", tt.yaml, first)
			}
		}
	}
}

// Commas that say something are taken.
func TestSoundCommas(t *testing.T) {
	for _, text := range []string{"a: {b: 1,}\n", "a: [1, 2,]\n", "a: {b: , c: 2}\n", "a: [[1], {b: 2}, 3]\n", "a: 1,, 2\n", "a: ','\n", "a: [',', \",,\"]\n"} {
		if d := parse("f", []byte(text)); d.body == nil {
			t.Errorf("%q: %v", text, d.err())
		}
	}
}

// The mark that some editors put in front of a UTF-8 text is no part of the first key, and moves no place.
func TestByteOrderMark(t *testing.T) {
	if _, err := parseOperator("ag_gemm", "f", []byte("\ufeff"+sample)); err != nil {
		t.Errorf("a file that begins with a byte-order mark: %v", err)
	}
	_, err := CheckFile("f", []byte("\ufeffscheme: mkrun.config/1\n"))
	if err == nil || !strings.Contains(err.Error(), "f:1:1: unknown key \"scheme\" (did you mean \"schema\"?)\n  1 | scheme:") {
		t.Errorf("error %v", err)
	}
	if spans, has, err := EntrySpans("f", "ag_gemm", []byte("\ufeff"+sample)); err != nil || !has || len(spans) != 4 || spans[0].From != 4 {
		t.Errorf("entries %v, %v (%v)", spans, has, err)
	}
}

// The place in a long or strange line is shown, and nothing that a terminal would obey.
func TestExcerpt(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		col        int
		shown      string
		before     int
	}{
		{"plain", "a: b", 4, "a: b", 3},
		{"wide letters", "ä: ö", 4, "ä: ö", 3},
		{"tab", "\ta: b", 2, " a: b", 1},
		{"escape", "a: \x1b[2J", 4, "a: \ufffd[2J", 3},
		{"past the end", "ab", 9, "ab", 2},
		{"long, at the start", strings.Repeat("x", 500), 3, strings.Repeat("x", 160), 2},
		{"long, in the middle", strings.Repeat("x", 300) + "y" + strings.Repeat("x", 300), 301,
			strings.Repeat("x", 80) + "y" + strings.Repeat("x", 79), 80},
	} {
		if shown, before := excerpt(tt.text, tt.col); shown != tt.shown || before != tt.before {
			t.Errorf("%s: %q, %d\nwant %q, %d", tt.name, shown, before, tt.shown, tt.before)
		}
	}
}

// Of a file that has no end no more is read than shows that it is too large.
func TestEndlessFile(t *testing.T) {
	if _, err := LoadOperator("ag_gemm", "/dev/zero"); err == nil || !strings.Contains(err.Error(), "more than 512 KiB") {
		t.Errorf("error %.200v", err)
	}
	name := filepath.Join(t.TempDir(), "whole.yaml")
	text := "schema: mkrun.config/1\noperator: ag_gemm\n" + strings.Repeat("# 34567\n", (maxFile-44)/8)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOperator("ag_gemm", name); err != nil {
		t.Errorf("a file of %d bytes is refused: %v", len(text), err)
	}
}
