package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// ResolveVisible says which GPUs a value of CUDA_VISIBLE_DEVICES leaves, as positions in gpus, in
// CUDA's order: indices, whole or shortened UUIDs ("GPU-3fa4"), MIG UUIDs ("MIG-...", also the older
// "MIG-GPU-UUID/gi/ci"). As CUDA does, it stops at the first entry that fits nothing, and leaves no GPU
// at all where one is named twice, in whatever form; problem then says why, and is "" otherwise.
func ResolveVisible(value string, gpus []GPU) (order []int, problem string) {
	seen := map[string]bool{}
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		if part == "" || part == "-1" || strings.EqualFold(part, "none") || strings.EqualFold(part, "void") || strings.EqualFold(part, "NoDevFiles") {
			return order, ""
		}
		if strings.EqualFold(part, "all") && len(order) == 0 {
			for i := range gpus {
				order = append(order, i)
			}
			return order, ""
		}
		i, why := findGPU(part, gpus)
		if why != "" {
			return order, fmt.Sprintf("%q %s: CUDA ignores it and all that follows", part, why)
		}
		what := strconv.Itoa(i)
		if strings.HasPrefix(part, "MIG-") {
			what = part
		}
		if seen[what] {
			return nil, fmt.Sprintf("%q is named twice: CUDA then leaves no GPU at all", part)
		}
		seen[what] = true
		order = append(order, i)
	}
	return order, ""
}

// findGPU finds the one GPU that an entry names.
func findGPU(s string, gpus []GPU) (at int, why string) {
	if n, err := strconv.Atoi(s); err == nil {
		for i, g := range gpus {
			if g.Index == n {
				return i, ""
			}
		}
		return 0, fmt.Sprintf("is no GPU's number; there are %d GPUs", len(gpus))
	}
	if old, ok := strings.CutPrefix(s, "MIG-GPU-"); ok {
		uuid, _, _ := strings.Cut(old, "/")
		s = "GPU-" + uuid
	}
	if strings.HasPrefix(s, "MIG-") {
		for i, g := range gpus {
			for _, m := range g.MIG {
				if m.UUID == s {
					return i, ""
				}
			}
		}
		return 0, "is the UUID of no MIG instance here"
	}
	if !strings.HasPrefix(s, "GPU-") {
		return 0, "is neither a number nor starts with GPU- or MIG-"
	}
	found := -1
	for i, g := range gpus {
		if g.UUID != "" && strings.HasPrefix(strings.ToLower(g.UUID), strings.ToLower(s)) {
			if found >= 0 {
				return 0, "fits several GPUs"
			}
			found = i
		}
	}
	if found < 0 {
		return 0, "is the UUID of no GPU here"
	}
	return found, ""
}
