package request

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseShapes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shapes")
	if err := os.WriteFile(file, []byte("\xef\xbb\xbf8x16x24 32,8,16 # in a line\n# and\n\nllama3-8b/mlp-up/tp4@128\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := ParseShapes([]string{"1x2x3", file, "llama3-8b/mlp-up/tp4@1"})
	if err != nil {
		t.Fatal(err)
	}
	want := []ListedShape{{M: 1, N: 2, K: 3}, {M: 8, N: 16, K: 24}, {M: 32, N: 8, K: 16},
		{Layer: "llama3-8b/mlp-up/tp4", Tokens: 128}, {Layer: "llama3-8b/mlp-up/tp4", Tokens: 1}}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("shapes (-want +got):\n%s", diff)
	}
	for _, s := range list { // what is written is read
		if again, err := ParseShape(s.String()); err != nil || again != s {
			t.Errorf("%v became %v (%v)", s, again, err)
		}
	}
	req := list[3].Of(base())
	req.World.PPN = []int{4}
	if r, err := req.ResolvePlan(); err != nil || r.Run.Shape.M != 128 || r.Run.Shape.N != 3584 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestShapesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	bad, many := filepath.Join(dir, "bad"), filepath.Join(dir, "many")
	var b strings.Builder
	for i := range 1001 {
		fmt.Fprintf(&b, "%dx8x8\n", i+1)
	}
	for name, text := range map[string]string{bad: "8x8x8\n8x8\n", many: b.String()} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ value, want string }{
		{"", "no shapes"}, {"8x8", "want MxNxK or LAYER@TOKENS"}, {"8x8x0", "at least 1"}, {"8x8x99999999999999999999", "at least 1"},
		{"a@0", "is not a number of tokens"}, {"a@99999999999999999999", "is not a number of tokens"}, {"a@b", "want MxNxK"},
		{bad, "bad:2: shape \"8x8\""}, {many, "1001 shapes"}, {dir, "reading the shapes"},
	} {
		var values []string
		if tt.value != "" {
			values = []string{tt.value}
		}
		if _, err := ParseShapes(values); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want one with %q", tt.value, err, tt.want)
		}
	}
	if _, err := ParseShapes([]string{"8x8x8", "8,8,8"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a shape twice: %v", err)
	}
}
