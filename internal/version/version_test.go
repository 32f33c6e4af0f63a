package version

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestResolve(t *testing.T) {
	const hash = "0123456789abcdef0123456789abcdef01234567"
	recorded := &debug.BuildInfo{
		Main: debug.Module{Version: "v0.3.0+dirty"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: hash},
			{Key: "vcs.modified", Value: "true"},
		},
	}
	tests := []struct {
		name            string
		version, commit string
		bi              *debug.BuildInfo
		want            string
	}{
		{"stamped tag", "v0.1.0", hash, nil, "v0.1.0+0123456789ab"},
		{"stamped between tags", "v0.1.0-3-g0123456", hash, nil, "v0.1.0-3-g0123456"},
		{"stamped without tags", "0123456", hash, nil, "0123456"},
		{"stamped dirty", "v0.1.0-dirty", hash, nil, "v0.1.0+0123456789ab-dirty"},
		{"the stamp wins over the record", "v0.1.0", hash, recorded, "v0.1.0+0123456789ab"},
		{"recorded by go install", "", "", recorded, "v0.3.0+0123456789ab-dirty"},
		{"go run", "", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "devel"},
		{"nothing known", "", "", nil, "devel"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := resolve(tt.version, tt.commit, tt.bi).BuildID(); got != tt.want {
				t.Errorf("BuildID() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestGetIsComplete(t *testing.T) {
	info := Get()
	if info.Version == "" || info.Go == "" || info.OS == "" || info.Arch == "" {
		t.Errorf("Get() = %+v, want version, Go release, OS and architecture filled in", info)
	}
	if line := info.String(); !strings.HasPrefix(line, "mkrun ") || strings.Contains(line, "\n") {
		t.Errorf("String() = %q, want one line that begins with the program's name", line)
	}
}
