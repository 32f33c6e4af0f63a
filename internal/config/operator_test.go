package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sample = `schema: mkrun.config/1
operator: ag_gemm
entries:
  - name: any
    match: {engine: cpu}
    use: {roles: {intra: 1, send: 1}}
    provenance: {how: chosen}
  - name: large
    match:
      engine: cpu
      m: {min: 4096}
      dtype: [bf16]
    use:
      roles: {compute: 6, intra: 2, send: 1}
      tile: {m: 64, n: 64}
      chunks: 4
    provenance: {how: measured, date: 2026-11-29, on: 2 cores}
  - match: {engine: cuda, m: {max: 512}, ppn: {min: 8, max: 8}, fabric: [ibverbs, efa]}
    use: {tile: {m: 128, n: 256, k: 64}, mover: sm}
    provenance: {how: predicted, date: 2026-11-29, on: h200}
  - match: {engine: cuda, m: {min: 8192, max: 16384}, ppn: {min: 8, max: 8}, fabric: [ibverbs]}
    use: {chunks: 8, mover: ce}
    provenance: {how: predicted, date: 2026-11-29, on: h200}
`

func TestLookup(t *testing.T) {
	op, err := parseOperator("ag_gemm", "f.yaml", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	anyCPU := Settings{Intra: 1, Send: 1}
	large := Settings{Compute: 6, Intra: 2, Send: 1, TileM: 64, TileN: 64, Chunks: 4}
	small := Settings{TileM: 128, TileN: 256, TileK: 64, Mover: "sm"}
	huge := Settings{Chunks: 8, Mover: "ce"}
	tests := []struct {
		name string
		q    Query
		want Choice
	}{
		{"the only match", Query{Engine: "cpu", DType: "bf16", M: 64, N: 64, K: 64, Nodes: 1, PPN: 1},
			Choice{anyCPU, `f.yaml entry 1 "any" (line 4)`, "matches; chosen", true}},
		{"more conditions win", Query{Engine: "cpu", DType: "bf16", M: 4096, N: 64, K: 64, Nodes: 1, PPN: 1},
			Choice{large, `f.yaml entry 2 "large" (line 8)`, "matches; measured 2026-11-29 on 2 cores", true}},
		{"a match is nearer than a condition that fails", Query{Engine: "cpu", DType: "fp16", M: 4096, Nodes: 1, PPN: 1},
			Choice{anyCPU, `f.yaml entry 1 "any" (line 4)`, "matches; chosen", true}},
		{"nearest below the gap", Query{Engine: "cuda", DType: "bf16", M: 1024, Nodes: 2, PPN: 8, Fabric: "ibverbs"},
			Choice{small, "f.yaml entry 3 (line 18)", "nearest: m 1024 is outside ..512; predicted 2026-11-29 on h200", false}},
		{"nearest above the gap", Query{Engine: "cuda", DType: "bf16", M: 4096, Nodes: 2, PPN: 8, Fabric: "ibverbs"},
			Choice{huge, "f.yaml entry 4 (line 21)", "nearest: m 4096 is outside 8192..16384; predicted 2026-11-29 on h200", false}},
		{"the fabric outweighs a few doublings", Query{Engine: "cuda", DType: "bf16", M: 4096, Nodes: 2, PPN: 8, Fabric: "efa"},
			Choice{small, "f.yaml entry 3 (line 18)", "nearest: m 4096 is outside ..512; predicted 2026-11-29 on h200", false}},
		{"several things off", Query{Engine: "cuda", DType: "bf16", M: 512, Nodes: 1, PPN: 4},
			Choice{small, "f.yaml entry 3 (line 18)", "nearest: ppn 4 is outside 8..8, fabric none (one node) is not ibverbs or efa; predicted 2026-11-29 on h200", false}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, op.Lookup(tt.q)); diff != "" {
				t.Errorf("Lookup (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLookupWithoutEntries(t *testing.T) {
	op, err := LoadOperator("gemm_without_a_file", "")
	if err != nil {
		t.Fatal(err)
	}
	want := Choice{Source: "defaults", Why: "there is no configuration file for gemm_without_a_file"}
	if diff := cmp.Diff(want, op.Lookup(Query{Engine: "cpu"})); diff != "" {
		t.Error(diff)
	}
	op, err = parseOperator("ag_gemm", "f.yaml", []byte("schema: mkrun.config/1\noperator: ag_gemm\n"))
	if err != nil {
		t.Fatal(err)
	}
	want = Choice{Source: "defaults", Why: "f.yaml has no entry for engine cuda"}
	if diff := cmp.Diff(want, op.Lookup(Query{Engine: "cuda"})); diff != "" {
		t.Error(diff)
	}
}

func TestLoadOperator(t *testing.T) {
	op, err := LoadOperator("ag_gemm", "")
	if err != nil {
		t.Fatal(err)
	}
	c := op.Lookup(Query{Engine: "cpu", DType: "bf16", M: 128, N: 3584, K: 4096, Nodes: 2, PPN: 2, Fabric: "tcp"})
	if !strings.HasPrefix(c.Source, "embedded configs/ag_gemm.yaml entry ") {
		t.Errorf("source = %q, want an entry of the built-in file", c.Source)
	}

	file := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(file, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	op, err = LoadOperator("ag_gemm", file)
	if err != nil {
		t.Fatal(err)
	}
	if c := op.Lookup(Query{Engine: "cpu"}); !strings.HasPrefix(c.Source, file+" entry 1") {
		t.Errorf("source = %q, want entry 1 of %s", c.Source, file)
	}
	if _, err := LoadOperator("ag_gemm", filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("a missing file gives %v, want an error that names it", err)
	}
}

// The shapes that were measured on GPUs get the mover that was the faster one, and those near them that of their size of
// a shard.
func TestBuiltInMovers(t *testing.T) {
	op, err := LoadOperator("ag_gemm", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		m, n, k int64
		ppn     int
		mover   string
		exact   bool
	}{
		{8192, 1024, 8192, 2, "ce", true}, {8192, 4096, 8192, 2, "ce", true}, {2048, 2048, 2048, 2, "sm", true}, {4096, 2048, 4096, 2, "ce", true},
		{16384, 2048, 8192, 2, "ce", true}, {32768, 4096, 8192, 2, "ce", true}, {256, 4096, 8192, 2, "sm", true}, {16, 4096, 8192, 2, "sm", true},
		{8192, 4096, 512, 2, "sm", false}, {2048, 4096, 8192, 2, "ce", false}, {512, 4096, 8192, 2, "sm", false}, {8192, 1024, 8192, 8, "ce", false},
	} {
		c := op.Lookup(Query{Engine: "cuda", DType: "bf16", M: tt.m, N: tt.n, K: tt.k, Nodes: 1, PPN: tt.ppn})
		if c.Settings.Mover != tt.mover || c.Exact != tt.exact {
			t.Errorf("%d, %d, %d on %d ranks: mover %q (%s), want %q, exact: %v", tt.m, tt.n, tt.k, tt.ppn, c.Settings.Mover, c.Source, tt.mover, tt.exact)
		}
	}
}

// Without a kernel whose CTAs have more than one role, each CTA has one.
func TestSplits(t *testing.T) {
	head := strings.Replace(head, "ag_gemm", "gemm_rs", 1)
	for roles, want := range map[string]string{
		"{intra: 100, send: 31}":              "",
		"{intra: 8, send: 1, compute: 123}":   "",
		"{intra: 100, send: 30, reduce: 2}":   "a split that leaves no compute CTA: intra 100 + send 30 + reduce 2 on 132 SMs",
		"{intra: 8, compute: 125}":            "intra 8 + compute 125 is more than the 132 SMs",
		"{intra: 8, reduce: 1, compute: 124}": "intra 8 + reduce 1 + compute 124 is more than the 132 SMs",
	} {
		_, err := parseOperator("gemm_rs", "f.yaml", []byte(head+entryOf("engine: cuda", "roles: "+roles, "how: chosen")))
		if (err != nil) != (want != "") || err != nil && !strings.HasPrefix(err.Error(), "f.yaml:5:18: entry 1: "+want) {
			t.Errorf("%s: error %v, want %q", roles, err, want)
		}
	}
}

func TestCheckFile(t *testing.T) {
	for _, tt := range []struct{ yaml, holds, want string }{
		{sample, "ag_gemm, 4 entries", ""},
		{head + entryOf("engine: cpu", "", "how: chosen"), "ag_gemm, 1 entry", ""},
		{strings.Replace(head, "ag_gemm", "gemm_rs", 1) + entryOf("engine: cpu", "roles: {reduce: 1}", "how: chosen"), "gemm_rs, 1 entry", ""},
		{"schema: mkrun.config/1\noperator: ag_gem\n", "", "f.yaml:2:11: operator is \"ag_gem\" (did you mean \"ag_gemm\"?)"},
		{"schema: mkrun.shapes/1\nmodels: {}\n", "shapes, 0 layers of 0 models", ""},
		{"schema: mkrun.shapes/1\nmodel: {}\n", "", "f.yaml:2:1: unknown key \"model\""},
		{"schema: mkrun.shape/1\n", "", "f.yaml:1:9: schema is \"mkrun.shape/1\""},
		{"schema: [\n", "", "f.yaml:1:9: a list [...] without its closing ]"},
		{"schema: mkrun.config/2\noperator: ag\nentries: 3\n", "", "f.yaml:1:9: schema is \"mkrun.config/2\", want mkrun.config/1; nothing else of the file was looked at\n"},
		{"operator: ag_gemm\nbogus: 1\nsms: 0\n", "", "f.yaml:1:1: schema is \"\", want mkrun.config/1\n"},
		{"schema: mkrun.config/1\noperator: ag_gemm\nentries: []\n", "ag_gemm, 0 entries", ""},
		{"schema: mkrun.config/1\noperator: ag_gemm\n", "ag_gemm, 0 entries", ""},
		{"", "", "f.yaml:1:1: the file is empty; want exactly one YAML document"},
	} {
		holds, err := CheckFile("f.yaml", []byte(tt.yaml))
		if holds != tt.holds || (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("CheckFile = %q, %v\nwant %q, error %q\n%s", holds, err, tt.holds, tt.want, tt.yaml)
		}
	}
}

func TestCandidates(t *testing.T) {
	op, err := parseOperator("ag_gemm", "f.yaml", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	list := op.Candidates(Query{Engine: "cpu", DType: "bf16", M: 8192, N: 1, K: 8, Nodes: 1, PPN: 1})
	if len(list) != 2 || list[0].Lost != "" || list[1].Lost != "as near, but less specific: 0 conditions; the first has 2" {
		t.Errorf("candidates %+v", list)
	}
	list = op.Candidates(Query{Engine: "cpu", DType: "fp16", M: 2048, N: 1, K: 8, Nodes: 1, PPN: 1})
	if len(list) != 2 || list[1].Distance != 2 || list[1].Lost != "2.00 doublings away; the first matches" {
		t.Errorf("candidates %+v", list)
	}
	list = op.Candidates(Query{Engine: "cuda", DType: "bf16", M: 2048, Nodes: 2, PPN: 8, Fabric: "ibverbs"})
	if len(list) != 2 || list[0].Distance != 2 || list[1].Lost != "as near and as specific, but later in the file" {
		t.Errorf("candidates %+v", list)
	}
	list = op.Candidates(Query{Engine: "cuda", DType: "bf16", M: 1024, Nodes: 2, PPN: 8, Fabric: "ibverbs"})
	if len(list) != 2 || list[1].Lost != "3.00 doublings away; the first is 1.00" {
		t.Errorf("candidates %+v", list)
	}
}
