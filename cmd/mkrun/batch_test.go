package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// A command that launches many jobs may run for hours; the bounds of each job count from its own beginning.
func TestLaterJobsOfACommandHaveTheirOwnBounds(t *testing.T) {
	was := begin
	defer func() { begin = was }()
	begin = time.Now().Add(-time.Hour)
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"bench", "--iters", "1", "--warmup", "0", "ag_gemm", "--shapes", "8x8x8"}, strings.NewReader(""), &stdout, &stderr)
	if status != 0 {
		t.Errorf("status %d\n%s%s", status, stdout.String(), stderr.String())
	}
}
