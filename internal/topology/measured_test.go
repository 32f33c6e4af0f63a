package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// bench is a meter whose links are as a test wants them.
type bench struct {
	uuids []string
	err   error
	pair  func(a, b int) ([2]MeasuredPath, error)
	host  func(gpu int) (MeasuredHost, error)
	fan   func(gpus []int, cases []MeasuredFan) ([]MeasuredFan, error)
}

func (b bench) UUIDs() ([]string, error)               { return b.uuids, b.err }
func (b bench) Pair(x, y int) ([2]MeasuredPath, error) { return b.pair(x, y) }
func (b bench) HostLink(gpu int) (MeasuredHost, error) { return b.host(gpu) }
func (b bench) FanOut(gpus []int, cases []MeasuredFan) ([]MeasuredFan, error) {
	return b.fan(gpus, cases)
}

func goodPath() MeasuredPath {
	return MeasuredPath{Direct: true, CopyGBs: 392, BothGBs: 385, StoreGBs: 370, LoadUS: 1.3, SignalUS: 0.9, Words: 1 << 25}
}

func goodBench(n *Node) bench {
	b := bench{
		pair: func(int, int) ([2]MeasuredPath, error) { return [2]MeasuredPath{goodPath(), goodPath()}, nil },
		host: func(int) (MeasuredHost, error) {
			return MeasuredHost{ToDeviceGBs: 55, ToHostGBs: 54, BothToDeviceGBs: 40, BothToHostGBs: 41, SignalUS: 2.1, Words: 1 << 25}, nil
		},
		fan: func(_ []int, cases []MeasuredFan) ([]MeasuredFan, error) {
			out := slices.Clone(cases)
			for i := range out {
				out[i].GBs, out[i].Words = float64(300+10*out[i].Peers+out[i].Depth), 1<<20
			}
			return out, nil
		},
	}
	for _, g := range n.GPUs {
		b.uuids = append(b.uuids, g.UUID)
	}
	return b
}

func codes(list []Finding) []string {
	var all []string
	for _, f := range list {
		if strings.HasPrefix(f.Code, "measured") {
			all = append(all, f.Code+" "+f.Where)
		}
	}
	slices.Sort(all)
	return all
}

