package topology

import (
	"slices"
	"testing"
)

// knownFaulty are the files of the corpus that describe a broken machine, with the code that must be
// found. All others are healthy: any degradation found in them is a false alarm.
var knownFaulty = map[string]string{"nccl-xml/azure-nc96v4.xml": "nvlink-self"}

func TestCorpusHealth(t *testing.T) {
	for _, a := range answers(t) {
		if !slices.Contains(scored, a.Kind) {
			continue
		}
		list := CheckNodes([]*Eval{NewEval(load(t, a.File))}, nil)
		if code := knownFaulty[a.File]; code != "" {
			if !slices.ContainsFunc(list, func(f Finding) bool { return f.Code == code && f.Severity == Degraded }) {
				t.Errorf("%s: %s was not found in %v", a.File, code, list)
			}
			continue
		}
		if !Healthy(list) {
			t.Errorf("%s is healthy, but: %v", a.File, list)
		}
	}
}

// Machines of the table are recognised in the corpus without a complaint.
func TestCorpusExpect(t *testing.T) {
	for name, files := range map[string][]string{
		"p4d":      {"lstopo/aws-p4d.24xlarge.xml", "nccl-xml/aws-p4d.24xlarge.xml"},
		"p5":       {"lstopo/aws-p5.48xlarge.xml"},
		"p5en":     {"lstopo/aws-p5en.48xlarge.xml"},
		"p6-b200":  {"lstopo/aws-p6-b200.48xlarge.xml"},
		"ndv5":     {"nccl-xml/azure-ndv5.xml"},
		"a3-ultra": {"smi/gcp-a3-ultra-h200.txt"},
		"h100-8":   {"nccl-xml/oci-bm.gpu.h100.8.xml", "smi/aws-p5.48xlarge.txt"},
		"h200-8":   {"smi/gcp-a3-ultra-h200.txt"},
	} {
		x, err := ParseExpectation(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if list := x.Check(NewEval(load(t, f))); !Healthy(list) {
				t.Errorf("%s is a %s, but: %v", f, name, list)
			}
		}
	}
	x, err := ParseExpectation("h200-8")
	if err != nil {
		t.Fatal(err)
	}
	list := x.Check(NewEval(load(t, "lstopo/aws-g6.48xlarge.xml")))
	if Healthy(list) {
		t.Error("8 x L4 pass for 8 x H200")
	}
}
