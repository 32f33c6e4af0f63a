package session

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

func TestTextsOfAnyBytesCanBeSent(t *testing.T) {
	m := &pb.FromAgent{Kind: &pb.FromAgent_RankExited{RankExited: &pb.RankExited{
		ExecError: "caf\xe9", LastLines: []string{"good \u00e9 \ufffd", "\xff\xfe bad", ""}}}}
	if _, err := proto.Marshal(m); err == nil {
		t.Fatal("there is nothing to do")
	}
	makeValid(m)
	if _, err := proto.Marshal(m); err != nil {
		t.Fatal(err)
	}
	x := m.GetRankExited()
	if x.ExecError != `caf\xe9` || x.LastLines[0] != "good \u00e9 \ufffd" || x.LastLines[1] != `\xff\xfe bad` {
		t.Errorf("%q %q", x.ExecError, x.LastLines)
	}
	nested := &pb.ToAgent{Kind: &pb.ToAgent_Roster{Roster: &pb.Roster{Nodes: []*pb.Node{{Hostname: "h\x80", Gossip: []string{"\x81"}}}}}}
	makeValid(nested)
	if n := nested.GetRoster().Nodes[0]; n.Hostname != `h\x80` || n.Gossip[0] != `\x81` {
		t.Errorf("%q %q", n.Hostname, n.Gossip)
	}
}
