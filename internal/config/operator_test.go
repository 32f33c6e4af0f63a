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
    use: {tile: {m: 128, n: 256, k: 64}, stages: 4, mover: sm}
    provenance: {how: predicted}
  - match: {engine: cuda, m: {min: 8192, max: 16384}, ppn: {min: 8, max: 8}, fabric: [ibverbs]}
    use: {chunks: 8, mover: ce}
    provenance: {how: predicted}
`

func TestLookup(t *testing.T) {
	op, err := parseOperator("ag_gemm", "f.yaml", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	anyCPU := Settings{Intra: 1, Send: 1}
	large := Settings{Compute: 6, Intra: 2, Send: 1, TileM: 64, TileN: 64, Chunks: 4}
	small := Settings{TileM: 128, TileN: 256, TileK: 64, Stages: 4, Mover: "sm"}
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
			Choice{small, "f.yaml entry 3 (line 18)", "nearest: m 1024 is outside ..512; predicted", false}},
		{"nearest above the gap", Query{Engine: "cuda", DType: "bf16", M: 4096, Nodes: 2, PPN: 8, Fabric: "ibverbs"},
			Choice{huge, "f.yaml entry 4 (line 21)", "nearest: m 4096 is outside 8192..16384; predicted", false}},
		{"the fabric outweighs a few doublings", Query{Engine: "cuda", DType: "bf16", M: 4096, Nodes: 2, PPN: 8, Fabric: "efa"},
			Choice{small, "f.yaml entry 3 (line 18)", "nearest: m 4096 is outside ..512; predicted", false}},
		{"several things off", Query{Engine: "cuda", DType: "bf16", M: 512, Nodes: 1, PPN: 4},
			Choice{small, "f.yaml entry 3 (line 18)", "nearest: ppn 4 is outside 8..8, fabric none (one node) is not ibverbs or efa; predicted", false}},
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

func TestParseOperatorErrors(t *testing.T) {
	const head = "schema: mkrun.config/1\noperator: ag_gemm\nentries:\n"
	entry := func(match, use, provenance string) string {
		return "  - match: {" + match + "}\n    use: {" + use + "}\n    provenance: {" + provenance + "}\n"
	}
	const chosen = "how: chosen"
	tests := []struct{ name, yaml, want string }{
		{"schema", "schema: x\noperator: ag_gemm\n", "f.yaml:1:9: schema is \"x\""},
		{"other operator", "schema: mkrun.config/1\noperator: gemm_rs\n", "f.yaml:2:11: this file is for operator \"gemm_rs\""},
		{"unknown key", head + entry("engine: cpu", "stage: 1", chosen), "f.yaml:5:11: unknown field \"stage\""},
		{"no engine", head + entry("m: {min: 1}", "", chosen), "f.yaml:4:12: entry 1: engine is \"\""},
		{"unknown engine", head + entry("engine: gpu", "", chosen), "f.yaml:4:21: entry 1: engine is \"gpu\"; want one of cpu, cuda"},
		{"unknown dtype", head + entry("engine: cpu, dtype: [bf16, fp8]", "", chosen), "entry 1: dtype is \"fp8\""},
		{"unknown fabric", head + entry("engine: cpu, fabric: [wifi]", "", chosen), "fabric is \"wifi\""},
		{"empty range", head + entry("engine: cpu, m: {min: 9, max: 3}", "", chosen), "m: min 9 is above max 3"},
		{"range without ends", head + entry("engine: cpu, m: {}", "", chosen), "m has neither min nor max"},
		{"range below 1", head + entry("engine: cpu, ppn: {min: 0}", "", chosen), "ppn must be at least 1"},
		{"not a number", head + entry("engine: cpu, m: {min: many}", "", chosen), "f.yaml:4:35: want a whole number"},
		{"no compute", head + entry("engine: cpu", "roles: {compute: 0}", chosen), "f.yaml:5:28: entry 1: a split that leaves no compute worker"},
		{"no sender", head + entry("engine: cpu", "roles: {send: 0}", chosen), "roles.send is 0, want at least 1"},
		{"absurd", head + entry("engine: cpu", "chunks: 99999999", chosen), "which no machine has"},
		{"cuda only", head + entry("engine: cpu", "stages: 4", chosen), "stages has no meaning for the CPU engine"},
		{"mover on cpu", head + entry("engine: cpu", "mover: sm", chosen), "mover has no meaning for the CPU engine"},
		{"unknown mover", head + entry("engine: cuda", "mover: van", chosen), "mover is \"van\""},
		{"not square", head + entry("engine: cpu", "tile: {m: 64, n: 32}", chosen), "tiles of the CPU engine are square"},
		{"half a tile", head + entry("engine: cpu", "tile: {m: 64}", chosen), "tiles of the CPU engine are square"},
		{"no provenance", head + "  - match: {engine: cpu}\n", "f.yaml:4:5: entry 1: how is \"\""},
		{"measured without date", head + entry("engine: cpu", "", "how: measured, on: x"), "a measured entry needs its date"},
		{"measured without machine", head + entry("engine: cpu", "", "how: measured, date: 2026-01-01"), "a measured entry needs on"},
		{"bad date", head + entry("engine: cpu", "", "how: chosen, date: today"), "date is \"today\""},
		{"doubled entry", head + entry("engine: cpu", "", chosen) + entry("engine: cpu", "", chosen), "f.yaml:7:12: entry 2 overlaps entry 1 (line 4)"},
		{"overlap", head + entry("engine: cpu, m: {max: 64}", "", chosen) + entry("engine: cpu, m: {min: 64}", "", chosen), "entry 2 overlaps entry 1"},
		{"overlap of other conditions", head + entry("engine: cpu, m: {max: 64}", "", chosen) + entry("engine: cpu, k: {min: 64}", "", chosen), "entry 2 overlaps entry 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseOperator("ag_gemm", "f.yaml", []byte(tt.yaml))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error = %v\nwant one with %q", err, tt.want)
			}
		})
	}
	for _, sound := range []string{
		entry("engine: cpu, m: {max: 64}", "", chosen) + entry("engine: cpu, m: {min: 65}", "", chosen),
		entry("engine: cpu, m: {max: 64}", "", chosen) + entry("engine: cpu", "", chosen),
		entry("engine: cpu, dtype: [bf16]", "", chosen) + entry("engine: cpu, dtype: [fp16]", "", chosen),
		entry("engine: cpu", "", chosen) + entry("engine: cuda", "", chosen),
	} {
		if _, err := parseOperator("ag_gemm", "f.yaml", []byte(head+sound)); err != nil {
			t.Errorf("a sound file is refused: %v\n%s", err, sound)
		}
	}
}

// Whatever the file holds, reading it ends in settings or in an error.
func FuzzParseOperator(f *testing.F) {
	f.Add(sample)
	f.Add("entries:\n  - match: [1, 2]\n")
	f.Fuzz(func(t *testing.T, data string) {
		op, err := parseOperator("ag_gemm", "f.yaml", []byte(data))
		if err == nil {
			op.Lookup(Query{Engine: "cpu", DType: "bf16", M: 1, N: 1, K: 8, Nodes: 1, PPN: 1})
		}
	})
}
