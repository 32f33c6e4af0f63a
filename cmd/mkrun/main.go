// Command mkrun launches fused multi-GPU, multi-node operators, and any other program, as ranks.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/mkrun/mkrun/internal/stdio"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main without the process: what it returns is the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 1 { // members have no command line
		if member, ok := members[args[0]]; ok {
			return member(ctx, stdin, stderr)
		}
	}
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(stderr, "mkrun: %v\n", err)
	var output *fs.PathError
	if errors.As(err, &output) && output.Op == "write" {
		return stdio.StatusLauncher // what was asked for was done, but could not be said
	}
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", usage.command)
	}
	return exitUsage
}

// exitUsage is the status of a command line that was refused before anything started.
const exitUsage = 2

// exitStatus ends mkrun with a status after everything was said already.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// usageError is a command line that cannot be understood; it points to the help of its command.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
