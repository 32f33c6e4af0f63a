// Package version says which mkrun this is.
//
// The Makefile stamps version and commit into the binary; a binary made by plain `go build` or
// `go install` falls back to what the Go tool recorded in it.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// Set by -ldflags "-X github.com/mkrun/mkrun/internal/version.version=...".
var (
	version string // git describe, e.g. "v0.1.0-3-gabc1234-dirty"
	commit  string // full commit hash
)

// Info identifies a build.
type Info struct {
	Version string `json:"version"` // "v1.2.3", git describe's word for it, or "devel"
	Commit  string `json:"commit"`  // full hash; "" when unknown
	Dirty   bool   `json:"dirty"`   // made from a tree with uncommitted changes
	Go      string `json:"go"`      // the Go release that compiled it
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// Get returns the identity of the running binary.
var Get = sync.OnceValue(func() Info {
	bi, _ := debug.ReadBuildInfo()
	return resolve(version, commit, bi)
})

func resolve(version, commit string, bi *debug.BuildInfo) Info {
	const dirtySuffix = "-dirty"
	info := Info{
		Version: strings.TrimSuffix(version, dirtySuffix),
		Commit:  commit,
		Dirty:   strings.HasSuffix(version, dirtySuffix),
		Go:      runtime.Version(),
		OS:      runtime.GOOS,
		Arch:    runtime.GOARCH,
	}
	if bi != nil && info.Version == "" {
		if bi.Main.Version != "(devel)" {
			info.Version = strings.TrimSuffix(bi.Main.Version, "+dirty")
		}
		for _, s := range bi.Settings {
			switch s.Key {
			case "vcs.revision":
				info.Commit = s.Value
			case "vcs.modified":
				info.Dirty = s.Value == "true"
			}
		}
	}
	if info.Version == "" {
		info.Version = "devel"
	}
	return info
}

// BuildID names the build in one word, for messages between processes that should be the same
// program: version, commit and whether the tree had changes.
func (i Info) BuildID() string {
	id := i.Version
	if short := i.Commit[:min(12, len(i.Commit))]; short != "" && !strings.Contains(id, short[:min(7, len(short))]) {
		id += "+" + short
	}
	if i.Dirty {
		id += "-dirty"
	}
	return id
}

// String is the one line that `mkrun version` prints.
func (i Info) String() string {
	return fmt.Sprintf("mkrun %s (%s, %s/%s)", i.BuildID(), i.Go, i.OS, i.Arch)
}
