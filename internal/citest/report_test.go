package main

import (
	"strings"
	"testing"
	"time"
)

const (
	passing = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Output":"ok  \tp\t(cached)\n"}
{"Action":"pass","Package":"p","Elapsed":0.5}
`
	skipping = `{"Action":"run","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"q","Test":"TestB","Output":"    b_test.go:7: needs a GPU\n"}
{"Action":"output","Package":"q","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"q","Test":"TestB","Elapsed":0}
{"Action":"pass","Package":"q","Elapsed":0.1}
`
	failing = `{"Action":"run","Package":"r","Test":"TestC"}
{"Action":"output","Package":"r","Test":"TestC","Output":"    c_test.go:9: got 1, want 2\n"}
{"Action":"fail","Package":"r","Test":"TestC","Elapsed":0}
{"Action":"fail","Package":"r","Elapsed":0.1}
`
	panicking = `{"Action":"run","Package":"s","Test":"TestD"}
{"Action":"output","Package":"s","Test":"TestD","Output":"panic: boom\n"}
{"Action":"fail","Package":"s","Elapsed":0.1}
`
	notBuilding = `{"ImportPath":"t","Action":"build-output","Output":"t.go:3:1: undefined: x\n"}
{"ImportPath":"t","Action":"build-fail"}
{"Action":"fail","Package":"t","Elapsed":0,"FailedBuild":"t"}
`
	withoutTests = `{"Action":"output","Package":"u","Output":"?   \tu\t[no test files]\n"}
{"Action":"skip","Package":"u","Elapsed":0}
`
)

func TestReport(t *testing.T) {
	tests := []struct {
		name     string
		stream   string
		goFailed bool
		strict   bool
		ok       bool
		want     []string
	}{
		{"pass", passing, false, true, true, []string{"ok    p 500ms (cached)", "PASS  1 passed, 0 failed, 0 skipped in 1 packages"}},
		{"skip at home", passing + skipping, false, false, true, []string{"SKIP  q TestB: b_test.go:7: needs a GPU", "PASS  1 passed, 0 failed, 1 skipped"}},
		{"skip in CI", passing + skipping, false, true, false, []string{"needs a GPU", "skipped tests count as failures", "FAIL  1 passed, 0 failed, 1 skipped"}},
		{"a package without tests is no skip", passing + withoutTests, false, true, true, []string{"0 skipped"}},
		{"fail", passing + failing, true, false, false, []string{"c_test.go:9: got 1, want 2", "FAIL  r", "FAIL  1 passed, 1 failed"}},
		{"a failing test is enough", failing, false, false, false, []string{"0 passed, 1 failed"}},
		{"panic", passing + panicking, true, false, false, []string{"panic: boom", "BROKEN  s"}},
		{"does not build", passing + notBuilding, true, false, false, []string{"t.go:3:1: undefined: x", "BROKEN  t"}},
		{"go test failed for another reason", passing + "go: no module\n", true, false, false, []string{"go: no module", "FAIL  1 passed"}},
		{"nothing ran", "", false, false, false, []string{"no test ran", "FAIL  0 passed"}},
		{"last line without a newline", strings.TrimSuffix(passing, "\n"), false, true, true, []string{"PASS  1 passed"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(tt.stream)); err != nil {
				t.Fatal(err)
			}
			if ok := r.summary(time.Second, tt.goFailed, tt.strict); ok != tt.ok {
				t.Errorf("good = %v, want %v", ok, tt.ok)
			}
			for _, w := range tt.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("output lacks %q:\n%s", w, out.String())
				}
			}
		})
	}
}

func TestStrict(t *testing.T) {
	for ci, want := range map[string]bool{"": false, "true": true, "1": true, "yes": true, "false": false, "0": false} {
		if got := strict(ci); got != want {
			t.Errorf("strict(%q) = %v, want %v", ci, got, want)
		}
	}
}
