package main

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/leaktest"
)

// A launcher that has run a job, well or badly, is left with no goroutine and no descriptor of it.
func TestLaunchLeaksNothing(t *testing.T) {
	was := begin
	defer func() { begin = was }()
	launch := func(want int, args ...string) {
		t.Helper()
		begin = time.Now() // the limit of a start counts from there, and this process may have run other tests for long
		var stdout, stderr bytes.Buffer
		if got := run(t.Context(), append([]string{"launch"}, args...), nil, &stdout, &stderr); got != want {
			t.Fatalf("%v: exit status %d, want %d\n%s%s", args, got, want, stdout.Bytes(), stderr.Bytes())
		}
	}
	launch(0, "--", "true") // what is opened once for all is open now
	before := descriptors(t)
	launch(0, "--nodes", "2", "--ppn", "2", "--", "echo", "hello")
	launch(3, "--nodes", "2", "--", "sh", "-c", "exit 3")
	launch(127, "--nodes", "2", "--", "no-such-program")
	if err := leaktest.Find(); err != nil {
		t.Error(err)
	}
	if after := descriptors(t); after > before { // now that all who may close one have ended
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
