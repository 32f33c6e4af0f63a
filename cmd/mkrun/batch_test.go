package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
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

// GPUs of several hosts are reached by NICs, which these commands are told as a launch is.
func TestManyJobsOnGPUsOfSeveralHosts(t *testing.T) {
	for _, net := range []string{"auto", "ibverbs"} {
		var f batchFlags
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		f.add(cmd, 1)
		if err := cmd.ParseFlags([]string{"-H", "a:8,b:8", "--engine", "cuda", "--net", net, "--wait-timeout", "3s", "--shapes", "64x64x64"}); err != nil {
			t.Fatal(err)
		}
		shapes, req, err := f.work(cmd, "ag_gemm")
		if err != nil {
			t.Fatal(err)
		}
		run, err := shapes[0].Of(req).Resolve()
		switch {
		case net == "auto" && (err == nil || !strings.Contains(err.Error(), "name them, as in --net ibverbs")):
			t.Errorf("--net auto: %v", err)
		case net != "auto" && err != nil:
			t.Errorf("--net %s: %v", net, err)
		case net != "auto" && (run.Run.Net.Backend != net || run.Run.WaitTimeout != 3*time.Second || run.Machine() != "16 x GPU of another host"):
			t.Errorf("--net %s: %+v, %v, %s", net, run.Run.Net, run.Run.WaitTimeout, run.Machine())
		}
	}
}
