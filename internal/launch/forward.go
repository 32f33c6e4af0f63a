package launch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// forwarded are the variables that ranks on other hosts get from the launcher's environment without being asked for:
// where programs and libraries are, and what tunes them. A name ending in * stands for all that begin so. The rest
// of a rank's environment is what a shell has on its own host: HOME, TMPDIR and the like differ.
var forwarded = []string{
	"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_*", "NCCL_*", "CUDA_*", "UCX_*", "OMP_*", "HF_*",
}

// EnvOptions say what ranks get besides what they get anyway.
type EnvOptions struct {
	Names []string // NAME, NAME=value or PREFIX*, as given with -x
	File  string   // with lines of NAME=value, or NAME alone; "": none
}

const maxEnvFile = 8 << 20 // bytes: more than a process can be started with

// readEnvFile reads a file of variables, which may be a pipe, but not one without an end.
func readEnvFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(data) > maxEnvFile {
		return nil, fmt.Errorf("%s has more than %d MiB; no process could be started with that", name, maxEnvFile>>20)
	}
	return data, nil
}

// ForwardEnv makes what every rank's environment has from here. Where all ranks are on this host that is the whole
// environment, else the chosen part of it, which is put over what the rank's own host has. Later settings of one
// name replace earlier ones: defaults, the file, -x.
func ForwardEnv(environ []string, opts EnvOptions, whole bool) ([]string, error) {
	base := BaseEnv(environ)
	env := base
	if !whole {
		env = nil
		for _, kv := range base {
			if name, _, _ := strings.Cut(kv, "="); slices.ContainsFunc(forwarded, func(p string) bool { return matches(p, name) }) {
				env = append(env, kv)
			}
		}
	}
	if opts.File != "" {
		data, err := readEnvFile(opts.File)
		if err != nil {
			return nil, fmt.Errorf("--env-file: %w", err)
		}
		number := 0
		for line := range bytes.SplitSeq(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), []byte("\n")) {
			number++
			text := strings.TrimSuffix(string(line), "\r")
			if trimmed := strings.TrimLeft(text, " \t"); trimmed == "" || trimmed[0] == '#' {
				continue
			}
			chosen, err := choose(environ, text)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", opts.File, number, err)
			}
			env = overlay(env, chosen)
		}
	}
	for _, item := range opts.Names {
		chosen, err := choose(environ, item)
		if err != nil {
			return nil, fmt.Errorf("-x: %w", err)
		}
		env = overlay(env, chosen)
	}
	return env, nil
}

// choose reads one item of -x or a file.
func choose(environ []string, item string) ([]string, error) {
	name, _, set := strings.Cut(item, "=")
	prefix, isPrefix := strings.CutSuffix(name, "*")
	if isPrefix && !set {
		name = prefix
	}
	for i, r := range name {
		if !(r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || i > 0 && r >= '0' && r <= '9') {
			return nil, fmt.Errorf("%q is not a variable's name; expected NAME, NAME=value or PREFIX*", name)
		}
	}
	switch {
	case name == "":
		return nil, fmt.Errorf("%q has no name", item)
	case strings.ContainsRune(item, 0):
		return nil, fmt.Errorf("the value of %s has a NUL in it", name)
	case !isPrefix && (strings.HasPrefix(name, "MKRUN_") || slices.Contains(ranked, name)):
		return nil, fmt.Errorf("%s is for mkrun to set, to each rank's own value", name)
	case set:
		return []string{item}, nil
	}
	var found []string
	for _, kv := range environ {
		n, _, _ := strings.Cut(kv, "=")
		if n == name || isPrefix && strings.HasPrefix(n, name) && !strings.HasPrefix(n, "MKRUN_") && !slices.Contains(ranked, n) {
			found = append(found, kv)
		}
	}
	if len(found) == 0 && !isPrefix {
		return nil, fmt.Errorf("%s is not set here; to set it give %s=value", name, name)
	}
	return found, nil
}

func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// overlay is a base with settings put over it; each name is left with one value.
func overlay(base, over []string) []string {
	replaced := map[string]bool{}
	for _, kv := range over {
		name, _, _ := strings.Cut(kv, "=")
		replaced[name] = true
	}
	env := make([]string, 0, len(base)+len(over))
	for _, kv := range base {
		if name, _, _ := strings.Cut(kv, "="); !replaced[name] {
			env = append(env, kv)
		}
	}
	return append(env, over...)
}
