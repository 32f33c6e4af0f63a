package topology

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is cut is exactly the answers: the rest says the same, on the same lines.
func TestWithoutAnswers(t *testing.T) {
	n := h200().node()
	n.note("odd \"name\\", "back\\slash, \"quote\", ünicode, ] } , and\nline")
	d, err := NewDocument([]*Node{n, n}, 4)
	if err != nil {
		t.Fatal(err)
	}
	d.Findings = CheckNodes([]*Eval{NewEval(n)}, nil)
	var b bytes.Buffer
	if err := d.Write(&b); err != nil {
		t.Fatal(err)
	}
	cut := withoutAnswers(b.Bytes())
	if len(cut) > b.Len()/2 {
		t.Errorf("%d bytes of %d are left", len(cut), b.Len())
	}
	if got, want := bytes.Count(cut, []byte("\n")), bytes.Count(b.Bytes(), []byte("\n")); got != want {
		t.Errorf("%d lines of %d", got, want)
	}
	var whole, rest map[string]any
	if err := json.Unmarshal(b.Bytes(), &whole); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(cut, &rest); err != nil {
		t.Fatal(err)
	}
	drop := func(record any, l level) map[string]any {
		m := record.(map[string]any)
		for key := range answerKeys[l] {
			if m[key] == nil {
				t.Errorf("%s is not among the keys", key)
			}
			m[key] = nil
		}
		return m
	}
	for _, node := range drop(whole, levelDocument)["nodes"].([]any) {
		m := drop(node, levelNode)
		for _, g := range m["gpus"].([]any) {
			drop(g, levelGPU)
		}
		for _, c := range m["nics"].([]any) {
			drop(c, levelNIC)
		}
	}
	if d := cmp.Diff(whole, rest); d != "" {
		t.Error(d)
	}
}

// What is not well-formed is left for the decoder, which says what is wrong and where.
func TestWithoutAnswersLeavesErrors(t *testing.T) {
	for _, text := range []string{
		"", "{", `{"nodes"`, `{"nodes":`, `{"nodes":[`, `{"nodes":[{]}`, `{"rails":[1,2`, `{"rails":"x`, `{"a" 1}`, `{"a":1 "b":2}`, `{,}`, `{"a":}`,
		`{"a":"x\"}`, strings.Repeat("[", 100000),
	} {
		if got := withoutAnswers([]byte(text)); string(got) != text {
			t.Errorf("%.40q became %.40q", text, got)
		}
	}
	for text, want := range map[string]string{
		`{"rails": {"a": [1, "]}"]}, "healthy": true} x`: `{"rails":null,"healthy":true} x`,
		`{"nodes":[{"gpus":[{"peers":[],"rails":1}]}]}`:  `{"nodes":[{"gpus":[{"peers":null,"rails":1}]}]}`,
		"{\"why\":\n\"x\",\"findings\":[\n\n1]}":         "{\"why\":\n\"x\",\"findings\":null\n\n}",
		`"x"`:                                            `"x"`,
	} {
		if got := withoutAnswers([]byte(text)); string(got) != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
