package launch

import (
	"testing"

	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// A rank that was waited for is told with its host, if that is another node than the one that speaks, which the message names anyway.
func TestWhereabouts(t *testing.T) {
	roster := &pb.Roster{Nodes: []*pb.Node{
		{Index: 0, Hostname: "a", FirstRank: 0, Ranks: 2}, {Index: 1, Hostname: "b", FirstRank: 2, Ranks: 3}, {Index: 2, Hostname: "c", FirstRank: 5, Ranks: 2},
	}}
	for _, tt := range []struct {
		me    int
		ranks []int
		want  string
	}{
		{0, nil, ""},
		{0, []int{1}, ""},
		{0, []int{4}, "; rank 4 is on b (node 1)"},
		{3, []int{1, 2, 4, 6}, "; rank 1 is on a (node 0); rank 6 is on c (node 2)"},
		{1, []int{0, 2, 3, 4, 5, 6}, "; rank 2 is on b (node 1); rank 3 is on b (node 1); rank 4 is on b (node 1); rank 5 is on c (node 2)"},
		{0, []int{99}, ""},
	} {
		if got := whereabouts(session.RankInfo{Rank: tt.me, Roster: roster}, tt.ranks); got != tt.want {
			t.Errorf("rank %d of ranks %v: %q, want %q", tt.me, tt.ranks, got, tt.want)
		}
	}
	if got := whereabouts(session.RankInfo{}, []int{1}); got != "" {
		t.Errorf("without a roster: %q", got)
	}
}
