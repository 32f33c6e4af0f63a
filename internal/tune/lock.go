package tune

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// lock takes a file for this process alone, until it is closed or the process ends. The second result is whether it could be
// had; with wait, whoever has it is waited for. Where the file system knows no locks nothing is locked. On NFS flock is a lock at
// the server for a file that is open for writing, and one of this host's processes only for a folder.
func lock(f *os.File, wait bool) (had bool, err error) {
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EBADF):
			return true, nil // EBADF: what is open for reading, on file systems that lock it at a server
		case err != nil:
			return false, fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		return true, nil
	}
}

// lockFolder keeps others out who would put entries into a file of this folder, until the result is called.
func lockFolder(name string) (done func(), err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if _, err := lock(f, true); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// holders are the processes here that have a file locked and open, as far as that can be seen.
func holders(f *os.File) (pids []string) {
	this, err := f.Stat()
	if err != nil {
		return nil
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return nil
	}
	defer func() { _ = locks.Close() }()
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // 1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF
		if len(fields) < 5 || fields[1] != "FLOCK" || slices.Contains(pids, fields[4]) {
			continue
		}
		open, _ := filepath.Glob(filepath.Join("/proc", fields[4], "fd", "*")) // the pattern is sound
		if slices.ContainsFunc(open, func(path string) bool {
			other, err := os.Stat(path)
			return err == nil && os.SameFile(this, other)
		}) {
			pids = append(pids, fields[4])
		}
	}
	return pids
}
