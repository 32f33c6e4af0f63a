package launch

import (
	"github.com/mkrun/mkrun/internal/count"
	"github.com/mkrun/mkrun/internal/keeper"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// Files that one process of mkrun has open at the same time.
const (
	filesPerAgent  = 5 // of the launcher: the process's handle, three pipes, the connection
	filesPerOutput = 2 // of --output-dir, for a rank
	filesForMPI    = 3
	filesForSocket = 6
	filesForInput  = 2
)

// checkOpenFiles refuses a job for which this process may not open enough files.
func (j *Job) checkOpenFiles() error {
	agents := 0
	for node := range j.Hosts {
		if !j.below(node) && (j.Hosts[node].By != ReachSrun || node == 0) {
			agents++
		}
	}
	return keeper.CheckOpenFiles(filesPerAgent*agents, count.Of(agents, "agent"))
}

// checkOpenFiles refuses ranks for which this process, their agent, may not open enough files.
func (c *crew) checkOpenFiles(ranks []*pb.RankSpec, outputs bool) error {
	files := 0
	for _, r := range ranks {
		files += keeper.FilesPerRank
		for _, o := range []struct {
			wanted bool
			files  int
		}{{outputs, filesPerOutput}, {r.GetPmi(), filesForMPI}, {r.GetSession(), filesForSocket}, {r.GetStdin(), filesForInput}} {
			if o.wanted {
				files += o.files
			}
		}
	}
	return keeper.CheckOpenFiles(files, count.Of(len(ranks), "rank"))
}
