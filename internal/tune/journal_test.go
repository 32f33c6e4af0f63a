package tune

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mkrun/mkrun/internal/config"
)

func header() Header {
	return Header{Operator: "ag_gemm", Engine: "cpu", DType: "bf16", PPN: []int{2, 2}, Machine: "2 cores", Net: "tcp", Build: "b", Calls: 3, Seed: 1}
}

func open(t *testing.T, name string) *Journal {
	t.Helper()
	j, err := OpenJournal(name, header())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

var errCut = errors.New("cut short")

// A search that is cut short after any number of measurements, and started again, comes to the same end with each
// measured once.
func TestSearchGoesOn(t *testing.T) {
	space, err := NewSpace(cpuKind)
	if err != nil {
		t.Fatal(err)
	}
	ms := func(s config.Settings) float64 {
		return 20 - float64(s.Chunks)/3 - float64(s.Compute) - float64(s.TileM)/64
	}
	whole := &landscape{ms: ms}
	want, err := (&Search{Space: space, Measure: whole.measure, Calls: 3, Budget: 100}).Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for cut := range whole.batches {
		name := filepath.Join(t.TempDir(), "r.jsonl")
		l := &landscape{ms: ms}
		some := func(ctx context.Context, s []config.Settings, calls int) ([]Time, error) {
			if len(l.batches) == cut {
				return nil, errCut
			}
			return l.measure(ctx, s, calls)
		}
		first := open(t, name)
		if _, err := (&Search{Space: space, Measure: first.Measure("s", some), Calls: 3, Budget: 100}).Run(context.Background()); !errors.Is(err, errCut) {
			t.Fatalf("cut after %d: %v", cut, err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		second := open(t, name)
		found, err := (&Search{Space: space, Measure: second.Measure("s", l.measure), Calls: 3, Budget: 100}).Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if found != want || len(l.batches) != len(whole.batches) || second.Found != cut || first.Added+second.Added != len(whole.batches) {
			t.Errorf("cut after %d: found %+v with %d measurements (%d from before), want %+v with %d", cut, found, len(l.batches), second.Found, want, len(whole.batches))
		}
	}
}

// Times of another shape or number of calls are not taken for this one's.
func TestJournalTellsMeasurementsApart(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "r.jsonl"))
	l := &landscape{ms: func(config.Settings) float64 { return 1 }}
	ctx, one := context.Background(), []config.Settings{{}}
	for _, m := range []struct {
		shape string
		s     []config.Settings
		calls int
		known int
	}{
		{"a", one, 3, 0}, {"a", one, 3, 1}, {"b", one, 3, 1}, {"a", one, 6, 1},
		{"a", []config.Settings{{Chunks: 1}}, 3, 1}, {"a", []config.Settings{{}, {Chunks: 1}}, 3, 1}, {"a", []config.Settings{{CUDA: config.CUDA{SplitK: 1}}}, 3, 1},
		{"a", one, 6, 2},
	} {
		if _, err := j.Measure(m.shape, l.measure)(ctx, m.s, m.calls); err != nil {
			t.Fatal(err)
		}
		if j.Found != m.known {
			t.Errorf("%+v: %d known, want %d", m, j.Found, m.known)
		}
	}
}

func TestJournalFiles(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "r.jsonl")
	l := &landscape{ms: func(config.Settings) float64 { return 1.5 }}
	j := open(t, name)
	if _, err := j.Measure("s", l.measure)(context.Background(), []config.Settings{{}}, 3); err != nil {
		t.Fatal(err)
	}
	// Nobody else has it meanwhile, and it stays as it is.
	want := fmt.Sprintf("r.jsonl is in use by another mkrun tune (process %d); let that end, or choose another file with --results", os.Getpid())
	if _, err := OpenJournal(name, header()); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("opened twice: %v, want %s", err, want)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	good := string(data)
	head, line, _ := strings.Cut(strings.TrimSuffix(good, "\n"), "\n")
	for _, tt := range []struct{ name, text, want string }{
		{"as it was", good, ""},
		{"empty", "", ""},
		{"the head cut short", head[:10], ""},
		{"a line cut short", good + line[:20], ""},
		{"an end without a line", good + line, ""},
		{"no results file", "hello\n", "is no results file"},
		{"json of something else", "{}\n", "is no results file"},
		{"another engine", strings.Replace(good, `"cpu"`, `"cuda"`, 1), "engine cuda, and this one has cpu"},
		{"another build", strings.Replace(good, `"build":"b"`, `"build":"c"`, 1), "build c, and this one has b"},
		{"another world", strings.Replace(good, "[2,2]", "[2,1]", 1), "ppn [2 1], and this one has [2 2]"},
		{"a broken line", head + "\n{\n" + line + "\n", "r.jsonl:2: this is no measurement"},
		{"an empty line", head + "\n\n", "r.jsonl:2: this is no measurement"},
		{"an unknown key", head + "\n" + strings.Replace(line, "calls", "colls", 1) + "\n", "r.jsonl:2: this is no measurement"},
		{"times missing", head + "\n" + strings.Replace(line, `[{"ms":1.5}]`, "[]", 1) + "\n", "r.jsonl:2: this is no measurement (0 times of 1 settings)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.WriteFile(name, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			j, err := OpenJournal(name, header())
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := j.Measure("s", l.measure)(context.Background(), []config.Settings{{}}, 3); err != nil {
					t.Fatal(err)
				}
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
				if data, err := os.ReadFile(name); err != nil || string(data) != good {
					t.Errorf("the file became\n%s(%v), want\n%s", data, err, good)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
			if data, err := os.ReadFile(name); err != nil || string(data) != tt.text {
				t.Errorf("a file that was refused was changed")
			}
		})
	}
	if _, err := OpenJournal(filepath.Join(dir, "no", "such"), header()); err == nil {
		t.Error("a folder that is not there gives no error")
	}
}

