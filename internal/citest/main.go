// Command citest runs `go test` and closes with one line that says how many tests passed, failed
// and were skipped, and why. Where CI is set in the environment, a skipped test fails the run.
//
//	go run ./internal/citest -race ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	ok, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "citest:", err)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(args []string) (bool, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	// The go command passes an interrupt on to the tests, so that they clean up; a kill would not.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, fmt.Errorf("making a pipe for go test: %w", err)
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("starting go test: %w", err)
	}
	r := newReport(os.Stdout)
	readErr := r.read(out)
	waitErr := cmd.Wait()
	var exit *exec.ExitError
	if waitErr != nil && !errors.As(waitErr, &exit) {
		return false, fmt.Errorf("waiting for go test: %w", waitErr)
	}
	return r.summary(time.Since(start), waitErr != nil || readErr != nil, strict(os.Getenv("CI"))), readErr
}

// strict reads the CI variable: set to anything but a word for false.
func strict(ci string) bool {
	on, err := strconv.ParseBool(ci)
	return ci != "" && (err != nil || on)
}
