package keeper

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// RaiseLimits lets this process, and the ranks that inherit its limits, lock as much memory as the host allows at all,
// which NICs need to reach it. The limit of open files stays what it was: the Go runtime gives children the one it found.
func RaiseLimits() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("read the limit of locked memory: %w", err)
	}
	if limit.Cur >= limit.Max {
		return nil
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("raise the limit of locked memory: %w", err)
	}
	return nil
}

// bindThread binds the calling thread to CPUs, so that what it starts is bound, and returns what undoes that.
func bindThread(cpus []int) (undo func(), err error) {
	if len(cpus) == 0 {
		return func() {}, nil
	}
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return nil, err
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }, nil
}
