package keeper

import (
	"bytes"
	"os"
	"strconv"
)

// Effort tells whether a process of this host that says nothing is at work all the same: on a host with too little memory or
// too few processors one may get its turn late, and that is no death.
type Effort struct {
	pid   int
	spent uint64
}

// EffortOf begins to look at a process.
func EffortOf(pid int) *Effort { return &Effort{pid: pid, spent: spent(pid)} }

// Works reports whether the process wants a processor, or has used one or been given memory since it was looked at last. One
// that is stopped does not work. It may not be called concurrently.
func (e *Effort) Works() bool {
	p, there := readProcess(e.pid)
	if !there || p.dead() || p.stopped() {
		return false
	}
	before := e.spent
	e.spent = spent(e.pid)
	return e.spent > before || wantsProcessor(e.pid)
}

// spent grows with the processor time (in ticks) and the page faults of a process.
func spent(pid int) (sum uint64) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0 // it has ended
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	for _, i := range []int{7, 9, 11, 12} { // minflt, majflt, utime, stime, counted from the state
		if i < len(fields) {
			n, _ := strconv.ParseUint(string(fields[i]), 10, 64) // the kernel writes numbers
			sum += n
		}
	}
	return sum
}

// wantsProcessor reports whether any thread of a process runs or waits for a processor.
func wantsProcessor(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, t := range threads {
		stat, err := os.ReadFile(dir + "/" + t.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		if p, ok := parseStat(pid, stat); ok && p.State == 'R' {
			return true
		}
	}
	return false
}
