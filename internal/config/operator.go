package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
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

// operatorRoles says which roles an operator has tasks for, beside compute.
var operatorRoles = map[string][]string{
	opAGGemm: {"intra", "send"},
	opGemmRS: {"intra", "send", "reduce"},
	opGemmAR: {"intra", "send", "reduce"},
}

// Operators lists the operators that files may be for, sorted.
func Operators() []string { return slices.Sorted(maps.Keys(operatorRoles)) }

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
}

type entry struct {
	Name       string     `yaml:"name"`
	Match      match      `yaml:"match"`
	Use        use        `yaml:"use"`
	Provenance provenance `yaml:"provenance"`

	line int // in the file
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
	Roles struct {
		Compute *int `yaml:"compute"`
		Intra   *int `yaml:"intra"`
		Send    *int `yaml:"send"`
		Reduce  *int `yaml:"reduce"`
	} `yaml:"roles"`
	Tile struct {
		M *int `yaml:"m"`
		N *int `yaml:"n"`
		K *int `yaml:"k"`
	} `yaml:"tile"`
	Stages *int   `yaml:"stages"`
	Chunks *int   `yaml:"chunks"`
	Mover  string `yaml:"mover"`
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
		data, err := os.ReadFile(file)
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

// parseOperator reads the file of an operator, or of any known one if operator is "". A file that can be
// read but says wrong things gets one error with all of them: the first of each entry.
func parseOperator(operator, file string, data []byte) (*Operator, error) {
	var f operatorFile
	doc, err := decode(file, data, &f)
	if err != nil {
		return nil, err
	}
	if f.Schema != operatorSchema {
		return nil, doc.errorf("$.schema", "schema is %q, want %s", f.Schema, operatorSchema)
	}
	roles, known := operatorRoles[f.Operator]
	switch {
	case operator == "" && !known:
		return nil, doc.errorf("$.operator", "operator is %q%s; want one of %s", f.Operator,
			suggest.DidYouMean(f.Operator, Operators()), strings.Join(Operators(), ", "))
	case operator != "" && f.Operator != operator:
		return nil, doc.errorf("$.operator", "this file is for operator %q, not for %s", f.Operator, operator)
	}
	limits := limits{operator: f.Operator, roles: roles, sms: defaultSMs}
	if f.SMs != nil {
		if limits.sms = *f.SMs; limits.sms < 2 || limits.sms > maxNumber {
			return nil, doc.errorf("$.sms", "sms is %d; want how many SMs the GPU has, at least 2", limits.sms)
		}
	}
	var wrong []error
	for i := range f.Entries {
		path := fmt.Sprintf("$.entries[%d]", i)
		e := &f.Entries[i]
		e.line = doc.line(path)
		if field, msg := e.validate(limits); msg != "" {
			wrong = append(wrong, doc.errorf(path+"."+field, "entry %d: %s", i+1, msg))
			continue
		}
		for j, other := range f.Entries[:i] {
			if example, both := e.Match.ambiguous(other.Match); both {
				wrong = append(wrong, doc.errorf(path+".match", "entry %d overlaps entry %d (line %d) with as many conditions, so neither is nearer for what both match (%s); make their ranges apart or one of them narrower", i+1, j+1, other.line, example))
				break
			}
		}
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return &Operator{Name: f.Operator, File: file, entries: f.Entries}, nil
}

var isoDate = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)

// validate returns the field that is wrong and why, or "", "".
func (e *entry) validate(l limits) (field, msg string) {
	if field, msg := e.Match.validate(); msg != "" {
		return "match." + field, msg
	}
	if field, msg := e.Use.validate(e.Match.Engine, l); msg != "" {
		return "use." + field, msg
	}
	p := e.Provenance
	switch {
	case !slices.Contains(knownHows, p.How):
		return "provenance.how", fmt.Sprintf("how is %q; want one of %s", p.How, strings.Join(knownHows, ", "))
	case p.Date != "" && !isoDate.MatchString(p.Date):
		return "provenance.date", fmt.Sprintf("date is %q; want YYYY-MM-DD", p.Date)
	case p.How != "chosen" && p.Date == "":
		return "provenance", fmt.Sprintf("a %s entry needs its date", p.How)
	case p.How == "measured" && p.On == "":
		return "provenance", "a measured entry needs on: the machine it was measured on"
	case p.How == "predicted" && p.On == "":
		return "provenance", "a predicted entry needs on: the hardware description it was predicted with"
	}
	return "", ""
}

func (m *match) validate() (field, msg string) {
	for _, list := range []struct {
		field  string
		values []string
		known  []string
	}{
		{"engine", []string{m.Engine}, knownEngines},
		{"dtype", m.DType, knownDTypes},
		{"fabric", m.Fabric, knownFabrics},
	} {
		for i, v := range list.values {
			if !slices.Contains(list.known, v) {
				return list.field, fmt.Sprintf("%s is %q; want one of %s", list.field, v, strings.Join(list.known, ", "))
			}
			if slices.Contains(list.values[:i], v) {
				return list.field, fmt.Sprintf("%s names %s twice", list.field, v)
			}
		}
	}
	for _, r := range m.ranges() {
		switch b := r.bounds; {
		case b == nil:
		case b.Min == nil && b.Max == nil:
			return r.name, r.name + " has neither min nor max"
		case b.Min != nil && *b.Min < 1 || b.Max != nil && *b.Max < 1:
			return r.name, r.name + " must be at least 1"
		case b.Min != nil && b.Max != nil && *b.Min > *b.Max:
			return r.name, fmt.Sprintf("%s: min %d is above max %d", r.name, *b.Min, *b.Max)
		}
	}
	return "", ""
}

// limits is what an entry's numbers are held against.
type limits struct {
	operator string
	roles    []string // that it has tasks for, beside compute
	sms      int      // of the GPU, one for each CTA
}

const maxNumber = 1 << 20 // workers, sizes of tiles, chunks: far above any machine

func (u *use) validate(engine string, l limits) (field, msg string) {
	for _, r := range []struct {
		name  string
		value *int
	}{{"intra", u.Roles.Intra}, {"send", u.Roles.Send}, {"reduce", u.Roles.Reduce}} {
		if r.value != nil && l.roles != nil && !slices.Contains(l.roles, r.name) {
			return "roles." + r.name, fmt.Sprintf("%s has no %s tasks", l.operator, r.name)
		}
	}
	type number struct {
		field string
		value *int
		least int
		cuda  bool // has no meaning for the CPU engine
	}
	for _, n := range []number{
		{"roles.compute", u.Roles.Compute, 1, false},
		{"roles.intra", u.Roles.Intra, 1, false},
		{"roles.send", u.Roles.Send, 1, false},
		{"roles.reduce", u.Roles.Reduce, 1, false},
		{"tile.m", u.Tile.M, 1, false},
		{"tile.n", u.Tile.N, 1, false},
		{"tile.k", u.Tile.K, 1, true},
		{"stages", u.Stages, 1, true},
		{"chunks", u.Chunks, 1, false},
	} {
		switch {
		case n.value == nil:
		case engine == "cpu" && n.cuda:
			return n.field, n.field + " has no meaning for the CPU engine"
		case *n.value < n.least && n.field == "roles.compute":
			return n.field, "a split that leaves no compute worker; leave compute out to give it all that the others leave"
		case *n.value < n.least:
			return n.field, fmt.Sprintf("%s is %d, want at least %d", n.field, *n.value, n.least)
		case *n.value > maxNumber:
			return n.field, fmt.Sprintf("%s is %d, which no machine has", n.field, *n.value)
		}
	}
	if engine == "cuda" {
		if msg := u.split(l.sms); msg != "" {
			return "roles", msg
		}
	}
	if engine == "cpu" && (u.Tile.M == nil) != (u.Tile.N == nil) || engine == "cpu" && u.Tile.M != nil && *u.Tile.M != *u.Tile.N {
		return "tile", "tiles of the CPU engine are square: want the same m and n"
	}
	if u.Mover != "" {
		if engine == "cpu" {
			return "mover", "mover has no meaning for the CPU engine"
		}
		if !slices.Contains(knownMovers, u.Mover) {
			return "mover", fmt.Sprintf("mover is %q; want one of %s", u.Mover, strings.Join(knownMovers, ", "))
		}
	}
	return "", ""
}

// split says what is wrong with the CTAs of the roles on a GPU that holds one for each of its SMs, or "".
func (u *use) split(sms int) string {
	var parts []string
	others := 0
	for _, r := range []struct {
		name  string
		value *int
	}{{"intra", u.Roles.Intra}, {"send", u.Roles.Send}, {"reduce", u.Roles.Reduce}} {
		if r.value != nil {
			parts = append(parts, fmt.Sprintf("%s %d", r.name, *r.value))
			others += *r.value
		}
	}
	sum := strings.Join(parts, " + ")
	if others >= sms {
		return fmt.Sprintf("a split that leaves no compute CTA: %s on %d SMs", sum, sms)
	}
	if all := others + or0(u.Roles.Compute); all > sms {
		if sum != "" {
			sum += " + "
		}
		return fmt.Sprintf("%scompute %d is more than the %d SMs, and a CTA without an SM would never start", sum, or0(u.Roles.Compute), sms)
	}
	return ""
}

// or0 is the number that was given, or 0.
func or0(p *int) int {
	if p == nil {
		return 0
	}
	return *p
}

func (u *use) settings() Settings {
	return Settings{
		Compute: or0(u.Roles.Compute), Intra: or0(u.Roles.Intra), Send: or0(u.Roles.Send), Reduce: or0(u.Roles.Reduce),
		TileM: or0(u.Tile.M), TileN: or0(u.Tile.N), TileK: or0(u.Tile.K),
		Stages: or0(u.Stages), Chunks: or0(u.Chunks), Mover: u.Mover,
	}
}
