package stdio

import (
	"os"

	"golang.org/x/sys/unix"
)

// InBackground reports whether a file is the terminal that this process belongs to, and another job of the shell's has it now:
// whoever reads it would be stopped (SIGTTIN).
func InBackground(f *os.File) bool {
	foreground, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP) // fails for all other files
	return err == nil && foreground != unix.Getpgrp()
}
