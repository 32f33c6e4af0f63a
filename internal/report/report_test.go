package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/plan"
)

func TestEveryKeyIsThere(t *testing.T) {
	var b bytes.Buffer
	d := Document{Schema: Schema, Status: Pass, World: World{Nodes: 2, PPN: PPN{2, 2}, Size: 4}}
	if err := d.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("schema status operator algorithm shape dtype world engine net seed start_ms check time_ms bytes plan config settings digest ranks") {
		if _, ok := doc[key]; !ok {
			t.Errorf("key %q is missing", key)
		}
	}
	if _, ok := doc["error"]; ok {
		t.Error("a job that did not fail has an error")
	}
}

func TestTableSaysHowAGPURan(t *testing.T) {
	d := Document{
		Operator: "ag_gemm", Shape: &plan.Shape{M: 4, N: 5, K: 8}, Engine: "cuda", World: World{Nodes: 1, PPN: PPN{2}, Size: 2},
		Settings: map[string]any{"mover": "ce", "tile": 256, "ctas": 132},
		Ranks: []Rank{
			{HostUS: 31.4, Launches: 12, WaitedMS: map[string]float64{"compute": 0.5, "intra": 0.1}},
			{HostUS: 30, Launches: 12, WaitedMS: map[string]float64{"compute": 0.25}},
		},
	}
	var b strings.Builder
	if err := d.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	want := "mover ce, tiles of 256 columns, 132 CTAs; of the host 31 us a call for 12 kernels and copies; compute waited 0.500 ms; intra waited 0.100 ms\n"
	if !strings.Contains(b.String(), want) {
		t.Errorf("the table\n%s\ndoes not have\n%s", b.String(), want)
	}
	for i := range d.Ranks {
		d.Ranks[i].Launches = 1
	}
	b.Reset()
	if err := d.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	if want = "of the host 31 us a call for one kernel; compute waited"; !strings.Contains(b.String(), want) {
		t.Errorf("the table\n%s\ndoes not have\n%s", b.String(), want)
	}
}

func TestPPNIsANumberWhereNodesAreAlike(t *testing.T) {
	for _, tt := range []struct {
		ppn  PPN
		want string
	}{{PPN{2, 2}, "2"}, {PPN{2, 1}, "[2,1]"}, {PPN{3}, "3"}} {
		got, err := json.Marshal(tt.ppn)
		if err != nil || string(got) != tt.want {
			t.Errorf("%v is written as %s (%v), want %s", []int(tt.ppn), got, err, tt.want)
		}
	}
}

func TestSize(t *testing.T) {
	for _, tt := range []struct {
		n    int64
		want string
	}{{0, "0 B"}, {1023, "1023 B"}, {1024, "1 KiB"}, {1536, "1.5 KiB"}, {1 << 30, "1 GiB"}, {1<<63 - 1, "8 EiB"}} {
		if got := Size(tt.n); got != tt.want {
			t.Errorf("Size(%d) = %q, want %q", tt.n, got, tt.want)
		}
	}
}

func TestTableShowsEachRankAndTheTotal(t *testing.T) {
	relative := 1.5e-3
	d := Document{
		Operator: "ag_gemm", Shape: &plan.Shape{M: 4, N: 5, K: 8}, DType: "bf16", Engine: "cpu", Net: "tcp", Status: Fail,
		World:  World{Nodes: 2, PPN: PPN{1, 1}, Size: 2},
		Plan:   &Plan{Transfers: 2, Segments: 4, Flags: 6, Verified: true},
		Config: &Config{Source: "defaults"}, Check: &Check{RelError: relative, WorstTileError: 2e-3, Tolerance: 4e-3},
		TimeMS: &Times{Median: 2, P95: 3, Max: 4}, Bytes: &Bytes{Intra: 0, Inter: 2048, InterMinimum: 1024},
		Ranks: []Rank{
			{Rank: 0, TimeMS: 1, GFlops: 10, RelError: &relative, Status: "pass", InterBytes: 1024},
			{Rank: 1, Node: 1, TimeMS: 2, GFlops: 5, RelError: &relative, Status: "fail", InterBytes: 1024},
		},
	}
	d.Bytes.Ratio()
	var b bytes.Buffer
	if err := d.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PASS", "FAIL", "1.50e-03", "2.00 times the least possible", "tolerance 4.00e-03", "median 2.000 ms"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

func TestRatioOfNothingIsNull(t *testing.T) {
	b := Bytes{Intra: 8}
	if b.Ratio(); b.InterRatio != nil {
		t.Errorf("ratio %v where nothing need move", *b.InterRatio)
	}
	b = Bytes{Inter: 30, InterMinimum: 20}
	if b.Ratio(); b.InterRatio == nil || *b.InterRatio != 1.5 {
		t.Errorf("ratio %v, want 1.5", b.InterRatio)
	}
}
