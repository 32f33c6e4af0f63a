package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCPU bounds what a mask or list may name, so that a typing error costs no memory.
const maxCPU = 1 << 16

// CPUSet is a sorted set of CPU (or NUMA node) numbers.
type CPUSet []int

// ParseCPUList reads "0-15,32-47". The empty list is the empty set.
func ParseCPUList(s string) (CPUSet, error) {
	var set CPUSet
	for part := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		lo, hi, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(lo)
		last := first
		if err == nil && ranged {
			last, err = strconv.Atoi(hi)
		}
		if err != nil || first < 0 || last < first || last >= maxCPU {
			return nil, fmt.Errorf("%q in %q is neither a number nor a range such as 0-15", part, s)
		}
		for n := first; n <= last; n++ {
			set = append(set, n)
		}
	}
	return set.normal(), nil
}

// ParseCPUMask reads a mask of 32-bit groups, most significant first: "00000000,0000ffff". A group
// may be written with 0x and may be empty (hwloc). short reports
// groups, other than the first, that are not 8 digits: one was lost.
func ParseCPUMask(s string) (set CPUSet, short bool, err error) {
	groups := strings.Split(strings.TrimSpace(s), ",")
	for i, g := range groups {
		g = strings.TrimSpace(g)
		digits := strings.TrimPrefix(strings.ToLower(g), "0x")
		if digits == "" {
			continue
		}
		v, perr := strconv.ParseUint(digits, 16, 64)
		base := 32 * (len(groups) - 1 - i)
		if perr != nil || base >= maxCPU {
			return nil, false, fmt.Errorf("%q in %q is not a hexadecimal group of a CPU mask", g, s)
		}
		if len(groups) > 1 && (v > 0xffffffff || i > 0 && len(digits) < 8 && !strings.HasPrefix(strings.ToLower(g), "0x")) {
			short = true
		}
		for b := range 64 {
			if v>>b&1 == 1 {
				set = append(set, base+b)
			}
		}
	}
	return set.normal(), short, nil
}

func (c CPUSet) normal() CPUSet {
	slices.Sort(c)
	return slices.Compact(c)
}

// String is the list form.
func (c CPUSet) String() string {
	var b strings.Builder
	for i := 0; i < len(c); {
		j := i
		for j+1 < len(c) && c[j+1] == c[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(c[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(c[j]))
		}
		i = j + 1
	}
	return b.String()
}

// Mask is the form of NCCL's XML: 32-bit groups, most significant first, as many as cpus need.
func (c CPUSet) Mask(cpus int) string {
	if len(c) > 0 {
		cpus = max(cpus, c[len(c)-1]+1)
	}
	groups := make([]uint32, max(1, (cpus+31)/32))
	for _, n := range c {
		groups[n/32] |= 1 << (n % 32)
	}
	slices.Reverse(groups)
	words := make([]string, len(groups))
	for i, g := range groups {
		words[i] = fmt.Sprintf("%08x", g)
	}
	return strings.Join(words, ",")
}

// overlaps says whether two sets share a member.
func (c CPUSet) overlaps(d CPUSet) bool {
	for i, j := 0, 0; i < len(c) && j < len(d); {
		switch {
		case c[i] == d[j]:
			return true
		case c[i] < d[j]:
			i++
		default:
			j++
		}
	}
	return false
}
