package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/configs"
	"github.com/mkrun/mkrun/internal/pattern"
	"github.com/mkrun/mkrun/internal/suggest"
)

const (
	shapesFile   = "configs/shapes.yaml"
	shapesSchema = "mkrun.shapes/1"
)

// Shapes is the catalogue of named layers.
type Shapes struct {
	tps    []int
	models map[string]*Model
}

// Model is what shapes.yaml says of one model; zero means "has none". Sizes are in elements.
type Model struct {
	Source     string  `yaml:"source"`     // where the numbers were published
	Parameters float64 `yaml:"parameters"` // published size, 1e9

	Blocks      int64 `yaml:"blocks"`
	DenseBlocks int64 `yaml:"dense_blocks"` // of a model with experts: how many blocks have a dense MLP instead
	Vocabulary  int64 `yaml:"vocabulary"`
	Hidden      int64 `yaml:"hidden"`

	Intermediate int64 `yaml:"intermediate"` // width of the dense MLP

	Heads   int64 `yaml:"heads"`
	KVHeads int64 `yaml:"kv_heads"`
	HeadDim int64 `yaml:"head_dim"`

	// Multi-head latent attention.
	QLoraRank     int64 `yaml:"q_lora_rank"`
	KVLoraRank    int64 `yaml:"kv_lora_rank"`
	QKNopeHeadDim int64 `yaml:"qk_nope_head_dim"`
	QKRopeHeadDim int64 `yaml:"qk_rope_head_dim"`
	VHeadDim      int64 `yaml:"v_head_dim"`

	Experts         int64 `yaml:"experts"` // routed ones
	ExpertsPerToken int64 `yaml:"experts_per_token"`
	SharedExperts   int64 `yaml:"shared_experts"`
	MoEIntermediate int64 `yaml:"moe_intermediate"` // width of one expert
}

func (m *Model) hasMLA() bool     { return m.KVLoraRank > 0 }
func (m *Model) hasExperts() bool { return m.Experts > 0 }

// Layer is one linear layer of a model, split over TP ranks.
type Layer struct {
	Model     string
	Name      string   // of the layer, e.g. "mlp-up"
	TP        int      // ranks that share the layer
	Operators []string // that compute it: ag_gemm, or gemm_rs and gemm_ar
	N         int64    // columns of the product on one rank
	K         int64    // depth of the product on one rank
	Formula   string   // how N and K follow from the model
	Note      string   // what else to know; often ""
	Source    string   // where the model's sizes were published
}

// String is the name that Resolve takes.
func (l Layer) String() string { return fmt.Sprintf("%s/%s/tp%d", l.Model, l.Name, l.TP) }

// For reports whether the layer is computed by the operator, and if not, by which.
func (l Layer) For(operator string) error {
	if slices.Contains(l.Operators, operator) {
		return nil
	}
	kind, other := "column-parallel", "row-parallel"
	if l.Operators[0] != opAGGemm {
		kind, other = other, kind
	}
	return fmt.Errorf("shape %s is a %s layer, for %s; %s wants a %s one, such as %s",
		l, kind, strings.Join(l.Operators, " or "), operator, other, exampleLayer(operator))
}

// LoadShapes returns the catalogue built into the binary.
func LoadShapes() (*Shapes, error) {
	data, err := configs.FS.ReadFile("shapes.yaml")
	if err != nil {
		return nil, fmt.Errorf("reading the built-in %s: %w", shapesFile, err)
	}
	return ParseShapes(shapesFile, data)
}

var modelName = pattern.Of(`^[a-z0-9][a-z0-9.-]*$`)

// shapesDocument is the document of a catalogue.
type shapesDocument struct {
	Schema string            `yaml:"schema"`
	TPs    []int             `yaml:"tensor_parallel"`
	Models map[string]*Model `yaml:"models"`
}

// ParseShapes reads a catalogue; name is the file's name in errors. The error is one *Error or several joined: all
// mistakes of the file, in its order.
func ParseShapes(name string, data []byte) (*Shapes, error) {
	d := parse(name, data)
	s := readShapes(d)
	if err := d.err(); err != nil {
		return nil, err
	}
	return s, nil
}

// readShapes reads what a document says, and notes its mistakes.
func readShapes(d *document) *Shapes {
	if d.body == nil {
		return nil
	}
	var f shapesDocument
	d.fill(&f)
	if !d.isOf(f.Schema, shapesSchema) {
		return nil
	}
	for i, tp := range f.TPs {
		if tp < 1 {
			d.mistake(fmt.Sprintf("$.tensor_parallel[%d]", i), "tensor_parallel is %d, want at least 1", tp)
		}
	}
	for name, m := range f.Models {
		path := "$.models." + name
		if !modelName().MatchString(name) {
			d.note(d.position(path), "model name %q: want lower-case letters, digits, '.' and '-'", name)
		}
		m.validate(func(field, format string, args ...any) {
			d.mistake(path+"."+field, "model %s: %s", name, fmt.Sprintf(format, args...))
		})
	}
	return &Shapes{tps: f.TPs, models: f.Models}
}

