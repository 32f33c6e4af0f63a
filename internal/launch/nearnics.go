package launch

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/engine"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/topology"
)

// rdmaFiles are there where the kernel has RDMA devices.
const rdmaFiles = "/sys/class/infiniband/*"

// wantsNICs reports whether ranks will choose among NICs: an operator's, on several nodes, where there are any.
func (c *crew) wantsNICs() bool {
	if c.nodes < 2 || len(c.start.GetRanks()) == 0 || !c.start.GetRanks()[0].GetSession() {
		return false
	}
	found, err := filepath.Glob(rdmaFiles)
	return err == nil && len(found) > 0
}

// nicsOf notes which NICs a rank takes, and why.
func (s *seat) nicsOf(node *topology.Node, p *topology.RankPlace) {
	s.nicRule = p.NICRule
	for i, ref := range p.NICs {
		s.nics = append(s.nics, ref.Name)
		for k := range node.NICs {
			if c := &node.NICs[k]; c.Name == ref.Name && c.BDF == ref.BDF && c.RDMA != "" {
				s.rdma = append(s.rdma, c.RDMA)
				if len(p.Rails) == len(p.NICs) {
					s.rails = append(s.rails, int32(p.Rails[i]))
				}
			}
		}
	}
	if len(s.rails) != len(s.rdma) {
		s.rails = nil
	}
}

// nicsNamed puts the NICs that the user named for every rank in the place of those near this one, as far as this node has
// them: where its proxy runs follows from the NICs that it drives.
func (s *seat) nicsNamed(node *topology.Node, devices string) {
	var nics, rdma []string
	for device := range strings.SplitSeq(devices, ",") {
		name, _, _ := strings.Cut(device, ":")
		for i := range node.NICs {
			if c := &node.NICs[i]; c.RDMA == name && name != "" && !slices.Contains(rdma, name) {
				nics, rdma = append(nics, c.Name), append(rdma, name)
			}
		}
	}
	if nics != nil {
		s.nics, s.rdma, s.rails, s.nicRule = nics, rdma, nil, "named by --net-devices"
	}
}

// placeProxies says where the threads that drive the ranks' NICs run, once it is known where the ranks themselves do.
func placeProxies(eval *topology.Eval, seats []seat) {
	nics, bound := make([][]string, len(seats)), make([]topology.CPUSet, len(seats))
	for i, s := range seats {
		nics[i], bound[i] = s.nics, s.cpus
	}
	for i, cpus := range eval.ProxyCPUs(nics, bound) {
		seats[i].proxy = cpus
	}
}

// networks are what the ranks are told of the NICs near them, by rank.
func networks(start *pb.Start, seats []seat) map[int32]*pb.RankNetwork {
	all := map[int32]*pb.RankNetwork{}
	for i, s := range seats {
		if len(s.rdma) > 0 {
			all[start.GetRanks()[i].GetRank()] = &pb.RankNetwork{Nics: s.rdma, Rails: s.rails, Rule: s.nicRule, ProxyCpus: s.proxy.String()}
		}
	}
	return all
}

// nearNICs is what an agent said of NICs, for the engine.
func nearNICs(n *pb.RankNetwork) engine.NICs {
	near := engine.NICs{Devices: n.GetNics(), Rule: n.GetRule(), ProxyCPUs: n.GetProxyCpus()}
	for _, r := range n.GetRails() {
		near.Rails = append(near.Rails, int(r))
	}
	return near
}

// nicText says which NICs a rank takes and why; "" if it takes none.
func nicText(nics []string, rule, proxy string) string {
	if len(nics) == 0 {
		return ""
	}
	text := "NICs " + strings.Join(nics, " ")
	if rule != "" {
		text += " (" + rule + ")"
	}
	if proxy != "" {
		text += fmt.Sprintf(", driven on CPUs %s", proxy)
	}
	return text
}
