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

type badFile struct{ name, yaml, want string }

const head = "schema: mkrun.config/1\noperator: ag_gemm\nentries:\n"

func entryOf(match, use, provenance string) string {
	return "  - match: {" + match + "}\n    use: {" + use + "}\n    provenance: {" + provenance + "}\n"
}

// operatorMistakes are files with one mistake each, and the error they must give.
func operatorMistakes() []badFile {
	const chosen = "how: chosen"
	const cuda = "engine: cuda"
	return []badFile{
		{"schema", "schema: x\noperator: ag_gemm\n", "f.yaml:1:9: schema is \"x\""},
		{"other operator", "schema: mkrun.config/1\noperator: gemm_rs\n", "f.yaml:2:11: this file is for operator \"gemm_rs\""},
		{"unknown key at the top", "schema: mkrun.config/1\noperators: ag_gemm\n", "f.yaml:2:1: unknown key \"operators\" (did you mean \"operator\"?)"},
		{"unknown key", head + entryOf("engine: cpu", "stage: 1", chosen), "f.yaml:5:11: unknown key \"stage\" (did you mean \"stages\"?)"},
		{"unknown key deep down", head + entryOf("engine: cpu", "roles: {itra: 1}", chosen), "f.yaml:5:19: unknown key \"itra\""},
		{"unknown key of a range", head + entryOf("engine: cpu, m: {mim: 1}", "", chosen), "f.yaml:4:30: unknown key \"mim\""},
		{"repeated key", head + entryOf("engine: cpu, engine: cpu", "", chosen), "f.yaml:4:26: key \"engine\" is here a second time; the first is in line 4"},
		{"no engine", head + entryOf("m: {min: 1}", "", chosen), "f.yaml:4:12: entry 1: engine is \"\""},
		{"unknown engine", head + entryOf("engine: gpu", "", chosen), "f.yaml:4:21: entry 1: engine is \"gpu\"; want one of cpu, cuda"},
		{"unknown dtype", head + entryOf("engine: cpu, dtype: [bf16, fp8]", "", chosen), "f.yaml:4:40: entry 1: dtype is \"fp8\""},
		{"doubled dtype", head + entryOf("engine: cpu, dtype: [bf16, bf16]", "", chosen), "f.yaml:4:40: entry 1: dtype names bf16 twice"},
		{"unknown fabric", head + entryOf("engine: cpu, fabric: [wifi]", "", chosen), "f.yaml:4:35: entry 1: fabric is \"wifi\""},
		{"empty range", head + entryOf("engine: cpu, m: {min: 9, max: 3}", "", chosen), "f.yaml:4:29: entry 1: m: min 9 is above max 3"},
		{"range without ends", head + entryOf("engine: cpu, m: {}", "", chosen), "f.yaml:4:29: entry 1: m has neither min nor max"},
		{"range below 1", head + entryOf("engine: cpu, ppn: {min: 0}", "", chosen), "f.yaml:4:37: entry 1: ppn must be at least 1"},
		{"not a number", head + entryOf("engine: cpu, m: {min: many}", "", chosen), "f.yaml:4:35: want a whole number"},
		{"no compute", head + entryOf("engine: cpu", "roles: {compute: 0}", chosen), "f.yaml:5:28: entry 1: a split that leaves no compute worker"},
		{"no sender", head + entryOf("engine: cpu", "roles: {send: 0}", chosen), "f.yaml:5:25: entry 1: roles.send is 0, want at least 1"},
		{"a role it has not", head + entryOf("engine: cpu", "roles: {reduce: 1}", chosen), "f.yaml:5:27: entry 1: ag_gemm has no reduce tasks"},
		{"more that push than CTAs", head + entryOf(cuda, "roles: {compute: 128, intra: 129}", chosen), "f.yaml:5:18: entry 1: intra 129 is more than compute 128, and those that push are some of the CTAs that compute"},
		{"more that push than SMs", "sms: 66\n" + head + entryOf(cuda, "roles: {intra: 67}", chosen), "f.yaml:6:18: entry 1: intra 67 is more than the 66 SMs"},
		{"more than the SMs", head + entryOf(cuda, "roles: {intra: 8, compute: 133}", chosen), "f.yaml:5:18: entry 1: compute 133 is more than the 132 SMs"},
		{"absurd SMs", "sms: 1\n" + head, "f.yaml:1:6: sms is 1"},
		{"absurd", head + entryOf("engine: cpu", "chunks: 99999999", chosen), "f.yaml:5:19: entry 1: chunks is 99999999, want at most 64"},
		{"octal", head + entryOf("engine: cpu", "chunks: 065", chosen), "f.yaml:5:19: 065 begins with a zero, which YAML reads as octal: leave the zero out\n"},
		{"octal of two digits", head + entryOf("engine: cpu, m: {min: 01}", "", chosen), "f.yaml:4:35: 01 begins with a zero"},
		{"too many chunks", head + entryOf("engine: cpu", "chunks: 65", chosen), "f.yaml:5:19: entry 1: chunks is 65, want at most 64"},
		{"too many workers", head + entryOf("engine: cpu", "roles: {intra: 4097}", chosen), "f.yaml:5:26: entry 1: roles.intra is 4097, want at most 4096"},
		{"a tile of other rows", head + entryOf(cuda, "tile: {m: 64}", chosen), "f.yaml:5:21: entry 1: tile m is 64; the kernels of ag_gemm are built for 128"},
		{"a tile of other columns", head + entryOf(cuda, "tile: {n: 512}", chosen), "f.yaml:5:21: entry 1: tile n is 512; the kernels of ag_gemm are built for 32, 64, 128 or 256"},
		{"wide rows for narrow columns", head + entryOf(cuda, "tile: {m: 128, n: 32}", chosen), "f.yaml:5:21: entry 1: tile m is 128; the kernels of ag_gemm are built for 64"},
		{"rows that no tile has", head + entryOf(cuda, "tile: {m: 96, n: 64}", chosen), "f.yaml:5:21: entry 1: tile m is 96; the kernels of ag_gemm are built for 64 or 128"},
		{"a cluster of narrow tiles", head + entryOf(cuda, "tile: {n: 32}, cuda: {cluster: 2}", chosen), "f.yaml:5:42: entry 1: cluster is 2; with tile n 32 it is 1"},
		{"a tile of another depth", head + entryOf(cuda, "tile: {k: 32}", chosen), "f.yaml:5:21: entry 1: tile k is 32; the kernels of ag_gemm are built for 64"},
		{"stages of a fixed pipeline", head + entryOf(cuda, "stages: 99", chosen), "f.yaml:5:19: entry 1: stages is 99; the depth of the pipeline of ag_gemm follows from its tile"},
		{"a mover it has not", head + entryOf(cuda, "mover: epilogue", chosen), "f.yaml:5:18: entry 1: mover is \"epilogue\"; the kernels of ag_gemm have sm and ce"},
		{"a split of wide tiles", head + entryOf(cuda, "tile: {n: 256}, cuda: {split_k: 2}", chosen), "f.yaml:5:43: entry 1: split_k is 2; a split of K needs tile n 128 or less and cluster 1"},
		{"a split of a cluster", head + entryOf(cuda, "cuda: {cluster: 2, split_k: 2}", chosen), "f.yaml:5:39: entry 1: split_k is 2; a split of K needs tile n 128 or less and cluster 1"},
		{"no dtype", head + entryOf("engine: cpu, dtype: []", "", chosen), "f.yaml:4:33: entry 1: dtype names none; leave the key out for any"},
		{"no fabric", head + entryOf("engine: cpu, fabric: []", "", chosen), "f.yaml:4:34: entry 1: fabric names none; leave the key out for any"},
		{"cuda only", head + entryOf("engine: cpu", "stages: 4", chosen), "f.yaml:5:19: entry 1: stages has no meaning for the CPU engine"},
		{"depth on cpu", head + entryOf("engine: cpu", "tile: {m: 8, n: 8, k: 8}", chosen), "f.yaml:5:33: entry 1: tile.k has no meaning for the CPU engine"},
		{"mover on cpu", head + entryOf("engine: cpu", "mover: sm", chosen), "f.yaml:5:18: entry 1: mover has no meaning for the CPU engine"},
		{"cuda on cpu", head + entryOf("engine: cpu", "cuda: {cluster: 1}", chosen), "f.yaml:5:17: entry 1: cuda has no meaning for the CPU engine"},
		{"cluster", head + entryOf(cuda, "cuda: {cluster: 3}", chosen), "f.yaml:5:27: entry 1: cluster is 3, want 1 to 2"},
		{"row block", head + entryOf(cuda, "cuda: {row_block: 384}", chosen), "f.yaml:5:29: entry 1: row_block is 384, want 128 times a power of two"},
		{"K block", head + entryOf(cuda, "cuda: {k_block: 32}", chosen), "f.yaml:5:27: entry 1: k_block is 32, want 64 times a power of two"},
		{"negative split", head + entryOf(cuda, "cuda: {split_k: -1}", chosen), "f.yaml:5:27: entry 1: split_k is -1, want 1 to 64"},
		{"unknown mover", head + entryOf(cuda, "mover: van", chosen), "f.yaml:5:18: entry 1: mover is \"van\"; want one of sm, epilogue, ce"},
		{"not square", head + entryOf("engine: cpu", "tile: {m: 64, n: 32}", chosen), "f.yaml:5:17: entry 1: tiles of the CPU engine are square"},
		{"half a tile", head + entryOf("engine: cpu", "tile: {m: 64}", chosen), "f.yaml:5:17: entry 1: tiles of the CPU engine are square"},
		{"no calendar", head + entryOf("engine: cpu", "", "how: chosen, date: 2026-02-30"), "f.yaml:6:37: entry 1: date is \"2026-02-30\", which no calendar has"},
		{"algorithm", head + entryOf("engine: cpu", "algorithm: auto", chosen), "f.yaml:5:22: entry 1: ag_gemm has one algorithm only"},
		{"cutoff", head + entryOf("engine: cpu", "one_shot_bytes: 1", chosen), "f.yaml:5:27: entry 1: ag_gemm has one algorithm only"},
		{"quoted number", head + entryOf("engine: cpu", "chunks: '4'", chosen), "f.yaml:5:19: want a whole number, found a text"},
		{"number as text", head + entryOf("engine: cpu", "", "how: chosen, note: 4"), "f.yaml:6:37: want a text, found a whole number"},
		{"fraction", head + entryOf("engine: cpu", "chunks: 4.0", chosen), "f.yaml:5:19: want a whole number, found a number that is not whole"},
		{"huge number", head + entryOf("engine: cpu", "chunks: 18446744073709551615", chosen), "f.yaml:5:19: want a whole number, found a whole number that is out of range"},
		{"huge end of a range", head + entryOf("engine: cpu, m: {min: 9223372036854775808}", "", chosen), "f.yaml:4:35: want a whole number, found a whole number that is out of range"},
		{"number of more digits", head + entryOf("engine: cpu", "chunks: 99999999999999999999", chosen), "f.yaml:5:19: want a whole number, found a whole number that is out of range"},
		{"far below zero", head + entryOf("engine: cpu", "chunks: -99999999999999999999", chosen), "f.yaml:5:19: want a whole number, found a whole number that is out of range"},
		{"quoted digits", head + entryOf("engine: cpu", "chunks: '99999999999999999999'", chosen), "f.yaml:5:19: want a whole number, found a text"},
		{"empty value", head + entryOf("engine: cpu, m: ", "", chosen), "f.yaml:4:28: want a mapping of keys to values, found nothing"},
		{"list for a mapping", head + entryOf("engine: cpu, m: [1, 2]", "", chosen), "f.yaml:4:29: want a mapping of keys to values, found a list"},
		{"same name", head + "  - name: a\n    match: {engine: cpu}\n    provenance: {how: chosen}\n  - name: a\n    match: {engine: cuda}\n    provenance: {how: chosen}\n",
			"f.yaml:7:11: entry 2: the name \"a\" is that of entry 1 (line 4), too"},
		{"anchor", head + entryOf("engine: &e cpu", "", chosen), "f.yaml:4:21: \"&\" is YAML that is not read here"},
		{"merge", head + "  - <<: *a\n", "f.yaml:4:5: \"<<\" is YAML that is not read here"},
		{"tag", head + entryOf("engine: !!str cpu", "", chosen), "f.yaml:4:21: \"!!str\" is YAML that is not read here"},
		{"no provenance", head + "  - match: {engine: cpu}\n", "f.yaml:4:5: entry 1: how is \"\""},
		{"measured without date", head + entryOf("engine: cpu", "", "how: measured, on: x"), "f.yaml:6:17: entry 1: a measured entry needs its date"},
		{"measured without machine", head + entryOf("engine: cpu", "", "how: measured, date: 2026-01-01"), "f.yaml:6:17: entry 1: a measured entry needs on"},
		{"predicted without date", head + entryOf(cuda, "", "how: predicted, on: h200"), "f.yaml:6:17: entry 1: a predicted entry needs its date"},
		{"predicted without hardware", head + entryOf(cuda, "", "how: predicted, date: 2026-01-01"), "f.yaml:6:17: entry 1: a predicted entry needs on"},
		{"bad date", head + entryOf("engine: cpu", "", "how: chosen, date: today"), "f.yaml:6:37: entry 1: date is \"today\""},
		{"doubled entry", head + entryOf("engine: cpu", "", chosen) + entryOf("engine: cpu", "", chosen),
			"f.yaml:7:12: entry 2 overlaps entry 1 (line 4) with as many conditions, so neither is nearer for what both match (every shape and world)"},
		{"overlap", head + entryOf("engine: cpu, m: {max: 64}", "", chosen) + entryOf("engine: cpu, m: {min: 64}", "", chosen),
			"f.yaml:7:12: entry 2 overlaps entry 1 (line 4) with as many conditions, so neither is nearer for what both match (such as m 64)"},
		{"overlap of other conditions", head + entryOf("engine: cpu, m: {max: 64}", "", chosen) + entryOf("engine: cpu, k: {min: 32}", "", chosen),
			"f.yaml:7:12: entry 2 overlaps entry 1 (line 4) with as many conditions, so neither is nearer for what both match (such as m 1, k 32)"},
		{"overlap on a list", head + entryOf("engine: cpu, dtype: [bf16]", "", chosen) + entryOf("engine: cpu, dtype: [fp16, bf16]", "", chosen),
			"f.yaml:7:12: entry 2 overlaps entry 1 (line 4) with as many conditions, so neither is nearer for what both match (such as dtype bf16)"},
	}
}

