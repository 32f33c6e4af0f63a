package main

import (
	"io"
	"os"
	"strings"
)

// infoOf is the file that a stream is; nil if it is none.
func infoOf(w io.Writer) os.FileInfo {
	file, ok := w.(*os.File)
	if !ok {
		return nil
	}
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	return info
}

// infoAt is the file that a flag names, by its path or as fd:N; nil if it is not there.
func infoAt(name string) os.FileInfo {
	if number, ok := strings.CutPrefix(name, "fd:"); ok {
		name = "/proc/self/fd/" + number
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil
	}
	return info
}

// mixed reports whether what is written to two files would get into each other: they are one, under whatever names, and not
// the null device.
func mixed(a, b os.FileInfo) bool {
	if a == nil || b == nil || !os.SameFile(a, b) {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(a, null)
}
