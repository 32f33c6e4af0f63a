package topology

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// corpusDir holds real inputs with the right answers; it is not part of the repository.
const corpusDir = "../../../shared/corpus/topology"

func corpus(t testing.TB) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(corpusDir, "answers.json")); err != nil {
		t.Skipf("the corpus of real topologies is not at %s: %v", corpusDir, err)
	}
	return corpusDir
}

// answer is one file of answers.json.
type answer struct {
	File string `json:"file"`
	Kind string `json:"kind"`
	GPUs []struct {
		GPU         any               `json:"gpu"`
		NUMA        *int              `json:"numa"`
		NearestSMI  *string           `json:"nearest_smi"`
		NearestNCCL *string           `json:"nearest_nccl"`
		NearestFile *string           `json:"nearest_file"`
		NICs        []json.RawMessage `json:"nics"`
		NVLinks     *int              `json:"nvlinks"`
		NV          []int             `json:"nv"`
	} `json:"gpus"`
}

func answers(t testing.TB) []answer {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(corpus(t), "answers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []answer
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// load reads a file of the corpus.
func load(t testing.TB, name string) *Node {
	t.Helper()
	nodes, err := Load(filepath.Join(corpus(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return nodes[0]
}

// scorer counts right answers.
type scorer struct {
	right, total int
	wrong        []string
}

func (s *scorer) is(ok bool, format string, args ...any) {
	s.total++
	if ok {
		s.right++
	} else {
		s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
	}
}

// nicNames are the wanted NICs of an answer: column names of a matrix, else slots.
func nicNames(raw []json.RawMessage, kind string) []string {
	var names []string
	for _, r := range raw {
		var s string
		if json.Unmarshal(r, &s) == nil {
			names = append(names, s)
			continue
		}
		var o struct {
			BDF   string   `json:"bdf"`
			Names []string `json:"names"`
		}
		if json.Unmarshal(r, &o) == nil {
			if kind == "smi" {
				names = append(names, o.Names[0])
			} else {
				names = append(names, slot(o.BDF))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (s *scorer) file(a answer, doc *Document) {
	gpus := map[string]GPUDoc{}
	for _, g := range doc.Nodes[0].GPUs {
		gpus[fmt.Sprint(g.Index)] = g
	}
	for _, want := range a.GPUs {
		at := fmt.Sprintf("%s gpu %v", a.File, want.GPU)
		got, ok := gpus[fmt.Sprint(want.GPU)]
		near := got.Nearest
		if near == nil {
			near = &NearestDoc{}
		}
		if want.NICs != nil {
			var names []string
			for _, c := range near.NICs {
				if a.Kind == "smi" {
					names = append(names, c.Name)
				} else {
					names = append(names, slot(c.BDF))
				}
			}
			slices.Sort(names)
			names = slices.Compact(names)
			s.is(ok && slices.Equal(names, nicNames(want.NICs, a.Kind)), "%s: NICs %v, want %v", at, names, nicNames(want.NICs, a.Kind))
		}
		var levels []string
		level := ""
		if a.Kind == "nccl-xml" {
			for _, w := range []*string{want.NearestNCCL, want.NearestFile} {
				if w != nil {
					levels = append(levels, *w)
				}
			}
			if near.NCCL != nil {
				level = string(*near.NCCL)
			}
		} else {
			if want.NearestSMI != nil {
				levels = append(levels, *want.NearestSMI)
			}
			if near.SMI != nil {
				level = string(*near.SMI)
			}
		}
		if len(want.NICs) > 0 && len(levels) > 0 {
			s.is(slices.Contains(levels, level), "%s: level %q, want one of %v", at, level, levels)
		}
		if want.NUMA != nil {
			s.is(got.NUMA != nil && *got.NUMA == *want.NUMA, "%s: NUMA node %v, want %d", at, got.NUMA, *want.NUMA)
		}
		if want.NVLinks != nil {
			s.is(got.NVLinks != nil && *got.NVLinks == *want.NVLinks, "%s: NVLinks %v, want %d", at, got.NVLinks, *want.NVLinks)
		}
		if len(want.NV) > 0 {
			var nv []int
			for _, p := range got.Peers {
				var n int
				if _, err := fmt.Sscanf(string(p.Level), "NV%d", &n); err == nil {
					nv = append(nv, n)
				}
			}
			s.is(slices.Equal(nv, want.NV), "%s: links to peers %v, want %v", at, nv, want.NV)
		}
	}
}

// scored are the kinds that are topologies.
var scored = []string{"nccl-xml", "lstopo", "smi"}

func TestCorpusAnswers(t *testing.T) {
	var s scorer
	for _, a := range answers(t) {
		path := filepath.Join(corpusDir, a.File)
		switch {
		case slices.Contains(scored, a.Kind):
			nodes, err := Load(path)
			if err != nil {
				t.Errorf("%s is a topology, but: %v", a.File, err)
				continue
			}
			doc, err := NewDocument(nodes, 0)
			if err != nil {
				t.Fatal(err)
			}
			s.file(a, doc)
		case a.Kind == "other-xml" || a.Kind == "nccl-graph":
			_, err := Load(path)
			s.is(err != nil && strings.Contains(err.Error(), filepath.Base(a.File)), "%s must be refused by name, got %v", a.File, err)
		}
	}
	share := 100 * float64(s.right) / float64(max(1, s.total))
	t.Logf("%.1f %% of %d answers right", share, s.total)
	for _, w := range s.wrong {
		t.Log(w)
	}
	if share < 97 || s.total < 1000 {
		t.Errorf("%.1f %% of %d answers right; at least 97 %% of at least 1000 are wanted", share, s.total)
	}
}

// The scorer must be able to fail.
func TestCorpusScorerCatches(t *testing.T) {
	for _, a := range answers(t) {
		if a.File != "lstopo/aws-p5.48xlarge.xml" {
			continue
		}
		n := load(t, a.File)
		n.GPUs[0].PCI, n.GPUs[1].PCI = n.GPUs[1].PCI, n.GPUs[0].PCI
		n.GPUs[2].NUMA = intp(7)
		doc, err := NewDocument([]*Node{n}, 0)
		if err != nil {
			t.Fatal(err)
		}
		var s scorer
		s.file(a, doc)
		if len(s.wrong) != 3 {
			t.Errorf("two swapped GPUs and a wrong NUMA node give %d differences, want 3: %v", len(s.wrong), s.wrong)
		}
	}
}

// The document is its own input: read again it gives the same answers.
func TestCorpusJSONRoundTrip(t *testing.T) {
	for _, a := range answers(t) {
		if !slices.Contains(scored, a.Kind) {
			continue
		}
		first := documentOf(t, load(t, a.File))
		var once, twice bytes.Buffer
		if err := first.Write(&once); err != nil {
			t.Fatal(err)
		}
		again, err := Parse(a.File, once.Bytes())
		if err != nil {
			t.Errorf("%s: %v", a.File, err)
			continue
		}
		for i := range again {
			again[i].Origin.File = first.Nodes[i].Origin.File
		}
		if err := documentOf(t, again...).Write(&twice); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(once.Bytes(), twice.Bytes()) {
			t.Errorf("%s: the document read again differs", a.File)
		}
	}
}

func documentOf(t testing.TB, nodes ...*Node) *Document {
	t.Helper()
	d, err := NewDocument(nodes, 0)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