func entry(m int64, s config.Settings) Entry {
	k := cpuKind
	k.M = m
	return Entry{Kind: k, DType: "bf16", PPN: 2, Net: "tcp", Found: Found{Settings: s, MS: 1.25, OwnMS: 2.5, Timed: 9}, Calls: 5, Date: "2026-11-30", On: "2 cores: a # b"}
}

const fileBefore = `# mine
schema: mkrun.config/1
operator: ag_gemm
sms: 132
entries:
  # the small ones
  - name: small
    match: {engine: cpu, m: {max: 64}}
    use: {chunks: 1}
    provenance: {how: chosen}
  # of an earlier day
  - name: tuned 512x256x64 bf16 cpu 2x2 tcp
    match: {engine: cpu, m: {min: 512, max: 512}}
    provenance:
      how: measured
      date: 2026-11-01
      on: x
      note: >-
        long
        # not a comment

  # the large ones
  - name: large
    match: {engine: cpu, m: {min: 4096}}
    provenance: {how: chosen}
`

const fileAfter = `# mine
schema: mkrun.config/1
operator: ag_gemm
sms: 132
entries:
  # the small ones
  - name: small
    match: {engine: cpu, m: {max: 64}}
    use: {chunks: 1}
    provenance: {how: chosen}
  # of an earlier day
  - name: tuned 512x256x64 bf16 cpu 2x2 tcp
    match:
      engine: cpu
      dtype: [bf16]
      m: {min: 512, max: 512}
      n: {min: 256, max: 256}
      k: {min: 64, max: 64}
      nodes: {min: 2, max: 2}
      ppn: {min: 2, max: 2}
      fabric: [tcp]
    use:
      roles: {compute: 2, intra: 1}
      tile: {m: 64, n: 64}
      chunks: 4
    provenance:
      how: measured
      date: 2026-11-30
      on: "2 cores: a # b"
      note: 1.25 ms, median of 10 calls; the engine's own choice takes 2.5 ms; 9 settings timed

  # the large ones
  - name: large
    match: {engine: cpu, m: {min: 4096}}
    provenance: {how: chosen}
  - name: tuned 64x256x64 bf16 cpu 2x2 tcp
    match:
      engine: cpu
      dtype: [bf16]
      m: {min: 64, max: 64}
      n: {min: 256, max: 256}
      k: {min: 64, max: 64}
      nodes: {min: 2, max: 2}
      ppn: {min: 2, max: 2}
      fabric: [tcp]
    provenance:
      how: measured
      date: 2026-11-30
      on: "2 cores: a # b"
      note: 1.25 ms, median of 10 calls; the engine's own choice, which nothing that was tried beats by 1 %; 9 settings timed
`

