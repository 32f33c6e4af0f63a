package stdio

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Width is the number of columns of a terminal, or 0 if it is none or does not say.
func Width(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// WantColor reports whether colour belongs on a file: it is a terminal that can show it, and the user has
// not set NO_COLOR (https://no-color.org).
func WantColor(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(f)
}

// ReportBrokenPipes makes a write to a closed stdout or stderr return EPIPE, where by default the Go runtime
// ends the process. Programs that are started later keep the default: a handler, unlike an ignored
// signal, is not inherited.
func ReportBrokenPipes() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}
