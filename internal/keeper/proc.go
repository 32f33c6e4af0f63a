package keeper

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Process is an entry of the process table.
type Process struct {
	PID, Parent, Group, Session int
	State                       byte // as in /proc/PID/stat: R, S, D, T, Z, ...
	Name                        string
}

func (p Process) String() string {
	return fmt.Sprintf("%d (%s, state %c)", p.PID, p.Name, p.State)
}

// dead reports a process that has ended and only waits to be reaped.
func (p Process) dead() bool { return p.State == 'Z' || p.State == 'X' }

// stopped reports a process that goes on only when somebody lets it.
func (p Process) stopped() bool { return p.State == 'T' || p.State == 't' }

// processes reads the process table. It is no snapshot: processes come and go while it is read. But one that
// exists all the time, as an unreaped child of the caller does, is always in it.
func processes() ([]Process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	table := make([]Process, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			table = append(table, p)
		}
	}
	return table, nil
}

func readProcess(pid int) (Process, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, false // it has ended
	}
	return parseStat(pid, stat)
}

// parseStat reads "PID (NAME) STATE PPID PGRP SESSION ...". The name may hold anything, brackets included.
func parseStat(pid int, stat []byte) (Process, bool) {
	from, to := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if from < 0 || to < from {
		return Process{}, false
	}
	fields := bytes.Fields(stat[to+1:])
	if len(fields) < 4 {
		return Process{}, false
	}
	p := Process{PID: pid, Name: string(stat[from+1 : to]), State: fields[0][0]}
	for i, dst := range []*int{&p.Parent, &p.Group, &p.Session} {
		n, err := strconv.Atoi(string(fields[1+i]))
		if err != nil {
			return Process{}, false
		}
		*dst = n
	}
	return p, true
}

// descendants returns all processes below root, except the subtrees of those children of root for which
// spare is true. Parents come before their children.
func descendants(table []Process, root int, spare func(child Process) bool) []Process {
	below := map[int][]Process{}
	for _, p := range table {
		below[p.Parent] = append(below[p.Parent], p)
	}
	var found []Process
	for _, p := range below[root] {
		if !spare(p) {
			found = append(found, p)
		}
	}
	for i := 0; i < len(found); i++ {
		found = append(found, below[found[i].PID]...)
	}
	return found
}