func badOperatorFiles() map[string]string {
	files := make(map[string]string)
	for _, f := range operatorMistakes() {
		files[f.name] = f.yaml
	}
	return files
}

func soundOperatorFiles() []string {
	const chosen = "how: chosen"
	return []string{
		sample,
		"schema: mkrun.config/1\noperator: ag_gemm\n",
		head + entryOf("engine: cpu, m: {max: 64}", "", chosen) + entryOf("engine: cpu, m: {min: 65}", "", chosen),
		head + entryOf("engine: cpu, m: {max: 64}", "", chosen) + entryOf("engine: cpu", "", chosen),
		head + entryOf("engine: cpu, dtype: [bf16]", "", chosen) + entryOf("engine: cpu, dtype: [fp16]", "", chosen),
		head + entryOf("engine: cpu", "", chosen) + entryOf("engine: cuda", "", chosen),
		head + entryOf("engine: cuda", "roles: {intra: 132, send: 31}", chosen),
		head + entryOf("engine: cuda", "roles: {compute: 128, intra: 32}", chosen),
		head + entryOf("engine: cuda", "roles: {compute: 132, intra: 132}", chosen),
		head + entryOf("engine: cuda", "mover: ce, cuda: {cluster: 2, raster_group: 8, row_block: 1024, k_block: 512, split_k: 1}", chosen),
		head + entryOf("engine: cuda", "roles: {intra: 8, send: 1, compute: 123}", chosen),
		head + entryOf("engine: cuda", "tile: {m: 64, n: 32, k: 64}, cuda: {split_k: 2}", chosen),
		head + entryOf("engine: cuda", "tile: {n: 64}", chosen),
		"sms: 144\n" + head + entryOf("engine: cuda", "roles: {intra: 100, send: 32}", chosen),
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

func TestParseOperatorErrors(t *testing.T) {
	for _, tt := range operatorMistakes() {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseOperator("ag_gemm", "f.yaml", []byte(tt.yaml))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Fatalf("error = %v\nwant one that begins with %q", err, tt.want)
			}
		})
	}
	for _, sound := range soundOperatorFiles() {
		if _, err := parseOperator("ag_gemm", "f.yaml", []byte(sound)); err != nil {
			t.Errorf("a sound file is refused: %v\n%s", err, sound)
		}
	}
}

