package config

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func mustShapes(t *testing.T) *Shapes {
	t.Helper()
	s, err := LoadShapes()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestResolve(t *testing.T) {
	s := mustShapes(t)
	tests := []struct {
		name string
		n, k int64
		op   string
		note string
	}{
		{"llama3-8b/mlp-up/tp4", 3584, 4096, "ag_gemm", ""},
		{"llama3-8b/mlp-gate-up/tp4", 7168, 4096, "ag_gemm", ""},
		{"llama3-8b/mlp-down/tp4", 4096, 3584, "gemm_rs", ""},
		{"llama3-70b/attn-qkv/tp8", 1280, 8192, "ag_gemm", ""},
		{"llama3-70b/attn-out/tp8", 8192, 1024, "gemm_ar", ""},
		{"llama3-405b/mlp-up/tp16", 3328, 16384, "ag_gemm", ""},
		{"llama3-405b/attn-qkv/tp16", 1280, 16384, "ag_gemm", "each of the 8 key/value heads is on 2 ranks"},
		{"llama3-8b/lm-head/tp16", 8016, 4096, "ag_gemm", ""},
		{"qwen3-32b/mlp-up/tp8", 3200, 5120, "ag_gemm", ""},
		{"qwen3-235b-a22b/expert-gate-up/tp8", 384, 4096, "ag_gemm", ""},
		{"mixtral-8x22b/expert-down/tp2", 6144, 8192, "gemm_rs", ""},
		{"deepseek-v3/attn-q-b/tp8", 3072, 1536, "ag_gemm", ""},
		{"deepseek-v3/attn-kv-b/tp8", 4096, 512, "ag_gemm", ""},
		{"deepseek-v3/attn-out/tp16", 7168, 1024, "gemm_rs", ""},
		{"deepseek-v3/mlp-gate-up/tp16", 2304, 7168, "ag_gemm", ""},
		{"deepseek-v3/shared-up/tp4", 512, 7168, "ag_gemm", ""},
		{"llama3-8b/mlp-up/tp1", 14336, 4096, "ag_gemm", ""},
		{"llama3-8b/mlp-up/tp7", 2048, 4096, "ag_gemm", ""},
	}
	for _, tt := range tests {
		l, err := s.Resolve(tt.name)
		if err != nil {
			t.Errorf("Resolve(%q): %v", tt.name, err)
			continue
		}
		if l.N != tt.n || l.K != tt.k || l.Note != tt.note {
			t.Errorf("Resolve(%q) = N %d K %d note %q, want N %d K %d note %q", tt.name, l.N, l.K, l.Note, tt.n, tt.k, tt.note)
		}
		if l.String() != tt.name {
			t.Errorf("Resolve(%q).String() = %q", tt.name, l)
		}
		if l.Source == "" || l.Formula == "" {
			t.Errorf("Resolve(%q) has no source or no formula", tt.name)
		}
		if err := l.For(tt.op); err != nil {
			t.Errorf("Resolve(%q).For(%q): %v", tt.name, tt.op, err)
		}
	}
}

func TestResolveErrors(t *testing.T) {
	s := mustShapes(t)
	tests := []struct{ name, want string }{
		{"", "want MODEL/LAYER/tpT"},
		{"llama3-8b", "want MODEL/LAYER/tpT"},
		{"llama3-8b/mlp-up/tp4/x", "did you mean \"llama3-8b/mlp-up/tp4\""},
		{"lama3-8b/mlp-up/tp4", `unknown model "lama3-8b" (did you mean "llama3-8b"`},
		{"llama3-8b/mlp_up/tp4", `has no layer "mlp_up" (did you mean "mlp-up"`},
		{"llama3-8b/expert-up/tp4", "it has: attn-qkv, attn-out, mlp-gate-up"},
		{"llama3-8b/mlp-up/4", `"4" is no tensor parallelism`},
		{"llama3-8b/mlp-up/tp0", `"tp0" is no tensor parallelism`},
		{"llama3-8b/mlp-up/tp04", `"tp04" is no tensor parallelism`},
		{"llama3-8b/mlp-up/tp-4", `"tp-4" is no tensor parallelism`},
		{"llama3-8b/mlp-up/tp3", "intermediate = 14336 does not divide by 3"},
		{"qwen3-14b/attn-qkv/tp16", "heads = 40 does not divide by 16"},
		{"mixtral-8x22b/attn-qkv/tp12", "kv_heads = 8 neither divides by 12"},
		{"qwen3-30b-a3b/expert-down/tp64", "K = 12 is not a multiple of 8"},
	}
	for _, tt := range tests {
		_, err := s.Resolve(tt.name)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Resolve(%q) = %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

func TestLayerForTheWrongOperator(t *testing.T) {
	s := mustShapes(t)
	for name, op := range map[string]string{"llama3-8b/mlp-down/tp4": "ag_gemm", "llama3-8b/mlp-up/tp4": "gemm_rs"} {
		l, err := s.Resolve(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.For(op); err == nil || !strings.Contains(err.Error(), op) || !strings.Contains(err.Error(), l.Operators[0]) {
			t.Errorf("%s.For(%s) = %v, want an error that names both operators", name, op, err)
		}
	}
}

// Every offered name resolves to itself, and each model is offered at each TP of the issue.
func TestListedLayersResolve(t *testing.T) {
	s := mustShapes(t)
	list := s.List()
	offered := map[string]map[int]bool{}
	for _, l := range list {
		got, err := s.Resolve(l.String())
		if err != nil || got.N != l.N || got.K != l.K {
			t.Errorf("Resolve(%q) = %+v, %v; the list has %+v", l, got, err, l)
		}
		if l.N < 1 || l.K < 8 {
			t.Errorf("%s has N %d, K %d", l, l.N, l.K)
		}
		if offered[l.Model] == nil {
			offered[l.Model] = map[int]bool{}
		}
		offered[l.Model][l.TP] = true
	}
	if !slices.Equal(s.Names(), namesOf(list)) {
		t.Error("Names and List differ")
	}
	for _, model := range []string{"llama3-8b", "llama3-70b", "llama3-405b", "qwen3-8b", "qwen3-14b", "qwen3-32b",
		"qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v3"} {
		for _, tp := range []int{2, 4, 8, 16} {
			if !offered[model][tp] {
				t.Errorf("%s offers no layer at TP %d", model, tp)
			}
		}
	}
}

func namesOf(list []Layer) []string {
	names := make([]string, len(list))
	for i, l := range list {
		names[i] = l.String()
	}
	return names
}

// The published parameter count follows from the sizes: a wrong size shows.
func TestSizesAddUpToThePublishedParameters(t *testing.T) {
	for name, m := range mustShapes(t).models {
		got := float64(parameters(m)) / 1e9
		if off := math.Abs(got-m.Parameters) / m.Parameters; off > 0.005 {
			t.Errorf("%s: the sizes give %.2fe9 parameters, published are %.2fe9 (%.1f %% off)", name, got, m.Parameters, 100*off)
		}
	}
}

// parameters counts the weights, without norms and biases, with separate input and output embeddings.
func parameters(m *Model) int64 {
	attention := m.Hidden*(m.Heads+2*m.KVHeads)*m.HeadDim + m.Heads*m.HeadDim*m.Hidden
	if m.hasMLA() {
		attention = m.Hidden*m.QLoraRank + m.QLoraRank*m.Heads*(m.QKNopeHeadDim+m.QKRopeHeadDim) +
			m.Hidden*(m.KVLoraRank+m.QKRopeHeadDim) + m.KVLoraRank*m.Heads*(m.QKNopeHeadDim+m.VHeadDim) +
			m.Heads*m.VHeadDim*m.Hidden
	}
	mlpBlocks := m.Blocks
	if m.hasExperts() {
		mlpBlocks = m.DenseBlocks
	}
	experts := m.Hidden*m.Experts + 3*m.Hidden*m.MoEIntermediate*(m.Experts+m.SharedExperts)
	return 2*m.Vocabulary*m.Hidden + m.Blocks*attention +
		mlpBlocks*3*m.Hidden*m.Intermediate + (m.Blocks-mlpBlocks)*experts
}

func TestParseShapesErrors(t *testing.T) {
	const head = "schema: mkrun.shapes/1\ntensor_parallel: [2]\nmodels:\n"
	const ok = "    source: s\n    parameters: 1\n    blocks: 1\n    vocabulary: 8\n    hidden: 8\n    intermediate: 8\n    heads: 2\n    kv_heads: 1\n    head_dim: 8\n"
	tests := []struct{ name, yaml, want string }{
		{"no document", "", "f.yaml:1:1: the file is empty; want exactly one YAML document"},
		{"two documents", "a: 1\n---\nb: 2\n", "f.yaml:"},
		{"schema", "schema: other\n", "f.yaml:1:9: schema is \"other\""},
		{"unknown key", head + "  m:\n    hiden: 8\n", "f.yaml:5:5: unknown key \"hiden\""},
		{"repeated key", head + "  m:\n" + ok + "  m:\n" + ok, "f.yaml:14:3: key \"m\" is here a second time; the first is in line 4"},
		{"not a number", head + "  m:\n    hidden: wide\n", "f.yaml:5:13: want a whole number"},
		{"bad model name", head + "  M/x:\n" + ok, "model name \"M/x\""},
		{"empty model", head + "  m:\n", "f.yaml:4:6: want a mapping of keys to values, found nothing"},
		{"missing source", head + "  m:\n" + strings.Replace(ok, "source: s", "source: ''", 1), "f.yaml:5:13: model m: source is missing"},
		{"missing size", head + "  m:\n" + strings.Replace(ok, "    hidden: 8\n", "", 1), "model m: hidden is missing or 0"},
		{"negative size", head + "  m:\n" + strings.Replace(ok, "hidden: 8", "hidden: -8", 1), "f.yaml:9:13: model m: hidden is -8"},
		{"absurd size", head + "  m:\n" + strings.Replace(ok, "hidden: 8", "hidden: 8000000000000", 1), "which no model has"},
		{"heads", head + "  m:\n" + strings.Replace(ok, "kv_heads: 1", "kv_heads: 4", 1), "2 heads do not divide over 4 kv_heads"},
		{"expert fields without experts", head + "  m:\n" + ok + "    moe_intermediate: 8\n", "moe_intermediate has no meaning with no experts"},
		{"latent attention fields", head + "  m:\n" + ok + "    q_lora_rank: 8\n", "q_lora_rank has no meaning"},
		{"tp", "schema: mkrun.shapes/1\ntensor_parallel: [2, 0]\nmodels: {}\n", "f.yaml:2:22: tensor_parallel is 0"},
		{"not YAML", "a: [1\n", "f.yaml:1:4:"},
		{"a list", "- 1\n", "f.yaml:1:"},
		{"tab", "a:\n\tb: 1\n", "f.yaml:2:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseShapes("f.yaml", []byte(tt.yaml))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error = %v\nwant one with %q", err, tt.want)
			}
		})
	}
	if _, err := ParseShapes("f.yaml", []byte(head+"  m:\n"+ok)); err != nil {
		t.Errorf("the sound file is refused: %v", err)
	}
}

func TestErrorShowsTheText(t *testing.T) {
	_, err := ParseShapes("f.yaml", []byte("schema: mkrun.shapes/1\nmodel: {}\n"))
	const want = "f.yaml:2:1: unknown key \"model\" (did you mean \"models\"?)\n  2 | model: {}\n    | ^"
	if err == nil || err.Error() != want {
		t.Errorf("error:\n%v\nwant:\n%s", err, want)
	}
}
