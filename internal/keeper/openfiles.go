package keeper

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// The Go runtime raises this process's own limit of open files to the hard one, and gives children the one it found. So
// only the hard limit can be too low for mkrun itself.

// FilesPerRank is how many files Start opens for a rank, beyond those that its RankSpec has.
const FilesPerRank = 6

// spareFiles are for what is open for a moment only, and for connections.
const spareFiles = 24

// CheckOpenFiles reports, with advice, that this process may not open so many more files; what says for whom.
func CheckOpenFiles(more int, what string) error {
	open, _ := os.ReadDir("/proc/self/fd") // if that fails they count as none
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	need := uint64(len(open) + more + spareFiles)
	if need <= limit.Cur {
		return nil
	}
	return fmt.Errorf("mkrun itself has to open %d files for %s, and may open %d (ulimit -n): raise that by %s", need, what, limit.Cur, FilesAdvice(int(min(need, math.MaxInt32))))
}

// FilesAdvice says how processes may be let open so many files.
func FilesAdvice(files int) string {
	return fmt.Sprintf("ulimit -n %d where mkrun is started (ulimit -Hn shows how far that goes); of other hosts nofile in /etc/security/limits.conf, "+
		"or LimitNOFILE= of the service that starts agents (sshd, slurmd)", files)
}
