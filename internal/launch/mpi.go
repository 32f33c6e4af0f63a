package launch

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/pmi"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
)

// pmiSocket joins a rank that may be an MPI program to its agent.
type pmiSocket struct {
	ours   net.Conn
	theirs *os.File // the rank's end, until it was started
}

func newPMISocket() (*pmiSocket, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making a socket for PMI: %w", err)
	}
	theirs, file := os.NewFile(uintptr(pair[1]), "pmi"), os.NewFile(uintptr(pair[0]), "pmi")
	ours, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, fmt.Errorf("making a socket for PMI: %w", err)
	}
	return &pmiSocket{ours, theirs}, nil
}

func (s *pmiSocket) close() {
	_ = s.ours.Close()
	_ = s.theirs.Close()
}

// servePMI answers the PMI requests of ranks that were just started.
func (c *crew) servePMI(sockets map[int]*pmiSocket, job string) {
	ctx, end := context.WithCancel(context.Background())
	c.endPMI = end
	node := pmi.NewNode(job, c.server.Size(), c.start.GetPmiMapping())
	for rank, s := range sockets {
		_ = s.theirs.Close()
		c.pmi = append(c.pmi, s)
		c.serving.Go(func() {
			err := node.Serve(ctx, s.ours, func() (pmi.Exchange, error) {
				return c.server.Local(ctx, rank)
			})
			var abort *pmi.AbortError
			switch {
			case err == nil:
			case errors.As(err, &abort): // it waits at its socket for what comes of that
				c.send(&pb.FromAgent{Kind: &pb.FromAgent_Abort{Abort: &pb.AbortRequest{
					Rank: int32(rank), Reason: abort.Error(), ExitStatus: int32(abort.Status)}}})
			case errors.Is(err, pmi.ErrUnfinished):
				c.unfinished(rank, pmiUnfinished)
			default:
				_ = s.ours.Close()
				c.log.Debug("a rank's PMI requests", "rank", rank, "error", err)
			}
		})
	}
}

// pmiEnd is what is known of how an MPI program ended. Its process and its socket end in any order.
type pmiEnd int

const (
	pmiUnfinished pmiEnd = 1 << iota // without MPI_Finalize
	pmiEndedWell                     // with status 0; a failure is told by itself
)

// unfinished asks for the job's end once a rank is known to have ended well, but not as an MPI program has to.
func (c *crew) unfinished(rank int, end pmiEnd) {
	c.pmiMu.Lock()
	c.pmiEnds[rank] |= end
	both := c.pmiEnds[rank] == pmiUnfinished|pmiEndedWell
	c.pmiMu.Unlock()
	if both {
		c.send(&pb.FromAgent{Kind: &pb.FromAgent_Abort{Abort: &pb.AbortRequest{
			Rank: int32(rank), Reason: pmi.ErrUnfinished.Error(), ExitStatus: stdio.StatusLauncher, Certain: true}}})
	}
}

// openMPILibraries are the names under which programs need Open MPI's library; MPICH's is libmpi.so.12 or libmpich.so.12.
var openMPILibraries = []string{"libmpi.so.40", "libmpi.so.20"}

// refuseOpenMPI refuses programs that were linked with Open MPI: as ranks they would each believe to be alone.
func refuseOpenMPI(ranks []*pb.RankSpec) error {
	seen := map[string]bool{}
	for _, r := range ranks {
		if !r.GetPmi() || len(r.GetArgv()) == 0 {
			continue
		}
		name := string(r.GetArgv()[0])
		if seen[name] {
			continue
		}
		seen[name] = true
		path := findProgram(name, string(r.GetDir()), convert[string](r.GetEnv()))
		if path == "" {
			continue // said better when it is started
		}
		for _, library := range neededLibraries(path) {
			if slices.Contains(openMPILibraries, library) {
				return fmt.Errorf("%s needs %s, which is Open MPI's: that finds its ranks by PMIx, which mkrun does not speak; "+
					"start it with mpirun, build it with MPICH, or say --pmi=false if it is meant to run as single processes", path, library)
			}
		}
	}
	return nil
}

// findProgram is the file that a rank executes, or "".
func findProgram(name, dir string, env []string) string {
	if strings.Contains(name, "/") {
		return inDir(dir, name)
	}
	for i := len(env) - 1; i >= 0; i-- {
		path, ok := strings.CutPrefix(env[i], "PATH=")
		if !ok {
			continue
		}
		for _, d := range filepath.SplitList(path) {
			file := filepath.Join(inDir(dir, d), name)
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return file
			}
		}
		return ""
	}
	return ""
}

func inDir(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// neededLibraries are the shared libraries that a program names itself; none for what is no ELF file.
func neededLibraries(path string) []string {
	f, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return nil
	}
	return libraries
}
