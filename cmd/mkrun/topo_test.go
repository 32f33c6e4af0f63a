package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The answers about real machines: score.py compares mkrun's JSON with them and prints the share.
func TestTopoScore(t *testing.T) {
	corpus, err := filepath.Abs("../../../shared/corpus/topology")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(corpus, "score.py")
	if _, err := os.Stat(script); err != nil {
		t.Skipf("the corpus of real topologies is not at %s: %v", corpus, err)
	}
	out, err := exec.CommandContext(t.Context(), "python3", script, filepath.Join(binaryDir, "mkrun"), "--verbose").CombinedOutput()
	if err != nil {
		t.Fatalf("score.py: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}