func TestMeasure(t *testing.T) {
	n := h200().node()
	b := goodBench(n)
	slices.Reverse(b.uuids) // CUDA may number them in any order
	b.pair = func(x, y int) ([2]MeasuredPath, error) {
		p := [2]MeasuredPath{goodPath(), goodPath()}
		p[0].CopyGBs, p[1].CopyGBs = float64(390+x), float64(390+y)
		return p, nil
	}
	if err := n.Measure(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if len(n.Measured.Paths) != 56 || len(n.Measured.Hosts) != 8 {
		t.Fatalf("%d paths, %d hosts", len(n.Measured.Paths), len(n.Measured.Hosts))
	}
	for _, p := range n.Measured.Paths {
		if want := float64(390 + 7 - p.From); p.CopyGBs != want {
			t.Errorf("GPU%d -> GPU%d has the figure %v, want %v", p.From, p.To, p.CopyGBs, want)
		}
	}
	e := NewEval(n)
	if list := codes(e.Health()); len(list) != 0 {
		t.Errorf("healthy links are called %v", list)
	}
	var text strings.Builder
	e.WriteMeasured(&text, Style{})
	for _, want := range []string{"GPU0  X     397   397", "GPU7  390   390", "GPU3  55.0    54.0     40.0 + 41.0   2.10",
		"sources  peers  blocks  4    8    16   32   64   all SMs", "1        3      1       331  331", "8        7      4       374  374",
		"256 transfers, 50.0 GB, were read back and compared: all right"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the view lacks %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "\x1b") {
		t.Error("colour where none was asked for")
	}
}

func TestMeasureFindsFaults(t *testing.T) {
	tests := []struct {
		name  string
		bend  func(*bench)
		codes []string
		view  string
	}{
		{"dropped writes one way", func(b *bench) {
			b.pair = func(x, y int) ([2]MeasuredPath, error) {
				p := [2]MeasuredPath{goodPath(), goodPath()}
				if x == 2 && y == 5 {
					p[1].WrongStore = 17
				}
				return p, nil
			}
		}, []string{"measured-data GPU5 -> GPU2"}, "392 WRONG"},
		{"bent bytes from the host", func(b *bench) {
			good := b.host
			b.host = func(gpu int) (MeasuredHost, error) {
				h, err := good(gpu)
				if gpu == 1 {
					h.WrongToDevice = 1
				}
				return h, err
			}
		}, []string{"measured-data GPU1 - host"}, "2.10 WRONG"},
		{"a slow direction", func(b *bench) {
			b.pair = func(x, y int) ([2]MeasuredPath, error) {
				p := [2]MeasuredPath{goodPath(), goodPath()}
				if x == 0 && y == 1 {
					p[0].CopyGBs = 200
				}
				return p, nil
			}
		}, []string{"measured-slow GPU0 -> GPU1"}, "GPU0  X     200"},
		{"a slow host link", func(b *bench) {
			good := b.host
			b.host = func(gpu int) (MeasuredHost, error) {
				h, err := good(gpu)
				if gpu == 6 {
					h.ToHostGBs = 12
				}
				return h, err
			}
		}, []string{"measured-slow GPU6 - host"}, "12.0"},
		{"words lost on the way to many", func(b *bench) {
			good := b.fan
			b.fan = func(gpus []int, cases []MeasuredFan) ([]MeasuredFan, error) {
				fans, err := good(gpus, cases)
				fans[len(fans)-1].Wrong = 3
				return fans, err
			}
		}, []string{"measured-data 8 GPUs to 7 peers each"}, "374 WRONG"},
		{"fans that fail", func(b *bench) {
			b.fan = func([]int, []MeasuredFan) ([]MeasuredFan, error) {
				return nil, errors.New("device 3 does not reach device 5")
			}
		}, []string{"measured-failed GPUs that push to several peers"}, "peers: device 3 does not reach device 5"},
		{"a link that fails", func(b *bench) {
			b.pair = func(x, y int) ([2]MeasuredPath, error) {
				if x == 3 && y == 4 {
					return [2]MeasuredPath{}, errors.New("no answer to signal 1 of 2000")
				}
				return [2]MeasuredPath{goodPath(), goodPath()}, nil
			}
		}, []string{"measured-failed GPU3 -> GPU4", "measured-failed GPU4 -> GPU3"}, "2 links could not be measured"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := h200().node()
			b := goodBench(n)
			tt.bend(&b)
			if err := n.Measure(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			e := NewEval(n)
			list := e.Health()
			if got := codes(list); !slices.Equal(got, tt.codes) || Healthy(list) {
				t.Errorf("findings %v, want %v", got, tt.codes)
			}
			var text strings.Builder
			e.WriteMeasured(&text, Style{})
			if !strings.Contains(text.String(), tt.view) {
				t.Errorf("the view lacks %q:\n%s", tt.view, text.String())
			}
		})
	}
}

func TestMeasureOfSomeGPUs(t *testing.T) {
	n := h200().node()
	b := goodBench(n)
	b.uuids = []string{b.uuids[4], "MIG-1", b.uuids[0]} // CUDA_VISIBLE_DEVICES hides the others
	b.pair = func(x, y int) ([2]MeasuredPath, error) {
		if x == 1 || y == 1 {
			t.Errorf("pair %d %d", x, y)
		}
		return [2]MeasuredPath{goodPath(), goodPath()}, nil
	}
	fan := b.fan
	b.fan = func(gpus []int, cases []MeasuredFan) ([]MeasuredFan, error) {
		if !slices.Equal(gpus, []int{0, 2}) {
			t.Errorf("fans among %v", gpus)
		}
		return fan(gpus, cases)
	}
	if err := n.Measure(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if f := n.Measured.Fans; len(f) != 24 || f[0].Peers != 1 || f[23].Sources != 2 {
		t.Errorf("fans of two GPUs: %+v", f)
	}
	if len(n.Measured.Paths) != 2 || n.Measured.Paths[0].From != 0 || n.Measured.Paths[0].To != 4 || len(n.Measured.Hosts) != 2 {
		t.Errorf("%+v", n.Measured)
	}
	if last := n.Notes[len(n.Notes)-1]; !strings.Contains(fmt.Sprint(n.Notes), "MIG-1") {
		t.Errorf("nothing says that MIG-1 was left out; last note %v", last)
	}
	b.uuids = []string{"MIG-1"}
	if err := n.Measure(t.Context(), b); err == nil || !strings.Contains(err.Error(), "CUDA shows no GPU of it") {
		t.Errorf("%v", err)
	}
	b.err = errors.New("no driver")
	if err := n.Measure(t.Context(), b); err == nil || !strings.Contains(err.Error(), "no driver") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Measure(ctx, goodBench(n)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// The figures are part of the document, and of what it is read back as.
func TestMeasuredSurvivesTheDocument(t *testing.T) {
	n := h200().node()
	if err := n.Measure(t.Context(), goodBench(n)); err != nil {
		t.Fatal(err)
	}
	doc, err := NewDocument([]*Node{n}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := doc.Write(&text); err != nil {
		t.Fatal(err)
	}
	back, err := Parse("doc.json", []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	if m := back[0].Measured; m == nil || len(m.Paths) != 56 || m.Paths[0] != n.Measured.Paths[0] || m.Hosts[7] != n.Measured.Hosts[7] || !slices.Equal(m.Fans, n.Measured.Fans) {
		t.Errorf("%+v", m)
	}
}

// Fans are measured for the numbers of peers that there are, each once.
func TestFanCases(t *testing.T) {
	for gpus, want := range map[int][]int{1: nil, 2: {1}, 3: {1, 2}, 4: {1, 3}, 6: {1, 3, 5}, 8: {1, 3, 7}, 16: {1, 3, 7, 15}} {
		var peers []int
		seen := map[MeasuredFan]bool{}
		for _, c := range fanCases(gpus) {
			peers = append(peers, c.Peers)
			if seen[c] || c.Sources != 1 && c.Sources != gpus {
				t.Errorf("%d GPUs: %+v", gpus, c)
			}
			seen[c] = true
		}
		if got := slices.Compact(peers); !slices.Equal(got, want) || len(peers) != 24*len(want) {
			t.Errorf("%d GPUs: %d cases with %v peers, want %v", gpus, len(peers), got, want)
		}
	}
}

func TestHeat(t *testing.T) {
	for _, tt := range []struct {
		value, best float64
		want        string
	}{{392, 400, colGreen}, {320, 400, colYellow}, {200, 400, colRed}, {0, 400, colDim}} {
		if got := heat(tt.value, tt.best); got != tt.want {
			t.Errorf("%v of %v is %q", tt.value, tt.best, got)
		}
	}
}
