package stdio

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit statuses of mkrun that are not a rank's own.
const (
	StatusUsage         = 2   // wrong command line
	StatusTimeout       = 124 // --timeout or --start-timeout ran out
	StatusLauncher      = 125 // mkrun itself failed: node unreachable, agent lost, working directory missing
	StatusNotExecutable = 126 // the program is there but cannot be run
	StatusNotFound      = 127 // the program is not there
)

// StatusOfSignal is the status of a process that a signal killed, or of a job that the user's signal
// ended: 128 + signal, as in a shell (SIGINT 130, SIGTERM 143).
func StatusOfSignal(sig syscall.Signal) int { return 128 + int(sig) }

// ExitStatus is the status of a process as a shell would give it: its exit code (0..255), or
// 128 + signal if a signal killed it (sig != 0).
func ExitStatus(code int, sig syscall.Signal) int {
	if sig != 0 {
		return StatusOfSignal(sig)
	}
	return code
}

// DescribeExit says for people how a process ended: "exited with status 3", "was killed by signal 11
// (SIGSEGV), core dumped".
func DescribeExit(code int, sig syscall.Signal, coreDumped bool) string {
	if sig == 0 {
		return fmt.Sprintf("exited with status %d", code)
	}
	text := fmt.Sprintf("was killed by signal %d", int(sig))
	if name := unix.SignalName(sig); name != "" {
		text += " (" + name + ")"
	}
	if coreDumped {
		text += ", core dumped"
	}
	return text
}
