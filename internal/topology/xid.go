package topology

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/pattern"
)

// xidLine is how the driver reports an error of a GPU to the kernel's log: "NVRM: Xid (PCI:0000:53:00): 79, pid=...".
var xidLine = pattern.Of(`NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?\): (\d+)`)

// hardwareXids are those that speak of the GPU or its links, not of the program that ran: with them the GPU is not to
// be trusted until it was reset or looked at.
var hardwareXids = map[int]string{
	48: "uncorrectable memory error", 61: "internal micro-controller halted", 62: "internal micro-controller halted",
	64: "a memory row could not be remapped", 74: "NVLink error", 79: "fell off the bus", 95: "uncontained memory error",
	119: "GSP firmware does not answer", 120: "GSP firmware error", 136: "link training failed", 140: "unrecovered ECC error",
	143: "initialisation failed", 154: "recovery action needed",
}

// kernelLog is what the kernel said since it started, or since its buffer was full; "" with false where it may not be
// read (it takes root, or kernel.dmesg_restrict=0).
func kernelLog() (string, bool) {
	const readAll, bufferSize = 3, 10 // of syslog(2)
	size, err := unix.Klogctl(bufferSize, nil)
	if err != nil || size <= 0 {
		return "", false
	}
	buffer := make([]byte, size)
	n, err := unix.Klogctl(readAll, buffer)
	if err != nil {
		return "", false
	}
	return string(buffer[:n]), true
}

// countXids counts a log's errors by PCI address and number.
func countXids(log string) map[string]map[int]int {
	counts := map[string]map[int]int{}
	for _, m := range xidLine().FindAllStringSubmatch(log, -1) {
		bdf, err := ParseBDF(m[1] + ".0")
		number, numErr := strconv.Atoi(m[2])
		if err != nil || numErr != nil {
			continue
		}
		if counts[bdf] == nil {
			counts[bdf] = map[int]int{}
		}
		counts[bdf][number]++
	}
	return counts
}

// applyXids hands the counts to the GPUs. One of a GPU that is gone is a note: there is nothing else left of it.
func (n *Node) applyXids(counts map[string]map[int]int) {
	if counts == nil {
		return
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		g.Xids = counts[g.BDF]
		if g.Xids == nil {
			g.Xids = map[int]int{}
		}
	}
	for _, bdf := range slices.Sorted(maps.Keys(counts)) {
		if !slices.ContainsFunc(n.GPUs, func(g GPU) bool { return g.BDF == bdf }) {
			n.note(bdf, "the kernel's log has Xid %s of this address, but no GPU is there any more", xidText(counts[bdf], nil))
		}
	}
}

// xidText lists errors with their times and, if told, meanings.
func xidText(xids map[int]int, meanings map[int]string) string {
	var words []string
	for _, number := range slices.Sorted(maps.Keys(xids)) {
		word := strconv.Itoa(number)
		if meanings != nil {
			if meanings[number] == "" {
				continue
			}
			word += " (" + meanings[number] + ")"
		}
		if times := xids[number]; times > 1 {
			word += fmt.Sprintf(" %d times", times)
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// xids reports errors of the hardware. Errors of programs (13, 31, 43, 45, ...) are counted, but no fault of the node.
func (c *checkup) xids() {
	for i := range c.e.Node.GPUs {
		g := &c.e.Node.GPUs[i]
		if text := xidText(g.Xids, hardwareXids); text != "" {
			c.add(Degraded, "gpu-xid", fmt.Sprintf("GPU%d", g.Index), "drain the node and reset the GPU; replace it if they come back", "the kernel's log has Xid %s", text)
		}
	}
}
