package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/configs"
	"github.com/mkrun/mkrun/internal/suggest"
)

// Engines, dtypes, fabrics and movers that files may name.
var (
	knownEngines = []string{"cpu", "cuda"}
	knownDTypes  = []string{"bf16", "fp16"}
	knownFabrics = []string{"tcp", "ibverbs", "efa", "ofi", "emu"}
	knownMovers  = []string{"sm", "epilogue", "ce"}
	knownHows    = []string{"measured", "predicted", "chosen"}
)

// operatorKind is what settings of an operator may say.
type operatorKind struct {
	roles      []string // that it has tasks for, beside compute
	algorithms []string // to choose from; none if there is one only
	kernel     *kernel  // of the CUDA engine; nil if it has none yet, so that nothing is held against it
}

// kernel is what the CUDA engine's kernels of an operator are built for (cuda/include/mkernel.h; a test in
// internal/request holds it against what a launch takes).
type kernel struct {
	tileN, tileK []int
	tileM        func(n int) []int // rows that a tile of n columns may have; 0: one whose columns are left open
	movers       []string
}

var operatorKinds = map[string]operatorKind{
	opAGGemm: {roles: []string{"intra", "send"}, kernel: &kernel{
		tileN: []int{32, 64, 128, 256}, tileK: []int{64}, movers: []string{"sm", "ce"},
		tileM: func(n int) []int {
			switch n {
			case 32:
				return []int{64}
			case 64:
				return []int{64, 128}
			}
			return []int{128}
		},
	}},
	opGemmRS: {roles: []string{"intra", "send", "reduce"}},
	opGemmAR: {roles: []string{"intra", "send", "reduce"}, algorithms: []string{"auto", "two-shot", "one-shot"}},
}

// Operators lists the operators that files may be for, sorted.
func Operators() []string { return slices.Sorted(maps.Keys(operatorKinds)) }

// Algorithms lists what an operator's settings may say of its algorithm; none if it has one only.
func Algorithms(operator string) []string { return slices.Clone(operatorKinds[operator].algorithms) }

// defaultSMs is how many SMs there are where a file does not say: those of an H100 or H200 SXM.
const defaultSMs = 132

// Operator holds the entries of one operator's file.
type Operator struct {
	Name    string
	File    string // as shown to people, e.g. "embedded configs/ag_gemm.yaml"
	entries []entry
}

// Settings are what an entry sets. Zero means "the engine's own default", for Compute
// "all workers that the other roles leave".
type Settings struct {
	Compute, Intra, Send, Reduce int // workers that start in each role: goroutines or CTAs

	TileM, TileN, TileK int // what one worker computes at once: rows, columns, depth of a step
	Stages              int // depth of the load pipeline
	Chunks              int // pieces each shard travels in
	Mover               string

	Algorithm    string // of an operator that has several
	OneShotBytes int64  // algorithm auto: size of the result up to which it is one-shot

	CUDA CUDA
}

// CUDA is what only the CUDA engine can be told.
type CUDA struct {
	Cluster     int `yaml:"cluster"`      // CTAs that load operands for each other
	RasterGroup int `yaml:"raster_group"` // tiles of M that are walked together
	PushGroup   int `yaml:"push_group"`   // mover sm: blocks of rows that are announced together
	RowBlock    int `yaml:"row_block"`    // mover ce: rows of a copy
	KBlock      int `yaml:"k_block"`      // mover ce: columns of a copy
	SplitK      int `yaml:"split_k"`      // parts of K that different CTAs take
}

type entry struct {
	Name       string     `yaml:"name"`
	Match      match      `yaml:"match"`
	Use        use        `yaml:"use"`
	Provenance provenance `yaml:"provenance"`

	line  int  // in the file
	known bool // what it matches: nothing is wrong there
}

type match struct {
	Engine string   `yaml:"engine"`
	DType  []string `yaml:"dtype"`
	M      *bounds  `yaml:"m"`
	N      *bounds  `yaml:"n"`
	K      *bounds  `yaml:"k"`
	Nodes  *bounds  `yaml:"nodes"`
	PPN    *bounds  `yaml:"ppn"`
	Fabric []string `yaml:"fabric"`
}

// bounds is a range of sizes, both ends included. A missing end is open.
type bounds struct {
	Min *int64 `yaml:"min"`
	Max *int64 `yaml:"max"`
}

type use struct {
	Roles roles `yaml:"roles"`
	Tile  struct {
		M *int `yaml:"m"`
		N *int `yaml:"n"`
		K *int `yaml:"k"`
	} `yaml:"tile"`
	Stages       *int   `yaml:"stages"`
	Chunks       *int   `yaml:"chunks"`
	Mover        string `yaml:"mover"`
	Algorithm    string `yaml:"algorithm"`
	OneShotBytes *int64 `yaml:"one_shot_bytes"`
	CUDA         *CUDA  `yaml:"cuda"`
}

