package launch

import (
	"context"
	"slices"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/topology"
)

// EnvNICs is the variable that tells a rank which NICs are near its GPU, as its node calls them (mlx5_0,mlx5_1). It is
// only set where that is known. mkrun sets none of the variables that other libraries choose NICs by.
const EnvNICs = "MKRUN_NICS"

// Preview says where the ranks would go if the job were started now, by rank; nil for those on other machines, whose
// agents find out. It looks at this machine and starts nothing. The notices say what could not be done as it was asked
// for.
func (j *Job) Preview(ctx context.Context) (places []*RankPlace, notices []string, err error) {
	places = make([]*RankPlace, j.World.Size())
	if !slices.ContainsFunc(j.Hosts, func(h Host) bool { return !h.remote() }) {
		return places, nil, nil
	}
	n, err := look(ctx)
	if err != nil {
		return nil, nil, err
	}
	return j.preview(n)
}

func (j *Job) preview(n *topology.Node) (places []*RankPlace, notices []string, err error) {
	places = make([]*RankPlace, j.World.Size())
	for node, h := range j.Hosts {
		if h.remote() {
			continue
		}
		start := &pb.Start{Bind: j.Bind, Gpus: j.nodeGPUs(node), GpuIsolate: j.GPUIsolate, NetDevices: j.NetDevices}
		var visible []string
		var sessions []bool
		for local := range j.World.PPN[node] {
			start.Ranks = append(start.Ranks, &pb.RankSpec{LocalRank: int32(local), Session: j.Session, Gpu: j.chosenGPU(j.World.RankAt(node, local))})
			visible = append(visible, lookupEnv(j.rankEnv(j.World.RankAt(node, local), Attempt{}), visibleDevices))
			sessions = append(sessions, j.Session)
		}
		seats, said, err := seatRanks(n, start, visible, sessions)
		if err != nil {
			return nil, nil, err
		}
		for local, s := range seats {
			places[j.World.RankAt(node, local)] = &RankPlace{CPUs: s.cpus.String(), GPU: s.gpu, NICs: s.nics, NICRule: s.nicRule, ProxyCPUs: s.proxy.String()}
		}
		notices = append(notices, said...)
	}
	return places, notices, nil
}