// Entries of the same name are replaced, others are added, and all else stays: comments, too.
func TestWriteEntries(t *testing.T) {
	name := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(name, []byte(fileBefore), 0o640); err != nil {
		t.Fatal(err)
	}
	entries := []Entry{
		entry(512, config.Settings{Compute: 2, Intra: 1, TileM: 64, TileN: 64, Chunks: 4}),
		entry(64, config.Settings{}),
	}
	for range 2 { // the second time changes nothing
		if err := WriteEntries(name, "ag_gemm", entries); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fileAfter, string(data)); diff != "" {
			t.Fatalf("file (-want +got):\n%s", diff)
		}
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v (%v), want that of before", info.Mode(), err)
	}
	if list, err := os.ReadDir(filepath.Dir(name)); err != nil || len(list) != 1 {
		t.Errorf("%v is left (%v)", list, err)
	}
}

// Of searches that write into one file at the same time none loses another's entries.
func TestWriteEntriesTogether(t *testing.T) {
	name := filepath.Join(t.TempDir(), "c.yaml")
	const writers = 20
	var work sync.WaitGroup
	for i := range writers {
		work.Go(func() {
			if err := WriteEntries(name, "ag_gemm", []Entry{entry(int64(8*i+8), config.Settings{Chunks: 2})}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if text, err := os.ReadFile(name); err != nil || strings.Count(string(text), "- name: ") != writers {
		t.Errorf("%v; of %d entries there are\n%s", err, writers, text)
	}
}

// What has no end is not read to it, and what keeps nothing is not written to.
func TestFilesOfADisk(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, "/dev/zero", t.TempDir()} {
		if err := WriteEntries(name, "ag_gemm", nil); err == nil || !strings.Contains(err.Error(), "is no regular file") {
			t.Errorf("entries into %s: %v", name, err)
		}
		if j, err := OpenJournal(name, Header{}); err == nil || j != nil {
			t.Errorf("results in %s: %v", name, err)
		}
	}
}

func TestWriteEntriesIntoNewFiles(t *testing.T) {
	for text, want := range map[string]string{
		"none": "",
		"schema: mkrun.config/1\noperator: ag_gemm":                          "", // no entries, no end of line
		"schema: mkrun.config/1\noperator: gemm_rs\n":                        "this file is for operator \"gemm_rs\"",
		"schema: mkrun.config/1\noperator: ag_gemm\nentries: []\n":           "f.yaml:3:10: the entries stand in brackets",
		"schema: mkrun.config/1\nentries:\n  - name: x\noperator: ag_gemm\n": "f.yaml:4:1: something stands behind the entries",
		"schema: mkrun.config/1\noperator: ag_gemm\nentrys:\n":               "unknown key",
		strings.Replace(fileBefore, "name: small", "name: tuned 9 bf16", 1):  "",
		strings.Replace(fileBefore, "bf16 cpu 2x2 tcp\n    match: {engine: cpu, m: {min: 512, max: 512}}", "other\n    match: {engine: cpu, dtype: [bf16], fabric: [tcp], m: {max: 512}, n: {max: 512}, k: {max: 512}, nodes: {max: 2}, ppn: {max: 2}}", 1): "left as it was",
	} {
		name := filepath.Join(t.TempDir(), "f.yaml")
		if text != "none" {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := WriteEntries(name, "ag_gemm", []Entry{entry(512, config.Settings{Chunks: 2})})
		if want == "" {
			if err != nil {
				t.Errorf("%v\n%s", err, text)
			}
			op, err := config.LoadOperator("ag_gemm", name)
			if err != nil {
				t.Fatal(err)
			}
			c := op.Lookup(config.Query{Engine: "cpu", DType: "bf16", M: 512, N: 256, K: 64, Nodes: 2, PPN: 2, Fabric: "tcp"})
			if !c.Exact || c.Settings != (config.Settings{Chunks: 2}) {
				t.Errorf("found %+v", c)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
		if data, err := os.ReadFile(name); err != nil || string(data) != text {
			t.Errorf("a file that was refused was changed to\n%s", data)
		}
	}
}
