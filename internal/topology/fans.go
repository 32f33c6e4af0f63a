package topology

import (
	"fmt"
	"strings"
)

// MeasuredFan is GPUs that push at once, each the same data to several peers, by SMs as the mover sm of ag_gemm does.
type MeasuredFan struct {
	Sources int     `json:"sources"` // GPUs that push
	Peers   int     `json:"peers"`   // to so many each
	CTAs    int     `json:"ctas"`    // of each; 0: one for each SM
	Depth   int     `json:"depth"`   // blocks of 16 KiB that a CTA has on their way; 1: as ag_gemm's mover
	GBs     float64 `json:"gbs"`     // of the slowest source, to all its peers together
	Words   uint64  `json:"words"`   // of 8 bytes, checked
	Wrong   uint64  `json:"wrong"`
}

// fanCTAs are the numbers of CTAs that push; 0 is all SMs.
var fanCTAs = []int{4, 8, 16, 32, 64, 0}

// fanCases is what is measured among so many GPUs: one of them alone and all at once, to 1, 3 and 7 peers and to all others.
func fanCases(gpus int) []MeasuredFan {
	var cases []MeasuredFan
	for _, peers := range []int{1, 3, 7, gpus - 1} {
		if peers > gpus-1 || peers < 1 || len(cases) > 0 && cases[len(cases)-1].Peers >= peers {
			continue
		}
		for _, sources := range []int{1, gpus} {
			for _, depth := range []int{1, 4} {
				for _, ctas := range fanCTAs {
					cases = append(cases, MeasuredFan{Sources: sources, Peers: peers, CTAs: ctas, Depth: depth})
				}
			}
		}
	}
	return cases
}

// measureFans measures the GPUs of these CUDA numbers.
func (m *Measured) measureFans(meter Meter, cuda []int) {
	if len(cuda) < 2 {
		return
	}
	fans, err := meter.FanOut(cuda, fanCases(len(cuda)))
	if err != nil {
		m.FanProblem = err.Error()
		return
	}
	m.Fans = fans
}

// writeFans writes a row for each number of sources, peers and blocks on their way, a column for each number of CTAs.
func (m *Measured) writeFans(b *strings.Builder, s Style) {
	if m.FanProblem != "" {
		b.WriteString("GPUs that push to several peers: " + m.FanProblem + "\n\n")
	}
	if len(m.Fans) == 0 {
		return
	}
	b.WriteString(s.paint(colBold, "GB/s of SMs that push to several peers at once, each source's to all its peers together, by CTAs") + "\n")
	head := []cell{{"sources", colBold}, {"peers", colBold}, {"blocks", colBold}}
	for _, n := range fanCTAs {
		name := fmt.Sprint(n)
		if n == 0 {
			name = "all SMs"
		}
		head = append(head, cell{name, colBold})
	}
	var best float64
	for i := range m.Fans {
		best = max(best, m.Fans[i].GBs)
	}
	rows := [][]cell{head}
	for i := range m.Fans {
		f := &m.Fans[i]
		if i == 0 || f.Sources != m.Fans[i-1].Sources || f.Peers != m.Fans[i-1].Peers || f.Depth != m.Fans[i-1].Depth {
			rows = append(rows, []cell{{fmt.Sprint(f.Sources), ""}, {fmt.Sprint(f.Peers), ""}, {fmt.Sprint(f.Depth), ""}})
		}
		c := cell{fmt.Sprintf("%.0f", f.GBs), heat(f.GBs, best)}
		if f.Wrong > 0 {
			c = cell{c.text + " WRONG", colRed}
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], c)
	}
	s.table(b, rows, "  ")
	b.WriteByte('\n')
}

// fans checks what was pushed.
func (c *checkup) fans(m *Measured) {
	if m.FanProblem != "" {
		c.add(Degraded, "measured-failed", "GPUs that push to several peers", "dmesg may say more (Xid)", "could not be measured: %s", m.FanProblem)
	}
	for i := range m.Fans {
		if f := &m.Fans[i]; f.Wrong > 0 {
			c.add(Degraded, "measured-data", fmt.Sprintf("%d GPUs to %d peers each", f.Sources, f.Peers), "look at the pairs: if all are right alone, links lose data under load",
				"of %d words pushed by %d CTAs, %d were wrong", f.Words, f.CTAs, f.Wrong)
		}
	}
}