// All mistakes of a file are told, in its order: of one entry, too, and unknown keys beside wrong values; but nothing
// that only follows from another one.
func TestAllMistakesAreTold(t *testing.T) {
	text := `schema: mkrun.config/1
operator: gemm_ar
smss: 4
entries:
  - match: {engine: gpu, m: {min: 9, max: 3}, dtype: [fp8, fp4]}
    use: {mover: van, chunk: 3, roles: {intra: 0, compute: many}, algorithm: fast, one_shot_bytes: -1}
    provenance: {how: measured, date: now}
  - mach: {engine: cpu}
    use: {roles: [1]}
    provenance: {how: guessed}
  - match: {engine: cpu, m: {max: 9}}
    provenance: {how: chosen}
    zzz: 1
    colour: 2
  - match: {engine: cpu, m: {min: 9, max: 3}}
    provenance: {how: chosen}
  - match: {engine: cpu, m: {min: 3, max: 9}}
    use: {algorithm: one-shot, one_shot_bytes: 8}
    provenance: {how: chosen}
`
	want := []string{
		`3:1: unknown key "smss" (did you mean "sms"?)`,
		`5:21: entry 1: engine is "gpu"; want one of cpu, cuda`,
		`5:29: entry 1: m: min 9 is above max 3`,
		`5:55: entry 1: dtype is "fp8"; want one of bf16, fp16`,
		`5:60: entry 1: dtype is "fp4"; want one of bf16, fp16`,
		`6:18: entry 1: mover is "van"; want one of sm, epilogue, ce`,
		`6:23: unknown key "chunk" (did you mean "chunks"?)`,
		`6:48: entry 1: roles.intra is 0, want at least 1`,
		`6:60: want a whole number, found a text`,
		`6:78: entry 1: algorithm is "fast"; want one of auto, two-shot, one-shot`,
		`6:100: entry 1: one_shot_bytes is -1, want 0 (never) or more`,
		`7:17: entry 1: a measured entry needs on: the machine it was measured on`,
		`7:39: entry 1: date is "now"; want YYYY-MM-DD`,
		`8:5: unknown key "mach" (did you mean "match"?)`,
		`9:18: want a mapping of keys to values, found a list`,
		`10:23: entry 2: how is "guessed"; want one of measured, predicted, chosen`,
		`13:5: unknown key "zzz"; known: name, match, use, provenance`,
		`14:5: unknown key "colour"; known: name, match, use, provenance`,
		`15:29: entry 4: m: min 9 is above max 3`,
		`17:12: entry 5 overlaps entry 3 (line 11) with as many conditions, so neither is nearer for what both match (such as m 3); make their ranges apart or one of them narrower`,
		`18:48: entry 5: one_shot_bytes has a meaning for algorithm auto only, not for one-shot`,
	}
	for range 20 { // nothing depends on the order of a map
		_, err := parseOperator("", "f.yaml", []byte(text))
		if diff := cmp.Diff(want, mistakesOf(t, err)); diff != "" {
			t.Fatalf("mistakes (-want +got):\n%s", diff)
		}
	}
}

// mistakesOf are the places and messages of a file's mistakes.
func mistakesOf(t *testing.T, err error) (list []string) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("error %v, want several", err)
	}
	for _, one := range joined.Unwrap() {
		first, _, _ := strings.Cut(one.Error(), "\n")
		list = append(list, strings.TrimPrefix(first, "f.yaml:"))
	}
	return list
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
