package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	freezeLimit = 500 * time.Millisecond // after which what does not stop is killed unfrozen,
	freezeLooks = 10                     // but not before so many looks: a keeper that the machine gives no time has not tried yet
	killLimit   = 5 * time.Second        // after which, if none has gone since, what does not die is reported
	sweepPause  = time.Millisecond       // between looks at the process table
	chaseRounds = 100                    // after each other, before the next of those
)

// BecomeSubreaper makes orphans below the calling process its children.
func BecomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	return nil
}

// KillDescendants kills everything below the calling process that is in another session, as all that keepers
// and their ranks leave behind is, and reaps it. Children in the caller's own session, and the subtrees of the
// children in spare, are left alone. It returns what could not be killed within some seconds: processes
// of another user, or stuck in the kernel.
func KillDescendants(spare ...int) (left []Process, err error) {
	return killOrphans(func(pid int) bool { return slices.Contains(spare, pid) }, func(int, syscall.WaitStatus) {})
}

func killOrphans(spare func(pid int) bool, reaped func(pid int, status syscall.WaitStatus)) ([]Process, error) {
	session, err := unix.Getsid(0)
	if err != nil {
		return nil, fmt.Errorf("get the session: %w", err)
	}
	s := sweeper{
		root:  os.Getpid(),
		spare: func(p Process) bool { return p.Session == session || spare(p.PID) },
		reap: func(children []Process) {
			for _, p := range children {
				var status syscall.WaitStatus
				if pid, err := syscall.Wait4(p.PID, &status, syscall.WNOHANG|unix.WALL, nil); err == nil && pid == p.PID {
					reaped(pid, status)
				}
			}
		},
	}
	return s.run()
}

// sweeper kills all descendants of the calling process. They are frozen first, so that none can fork on, or
// start another, while its relatives die.
type sweeper struct {
	root  int                      // the calling process
	spare func(child Process) bool // children to leave alone, with all below them
	reap  func(children []Process) // waits, without blocking, for children that ended
}

func (s sweeper) run() (left []Process, err error) {
	if childless() { // reading the process table of a large machine takes long
		return nil, nil
	}
	start := time.Now()
	seen := map[int]bool{}
	for looks := 0; looks < freezeLooks || time.Since(start) < freezeLimit; looks++ {
		s.chase(syscall.SIGSTOP)
		found, err := s.look()
		if err != nil {
			return nil, err
		}
		frozen := true
		var moving []Process
		for _, p := range found {
			// A process inside the kernel (D; a vfork waits so for its child) stops when it comes out.
			if p.dead() || p.stopped() || p.State == 'D' && seen[p.PID] {
				continue
			}
			frozen = false
			seen[p.PID] = true
			moving = append(moving, p)
		}
		if frozen {
			break
		}
		s.signal(moving, syscall.SIGSTOP)
		time.Sleep(sweepPause)
	}
	var slow stall
	for ; ; time.Sleep(sweepPause) {
		s.chase(syscall.SIGKILL)
		found, err := s.look()
		if err != nil || len(found) == 0 {
			return nil, err
		}
		s.signal(found, syscall.SIGKILL)
		s.reap(s.children(found))
		if slow.sees(len(found), time.Now()) > killLimit {
			return slices.DeleteFunc(found, Process.dead), nil
		}
	}
}

// stall measures how long nothing has gone of what shall go.
type stall struct {
	least int
	since time.Time
}

func (s *stall) sees(left int, now time.Time) time.Duration {
	if s.since.IsZero() || left < s.least {
		s.least, s.since = left, now
	}
	return now.Sub(s.since)
}

// chase signals the children of the root as the kernel lists them, and those that come in their place. A process that
// starts another in a session of its own and ends, which does the same, could else be gone each time that the whole
// process table has been read: its like is always a child of the root, which is a subreaper. Kernels that do not list
// children leave it to the table.
func (s sweeper) chase(sig syscall.Signal) {
	done := map[int]bool{}
	for range chaseRounds {
		var moving []Process
		for _, pid := range listedChildren() {
			if done[pid] {
				continue
			}
			done[pid] = true
			if p, ok := readProcess(pid); ok && !p.dead() && !s.spare(p) {
				moving = append(moving, p)
			}
		}
		if len(moving) == 0 {
			return
		}
		s.signal(moving, sig)
	}
}

// listedChildren are those of the calling process, if the kernel lists them.
func listedChildren() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is good
	for _, list := range lists {
		text, _ := os.ReadFile(list) // of a thread that has ended it has none
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// childless reports whether the calling process, which is a subreaper, has no child, and so nothing below it.
func childless() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return errors.Is(err, unix.ECHILD)
		}
	}
}

// look finds what is left. A child stays in the process table until it is reaped, and nothing can be below
// a process without a child: so if nothing is found, nothing is left.
func (s sweeper) look() ([]Process, error) {
	table, err := processes()
	if err != nil {
		return nil, err
	}
	return descendants(table, s.root, s.spare), nil
}

func (s sweeper) children(found []Process) []Process {
	return slices.DeleteFunc(slices.Clone(found), func(p Process) bool { return p.Parent != s.root })
}

// signal reaches whole process groups at once: the kernel lets no fork slip out of a group's signal. A
// group lies in one session, and the sessions of descendants were made below the root, so no stranger is
// in them. Only the root's own group must be taken one by one. A number read from the process table a moment
// ago cannot be another process's yet: numbers are given out in a circle.
func (s sweeper) signal(found []Process, sig syscall.Signal) {
	own := unix.Getpgrp()
	done := map[int]bool{}
	for _, p := range found {
		target := -p.Group
		if p.Group == own || p.Group <= 1 {
			target = p.PID
		}
		if !done[target] {
			done[target] = true
			// It may have ended (ESRCH) or belong to another user (EPERM): the next look tells.
			_ = unix.Kill(target, sig)
		}
	}
}
