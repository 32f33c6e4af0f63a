package launch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestP50P53ForwardEnv(t *testing.T) {
	environ := []string{"PATH=/bin", "HOME=/root", "NCCL_DEBUG=INFO", "SLURM_JOB_ID=1", "RANK=7", "FOO=a b\n$(x)", "FOO_BAR=2", "EMPTY=", "MKRUN_X=1"}
	file := filepath.Join(t.TempDir(), "env")
	write := func(text string) string {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	tests := []struct {
		name  string
		names []string
		file  string
		whole bool
		want  []string
	}{
		{"other hosts get the list", nil, "", false, []string{"PATH=/bin", "NCCL_DEBUG=INFO"}},
		{"this host gets all but other launchers' words", nil, "", true, []string{"PATH=/bin", "HOME=/root", "NCCL_DEBUG=INFO", "FOO=a b\n$(x)", "FOO_BAR=2", "EMPTY="}},
		{"P50 values are data", []string{"FOO"}, "", false, []string{"PATH=/bin", "NCCL_DEBUG=INFO", "FOO=a b\n$(x)"}},
		{"set here", []string{"NEW=x=y", "PATH=/usr/bin"}, "", false, []string{"NCCL_DEBUG=INFO", "NEW=x=y", "PATH=/usr/bin"}},
		{"prefix", []string{"FOO*"}, "", false, []string{"PATH=/bin", "NCCL_DEBUG=INFO", "FOO=a b\n$(x)", "FOO_BAR=2"}},
		{"a prefix of nothing", []string{"BAR*"}, "", false, []string{"PATH=/bin", "NCCL_DEBUG=INFO"}},
		{"what mkrun sets is not taken by a prefix", []string{"R*", "MKRUN_*"}, "", false, []string{"PATH=/bin", "NCCL_DEBUG=INFO"}},
		{"asked for by name, another launcher's word is passed on", []string{"SLURM_JOB_ID"}, "", false, []string{"PATH=/bin", "NCCL_DEBUG=INFO", "SLURM_JOB_ID=1"}},
		{"P53 set and empty is not unset", []string{"EMPTY"}, "", false, []string{"PATH=/bin", "NCCL_DEBUG=INFO", "EMPTY="}},
		{"file, and -x over it", []string{"A=3"}, "\xef\xbb\xbf# words\r\n\nA=1\nB= 'as it is' # no comment\r\nFOO_BAR", false,
			[]string{"PATH=/bin", "NCCL_DEBUG=INFO", "B= 'as it is' # no comment", "FOO_BAR=2", "A=3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			opts := EnvOptions{Names: tt.names}
			if tt.file != "" {
				opts.File = write(tt.file)
			}
			got, err := ForwardEnv(environ, opts, tt.whole)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
	for item, want := range map[string]string{
		"UNSET": "-x: UNSET is not set here", "A B=1": `"A B" is not a variable's name`, "1A=": "not a variable's name", "=x": "has no name",
		"*": "has no name", "RANK=1": "RANK is for mkrun to set", "MKRUN_RANK": "is for mkrun to set", "A=\x00": "NUL",
	} {
		if got, err := ForwardEnv(environ, EnvOptions{Names: []string{item}}, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-x %q: %q, %v; want an error with %q", item, got, err, want)
		}
	}
	if _, err := ForwardEnv(environ, EnvOptions{File: write("A=1\n\nno name=2\n")}, false); err == nil || !strings.Contains(err.Error(), file+":3: ") {
		t.Errorf("error %v, want one that names line 3", err)
	}
	if _, err := ForwardEnv(environ, EnvOptions{File: file + "x"}, false); err == nil {
		t.Error("a missing file was accepted")
	}
}

func FuzzForwardEnv(f *testing.F) {
	f.Add("FOO", "FOO=a b")
	f.Add("A=$(x)\n", "B=1")
	f.Add("PATH*", "PATH=\xff")
	f.Fuzz(func(t *testing.T, item, kv string) {
		env, err := ForwardEnv([]string{kv}, EnvOptions{Names: []string{item}}, false)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, e := range env {
			name, _, ok := strings.Cut(e, "=")
			if !ok || name == "" || seen[name] || e != kv && e != item {
				t.Fatalf("-x %q of %q gives %q", item, kv, env)
			}
			seen[name] = true
		}
	})
}

func TestEnvFileWithoutAnEnd(t *testing.T) {
	if _, err := ForwardEnv(nil, EnvOptions{File: "/dev/zero"}, false); err == nil || !strings.Contains(err.Error(), "/dev/zero has more than 8 MiB") {
		t.Error(err)
	}
}

// P50: whatever a value is, it arrives as it was written.
func FuzzP50EnvFile(f *testing.F) {
	for _, v := range []string{"", " a b ", `"`, "'", "$(x)", "`x`", "ü\t", `back\`, "#", "x=y", strings.Repeat("v", 128<<10)} {
		f.Add(v)
	}
	file := filepath.Join(f.TempDir(), "env")
	f.Fuzz(func(t *testing.T, value string) {
		if strings.ContainsAny(value, "\n\x00") || strings.HasSuffix(value, "\r") {
			return // a line ends there, or no environment can hold it
		}
		if err := os.WriteFile(file, []byte("NAME="+value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ForwardEnv(nil, EnvOptions{File: file, Names: []string{"OTHER=" + value}}, false)
		if err != nil || !slices.Equal(got, []string{"NAME=" + value, "OTHER=" + value}) {
			t.Errorf("%q, %v", got, err)
		}
	})
}
