package config

import "fmt"

const (
	opAGGemm = "ag_gemm"
	opGemmRS = "gemm_rs"
	opGemmAR = "gemm_ar"
)

var (
	columnParallel = []string{opAGGemm}           // each rank has some columns of the weight
	rowParallel    = []string{opGemmRS, opGemmAR} // each rank has some rows of it: partial sums
)

// layerDef is a kind of linear layer that models have, and its formulas.
type layerDef struct {
	name      string
	operators []string
	formula   string
	has       func(*Model) bool
	// split is the dimension that the ranks share; it must divide by TP.
	split func(*Model) (what string, size int64)
	// per is the number of N columns (K rows of a row-parallel layer) for each unit of split.
	per func(*Model) int64
	// whole is K of a column-parallel layer, N of a row-parallel one.
	whole func(*Model) int64
}

func gqa(m *Model) bool    { return !m.hasMLA() }
func mla(m *Model) bool    { return m.hasMLA() }
func dense(m *Model) bool  { return m.Intermediate > 0 }
func moe(m *Model) bool    { return m.hasExperts() }
func shared(m *Model) bool { return m.SharedExperts > 0 }
func always(*Model) bool   { return true }

func heads(m *Model) (string, int64)        { return "heads", m.Heads }
func intermediate(m *Model) (string, int64) { return "intermediate", m.Intermediate }
func expert(m *Model) (string, int64)       { return "moe_intermediate", m.MoEIntermediate }
func vocabulary(m *Model) (string, int64)   { return "vocabulary", m.Vocabulary }
func sharedWidth(m *Model) (string, int64) {
	return "shared_experts * moe_intermediate", m.SharedExperts * m.MoEIntermediate
}

func hidden(m *Model) int64 { return m.Hidden }
func one(*Model) int64      { return 1 }
func two(*Model) int64      { return 2 }

var layerDefs = []layerDef{
	{"attn-qkv", columnParallel, "N = (heads + 2 kv_heads) head_dim / TP, K = hidden", gqa, heads,
		nil, hidden}, // key and value heads divide on their own: see layer
	{"attn-q-b", columnParallel, "N = heads (qk_nope_head_dim + qk_rope_head_dim) / TP, K = q_lora_rank", mla, heads,
		func(m *Model) int64 { return m.QKNopeHeadDim + m.QKRopeHeadDim }, func(m *Model) int64 { return m.QLoraRank }},
	{"attn-kv-b", columnParallel, "N = heads (qk_nope_head_dim + v_head_dim) / TP, K = kv_lora_rank", mla, heads,
		func(m *Model) int64 { return m.QKNopeHeadDim + m.VHeadDim }, func(m *Model) int64 { return m.KVLoraRank }},
	{"attn-out", rowParallel, "N = hidden, K = heads head_dim / TP", gqa, heads,
		func(m *Model) int64 { return m.HeadDim }, hidden},
	{"attn-out", rowParallel, "N = hidden, K = heads v_head_dim / TP", mla, heads,
		func(m *Model) int64 { return m.VHeadDim }, hidden},
	{"mlp-gate-up", columnParallel, "N = 2 intermediate / TP, K = hidden", dense, intermediate, two, hidden},
	{"mlp-up", columnParallel, "N = intermediate / TP, K = hidden", dense, intermediate, one, hidden},
	{"mlp-down", rowParallel, "N = hidden, K = intermediate / TP", dense, intermediate, one, hidden},
	{"shared-gate-up", columnParallel, "N = 2 shared_experts moe_intermediate / TP, K = hidden", shared, sharedWidth, two, hidden},
	{"shared-up", columnParallel, "N = shared_experts moe_intermediate / TP, K = hidden", shared, sharedWidth, one, hidden},
	{"shared-down", rowParallel, "N = hidden, K = shared_experts moe_intermediate / TP", shared, sharedWidth, one, hidden},
	{"expert-gate-up", columnParallel, "N = 2 moe_intermediate / TP, K = hidden", moe, expert, two, hidden},
	{"expert-up", columnParallel, "N = moe_intermediate / TP, K = hidden", moe, expert, one, hidden},
	{"expert-down", rowParallel, "N = hidden, K = moe_intermediate / TP", moe, expert, one, hidden},
	{"lm-head", columnParallel, "N = vocabulary / TP, K = hidden", always, vocabulary, one, hidden},
}

// layer evaluates the formulas for a model and a TP.
func (d layerDef) layer(model string, m *Model, tp int) (Layer, error) {
	l := Layer{Model: model, Name: d.name, TP: tp, Operators: d.operators, Formula: d.formula, Source: m.Source}
	what, size := d.split(m)
	if size%int64(tp) != 0 {
		return Layer{}, fmt.Errorf("shape %s is not offered: %s = %d does not divide by %d", l, what, size, tp)
	}
	units := size / int64(tp)
	var part int64
	if d.per != nil {
		part = units * d.per(m)
	} else {
		kv, note, err := kvHeadsPerRank(m, tp)
		if err != nil {
			return Layer{}, fmt.Errorf("shape %s is not offered: %w", l, err)
		}
		part, l.Note = (units+2*kv)*m.HeadDim, note
	}
	l.N, l.K = part, d.whole(m)
	if d.operators[0] != opAGGemm {
		l.N, l.K = l.K, l.N
	}
	if l.K%8 != 0 {
		return Layer{}, fmt.Errorf("shape %s is not offered: K = %d is not a multiple of 8", l, l.K)
	}
	return l, nil
}

// kvHeadsPerRank splits key and value heads, or copies them when there are fewer than ranks.
func kvHeadsPerRank(m *Model, tp int) (n int64, note string, err error) {
	ranks := int64(tp)
	switch {
	case m.KVHeads%ranks == 0:
		return m.KVHeads / ranks, "", nil
	case ranks%m.KVHeads == 0:
		return 1, fmt.Sprintf("each of the %d key/value heads is on %d ranks", m.KVHeads, ranks/m.KVHeads), nil
	}
	return 0, "", fmt.Errorf("kv_heads = %d neither divides by %d nor the other way round", m.KVHeads, tp)
}

// layerNames lists the layers a model has.
func (m *Model) layerNames() []string {
	var names []string
	for _, d := range layerDefs {
		if d.has(m) {
			names = append(names, d.name)
		}
	}
	return names
}

// exampleLayer names a layer that an operator computes in every model.
func exampleLayer(operator string) string {
	if operator == opAGGemm {
		return "lm-head"
	}
	return "attn-out"
}