type roles struct {
	Compute *int `yaml:"compute"`
	Intra   *int `yaml:"intra"`
	Send    *int `yaml:"send"`
	Reduce  *int `yaml:"reduce"`
}

type provenance struct {
	How  string `yaml:"how"`
	Date string `yaml:"date"` // YYYY-MM-DD
	On   string `yaml:"on"`   // the machine
	Note string `yaml:"note"`
}

// LoadOperator returns the settings of an operator: those of the given file, or, when file is "",
// those built into the binary. An operator without a built-in file has no entries.
func LoadOperator(operator, file string) (*Operator, error) {
	if file != "" {
		data, err := readFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the configuration of %s: %w", operator, err)
		}
		return parseOperator(operator, file, data)
	}
	name := operator + ".yaml"
	data, err := configs.FS.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return &Operator{Name: operator}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the built-in configuration of %s: %w", operator, err)
	}
	return parseOperator(operator, "embedded configs/"+name, data)
}

// operatorFile is the document of one operator's file.
type operatorFile struct {
	Schema   string  `yaml:"schema"`
	Operator string  `yaml:"operator"`
	SMs      *int    `yaml:"sms"` // of the GPU that entries for cuda are for
	Entries  []entry `yaml:"entries"`
}

const operatorSchema = "mkrun.config/1"

// parseOperator reads the file of an operator, or of any known one if operator is "". The error is one *Error or
// several joined: all mistakes of the file, in its order.
func parseOperator(operator, file string, data []byte) (*Operator, error) {
	d := parse(file, data)
	op := readOperator(operator, d)
	if err := d.err(); err != nil {
		return nil, err
	}
	return op, nil
}

// readOperator reads what a document says, and notes its mistakes.
func readOperator(operator string, d *document) *Operator {
	if d.body == nil {
		return nil
	}
	var f operatorFile
	d.fill(&f)
	if !d.isOf(f.Schema, operatorSchema) {
		return nil
	}
	kind, known := operatorKinds[f.Operator]
	switch {
	case operator == "" && !known:
		d.mistake("$.operator", "operator is %q%s; want one of %s", f.Operator,
			suggest.DidYouMean(f.Operator, Operators()), strings.Join(Operators(), ", "))
	case operator != "" && f.Operator != operator:
		d.mistake("$.operator", "this file is for operator %q, not for %s", f.Operator, operator)
	}
	limits := limits{operator: f.Operator, kind: kind, known: known, sms: defaultSMs}
	if f.SMs != nil {
		if limits.sms = *f.SMs; limits.sms < 2 || limits.sms > maxNumber {
			d.mistake("$.sms", "sms is %d; want how many SMs the GPU has, at least 2", limits.sms)
			limits.sms = maxNumber // so that no split is held against it
		}
	}
	names := make(map[string]int) // first entry of each
	for i := range f.Entries {
		path := fmt.Sprintf("$.entries[%d]", i)
		e := &f.Entries[i]
		e.line = d.position(path).line
		e.validate(limits, func(field, format string, args ...any) {
			d.mistake(path+"."+field, "entry %d: %s", i+1, fmt.Sprintf(format, args...))
		})
		if first, twice := names[e.Name]; twice {
			d.mistake(path+".name", "entry %d: the name %q is that of entry %d (line %d), too", i+1, e.Name, first+1, f.Entries[first].line)
		} else if e.Name != "" {
			names[e.Name] = i
		}
		e.known = !d.hasMistake(path + ".match")
		d.overlaps(f.Entries[:i+1], d.position(path+".match"))
	}
	return &Operator{Name: f.Operator, File: d.name, entries: f.Entries}
}

// overlaps holds the last entry, whose conditions stand at a place, against those before it.
func (d *document) overlaps(entries []entry, at position) {
	last := len(entries) - 1
	e := &entries[last]
	for i, other := range entries[:last] {
		if !e.known || d.full() {
			return
		}
		if !other.known {
			continue
		}
		if example, both := e.Match.ambiguous(other.Match); both {
			d.note(at, "entry %d overlaps entry %d (line %d) with as many conditions, so neither is nearer for what both match (%s); make their ranges apart or one of them narrower", last+1, i+1, other.line, example)
		}
	}
}

func (u *use) settings() Settings {
	s := Settings{
		Compute: or0(u.Roles.Compute), Intra: or0(u.Roles.Intra), Send: or0(u.Roles.Send), Reduce: or0(u.Roles.Reduce),
		TileM: or0(u.Tile.M), TileN: or0(u.Tile.N), TileK: or0(u.Tile.K),
		Stages: or0(u.Stages), Chunks: or0(u.Chunks), Mover: u.Mover,
		Algorithm: u.Algorithm, OneShotBytes: or0(u.OneShotBytes),
	}
	if u.CUDA != nil {
		s.CUDA = *u.CUDA
	}
	return s
}
