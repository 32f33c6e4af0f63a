package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