// validate tells what is wrong with a model.
func (m *Model) validate(wrong report) {
	type size struct {
		field string
		value int64
		want  bool // needed here; else it must be absent
		why   string
	}
	sizes := []size{
		{"blocks", m.Blocks, true, ""},
		{"vocabulary", m.Vocabulary, true, ""},
		{"hidden", m.Hidden, true, ""},
		{"heads", m.Heads, true, ""},
		{"kv_heads", m.KVHeads, !m.hasMLA(), "latent attention (kv_lora_rank)"},
		{"head_dim", m.HeadDim, !m.hasMLA(), "latent attention (kv_lora_rank)"},
		{"q_lora_rank", m.QLoraRank, m.hasMLA(), "no kv_lora_rank"},
		{"qk_nope_head_dim", m.QKNopeHeadDim, m.hasMLA(), "no kv_lora_rank"},
		{"qk_rope_head_dim", m.QKRopeHeadDim, m.hasMLA(), "no kv_lora_rank"},
		{"v_head_dim", m.VHeadDim, m.hasMLA(), "no kv_lora_rank"},
		{"experts_per_token", m.ExpertsPerToken, m.hasExperts(), "no experts"},
		{"moe_intermediate", m.MoEIntermediate, m.hasExperts(), "no experts"},
		{"intermediate", m.Intermediate, !m.hasExperts() || m.DenseBlocks > 0, "experts in every block"},
	}
	if m.Source == "" {
		wrong("source", "source is missing: say where the sizes were published")
	}
	for _, s := range sizes {
		switch {
		case s.want && s.value == 0:
			wrong(s.field, "%s is missing or 0, want at least 1", s.field)
		case s.want && s.value < 0:
			wrong(s.field, "%s is %d, want at least 1", s.field, s.value)
		case !s.want && s.value != 0:
			wrong(s.field, "%s has no meaning with %s", s.field, s.why)
		case s.value > 1<<30:
			wrong(s.field, "%s is %d, which no model has", s.field, s.value)
		}
	}
	if m.KVLoraRank < 0 {
		wrong("kv_lora_rank", "kv_lora_rank is negative")
	}
	if m.Experts < 0 {
		wrong("experts", "experts is negative")
	}
	if m.SharedExperts < 0 || m.SharedExperts > 0 && !m.hasExperts() {
		wrong("shared_experts", "shared_experts needs experts and cannot be negative")
	}
	if m.DenseBlocks < 0 || m.DenseBlocks > 0 && !m.hasExperts() || m.DenseBlocks > m.Blocks {
		wrong("dense_blocks", "dense_blocks counts the blocks without experts of a model with experts")
	}
	if m.hasExperts() && m.ExpertsPerToken > m.Experts {
		wrong("experts_per_token", "experts_per_token is more than there are experts")
	}
	if !m.hasMLA() && m.KVHeads > 0 && m.Heads%m.KVHeads != 0 {
		wrong("kv_heads", "%d heads do not divide over %d kv_heads", m.Heads, m.KVHeads)
	}
	if m.Parameters <= 0 {
		wrong("parameters", "parameters is missing: the published size in 1e9")
	}
}

// Resolve finds a layer by its name, MODEL/LAYER/tpT. Any T that divides the layer will do.
func (s *Shapes) Resolve(name string) (Layer, error) {
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return Layer{}, fmt.Errorf("shape %q: want MODEL/LAYER/tpT, such as llama3-8b/mlp-up/tp4%s",
			name, suggest.DidYouMean(name, s.Names()))
	}
	model, ok := s.models[parts[0]]
	if !ok {
		known := slices.Sorted(maps.Keys(s.models))
		return Layer{}, fmt.Errorf("shape %q: unknown model %q%s; known: %s",
			name, parts[0], suggest.DidYouMean(parts[0], known), strings.Join(known, ", "))
	}
	digits, ok := strings.CutPrefix(parts[2], "tp")
	tp, err := strconv.Atoi(digits)
	if !ok || err != nil || tp < 1 || digits != strconv.Itoa(tp) {
		return Layer{}, fmt.Errorf("shape %q: %q is no tensor parallelism; want tp2, tp4, tp8 or tp16", name, parts[2])
	}
	known := model.layerNames()
	for _, def := range layerDefs {
		if def.name == parts[1] && def.has(model) {
			return def.layer(parts[0], model, tp)
		}
	}
	return Layer{}, fmt.Errorf("shape %q: model %s has no layer %q%s; it has: %s",
		name, parts[0], parts[1], suggest.DidYouMean(parts[1], known), strings.Join(known, ", "))
}

// List returns all layers that are offered, by model, layer and TP.
func (s *Shapes) List() []Layer {
	var list []Layer
	for _, name := range slices.Sorted(maps.Keys(s.models)) {
		for _, def := range layerDefs {
			if !def.has(s.models[name]) {
				continue
			}
			for _, tp := range slices.SortedFunc(slices.Values(s.tps), cmp.Compare[int]) {
				if layer, err := def.layer(name, s.models[name], tp); err == nil {
					list = append(list, layer)
				}
			}
		}
	}
	return list
}

// Names returns the names of List, for completion and suggestions.
func (s *Shapes) Names() []string {
	list := s.List()
	names := make([]string, len(list))
	for i, l := range list {
		names[i] = l.String()
	}
	return names
}
