package engine

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// AvailableMemory is the number of bytes that this process's host can give without swapping, or what
// its memory cgroup has left if that is less.
func AvailableMemory() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("asking for the available memory: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	available := int64(-1)
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) >= 2 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseInt(fields[1], 10, 53)
			if err != nil {
				return 0, fmt.Errorf("asking for the available memory: %w", err)
			}
			available = kib << 10
		}
	}
	if available < 0 {
		return 0, fmt.Errorf("asking for the available memory: /proc/meminfo has no MemAvailable line")
	}
	limit, err1 := readCount("/sys/fs/cgroup/memory.max")
	used, err2 := readCount("/sys/fs/cgroup/memory.current")
	if err1 == nil && err2 == nil {
		available = min(available, max(0, limit-used))
	}
	return available, nil
}

// readCount reads a file that holds one number; "max" and missing files are errors.
func readCount(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}
