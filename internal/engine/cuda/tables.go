package cuda

import (
	"fmt"

	"github.com/mkrun/mkrun/internal/plan"
)

// What the kernels' tables hold of one rank's plan: kMostSegments and what follows it in cuda/comm/schedule.h.
const (
	mostSegments = 64
	mostCopies   = 32 // carried by SMs; the copy engine takes any number
	mostSends    = 32
	mostNotices  = 32
	mostRaises   = 96
)

// CheckTables says which of the kernels' tables a plan for this shape does not fit into. Copies are counted where SMs surely
// carry them: that is asked for, or some are of rows that came from another node.
func CheckTables(p *plan.Plan, s plan.Shape, smCopies bool) error {
	if p.World.Nodes() > 1 {
		for _, n := range p.World.PPN {
			smCopies = smCopies || n > 1
		}
	}
	for rank := range p.Ranks {
		var segments, copies, sends, notices, raises int
		for _, queue := range p.Ranks[rank].Queues {
			for i := range queue {
				t := &queue[i]
				if t.Kind != plan.Notify { // what it signals is the notice
					for _, signal := range t.Signals {
						if t.Kind == plan.Compute || signal.Rank != t.Peer {
							raises++
						}
					}
				}
				if t.Kind != plan.Notify && t.Src.Rows.Len(s) == 0 {
					continue
				}
				switch t.Kind {
				case plan.Compute:
					segments++
				case plan.Copy:
					copies++
				case plan.Send:
					sends++
				case plan.Notify:
					notices++
				}
			}
		}
		if !smCopies {
			copies = 0
		}
		for _, table := range []struct {
			what       string
			have, most int
		}{{"segments", segments, mostSegments}, {"copies", copies, mostCopies}, {"messages to other nodes", sends, mostSends},
			{"notices to other nodes", notices, mostNotices}, {"flags to raise", raises, mostRaises}} {
			if table.have > table.most {
				return fmt.Errorf("rank %d would have %d %s, and the CUDA kernels hold %d", rank, table.have, table.what, table.most)
			}
		}
	}
	return nil
}
