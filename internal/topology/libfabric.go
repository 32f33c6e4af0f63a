package topology

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Provider is one of libfabric's ways to a network.
type Provider struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// libfabricLimit bounds how long fi_info may take: some providers look for hardware when they are loaded.
const libfabricLimit = time.Second

// askLibfabric lists the providers that libfabric's own tool tells of; nil where it is not installed or does not answer.
func askLibfabric(ctx context.Context) []Provider {
	path, err := exec.LookPath("fi_info")
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, libfabricLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-l")
	cmd.WaitDelay = libfabricLimit
	out, err := cmd.Output()
	if err != nil {
		return nil
	}
	return parseProviders(string(out))
}

// parseProviders reads the output of fi_info -l: a name with a colon, below it, indented, its version. Hooks are no
// ways to a network.
func parseProviders(text string) []Provider {
	list := []Provider{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \r\n")
		name, ok := strings.CutSuffix(line, ":")
		switch {
		case ok && name != "" && !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "\t"):
			list = append(list, Provider{Name: name})
		case len(list) > 0:
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "version:"); ok {
				list[len(list)-1].Version = strings.TrimSpace(v)
			}
		}
	}
	return slices.DeleteFunc(list, func(p Provider) bool { return strings.HasPrefix(p.Name, "ofi_hook_") })
}

// provides says whether libfabric has a provider; true where that is not known.
func (s *System) provides(name string) bool {
	return s.Libfabric == nil || slices.ContainsFunc(s.Libfabric, func(p Provider) bool { return p.Name == name })
}
