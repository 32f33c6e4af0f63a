package request

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/mkrun/mkrun/internal/operator"
)

// Machine says in a few words what the ranks run on: how many GPUs of which kind, or the cores of this host.
func (out *Resolved) Machine() string {
	if out.Engine != operator.EngineCPU {
		return out.gpus()
	}
	text := fmt.Sprintf("%d cores", runtime.NumCPU())
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return text
	}
	for line := range strings.Lines(string(data)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return text + ", " + strings.TrimSpace(value)
		}
	}
	return text
}

// gpus counts the GPUs of the ranks by their names.
func (out *Resolved) gpus() string {
	var names []string
	count := make(map[string]int)
	seen := make(map[string]bool)
	for _, s := range out.chosen.seats {
		if seen[s.Name] {
			continue
		}
		seen[s.Name] = true
		name := "GPU of another host"
		if s.Device != nil {
			name = s.Device.Name
		}
		if count[name]++; count[name] == 1 {
			names = append(names, name)
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%d x %s", count[name], name)
	}
	return strings.Join(names, " + ")
}

// SMs is the number of SMs of the smallest GPU; 0 if that is not known here.
func (out *Resolved) SMs() int {
	least := 0
	for _, s := range out.chosen.seats {
		if s.Device != nil && (least == 0 || s.Device.SMs < least) {
			least = s.Device.SMs
		}
	}
	return least
}
