// Package launch runs a job: it starts one agent per node, has the agents start the ranks, relays
// their output, and ends everything, in order or not, with one verdict.
//
// Three roles, which may live in different places: the launcher (Run: the user's terminal), the
// head (machine + session.Head: owner of roster and verdict) and an agent per node (Agent).
package launch

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/pattern"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/ports"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// Job is what a user asked for, with everything resolved that can be before anything starts.
type Job struct {
	ID      string     // random; label of gossip, certificates, messages
	World   plan.World // ranks per node
	Hosts   []Host     // one per node, in rank order
	Argv    []string   // what each rank executes
	Dir     string     // working directory of the ranks
	Env     []string   // what ranks have from the launcher's environment, NAME=value; the rank's own variables are added
	Run     []byte     // the operator's run, for ranks with a session; nil for a user's own program
	Session bool       // ranks get a session with their agent

	Numbers    []int       // of the ranks as the user counts them, by World's own; nil: the same
	SSH        SSH         // how hosts that are not this one are reached
	Standing   Standing    `json:"-"` // how agents that stand already are
	Join       *Joining    `json:"-"` // how agents come that something else starts
	OutputDir  string      // on each node, for a file per rank and stream; "": none
	HeadFirst  bool        // the head runs on the first host, since hosts cannot connect to the launcher
	Radix      int         // how many agents report to the head, and to each agent; session.Radix when 0
	Ports      ports.Range // that agents and ranks listen on
	Interfaces []string    // network interfaces to use, by their exact names; none: found out

	Bind           string   // of ranks to CPUs; see Binds
	GPUs           string   // that ranks may use on every node, as in CUDA_VISIBLE_DEVICES; "": all, or the host's Devices
	GPUIsolate     bool     // each rank sees one GPU
	RankGPUs       []string // what CUDA_VISIBLE_DEVICES is for each rank, by World's numbers, where GPUs were chosen already; nil: as the two before say
	RankDevices    []int    // of each rank: the place of its GPU among those it sees, where GPUs were chosen already
	ReportBindings bool     // say where ranks were put
	NetDevices     string   // NICs of every rank that the user named, as RDMA devices; "": those near it

	Preflight   bool // nodes are checked before any rank is started
	ConnectOnly bool // with Preflight: and no rank is started

	PMI         bool   // ranks may be MPI programs that ask by PMI
	Compat      string // whose variables ranks get besides; see Compats
	Stdin       Stdin  // which ranks read the launcher's input
	MaxRestarts int    // how often all ranks are started again after one has failed

	Hold          time.Duration // that an unfinished line of output is held back; 0: as for people at a terminal
	KeepGoing     bool          // a rank that fails ends no other
	WaitAfterExit time.Duration // that ranks may go on after one has ended with status 0; 0 = for ever

	Timeout      time.Duration // of the whole job; 0 = none
	StartTimeout time.Duration // until every rank was started
	Silence      time.Duration // of an agent, after which its node is given up; 0: DefaultSilence, and more on a crowded host
	AbortGrace   time.Duration // between SIGTERM and SIGKILL once a peer failed
	Grace        time.Duration // between a user's signal and SIGKILL
}

// Host is one node of a job.
type Host struct {
	Name       string   // as the user wrote it
	Address    string   // where the node's ranks and its agent listen; of other hosts as its agent says
	By         Reach    // how its agent is started; "": as a child of this process
	Target     string   // what ssh is told to start its agent
	User       string   // to log in as; "": whoever ssh takes
	Candidates []string // addresses that its name has here
	Devices    []int    // GPUs its ranks may use; nil: all
}

// remote reports whether the host's agent is no child of this process.
func (h Host) remote() bool { return h.By != "" && h.By != ReachLocal }

// Remote reports whether any agent runs on another host. Then ranks have the environment of their own host, with Env
// and their own variables over it; else they have nothing but those.
func (j *Job) Remote() bool {
	return slices.ContainsFunc(j.Hosts, Host.remote)
}

// spread reports whether nodes must reach each other from other machines. They need not where all were named by
// loopback addresses, though ssh starts their agents.
func (j *Job) spread() bool {
	return j.Remote() && slices.ContainsFunc(j.Hosts, func(h Host) bool {
		addr, err := netip.ParseAddr(h.Address)
		return err != nil || !addr.IsLoopback()
	})
}

// AgentStart says for people how the agent of a node is started: the words of a command, or none and what else.
func (j *Job) AgentStart(node int) (command []string, otherwise string) {
	switch h := j.Hosts[node]; h.By {
	case ReachSSH:
		return j.SSH.args(h.Target), ""
	case ReachSrun:
		if node > 0 {
			return nil, "the same srun, for " + h.Name
		}
		command, err := j.srunCommand()
		if err != nil {
			return nil, err.Error()
		}
		return command, ""
	case ReachStanding:
		return nil, fmt.Sprintf("the standing agent at %s, port %d", h.Name, j.Standing.Port)
	case ReachJoin:
		return nil, "mkrun launch --join itself, on " + h.Name
	}
	return nil, "a child of this process, for " + j.Hosts[node].Name
}

// nodeGPUs are what the agent of a node finds GPUs for its ranks among; "" where each rank has one already.
func (j *Job) nodeGPUs(node int) string {
	if j.RankGPUs != nil {
		return ""
	}
	return j.HostGPUs(node)
}

// chosenGPU is 1 + the place of a rank's GPU among those it sees, if it was chosen; else 0.
func (j *Job) chosenGPU(rank int) int32 {
	if j.RankDevices == nil {
		return 0
	}
	return int32(1 + j.RankDevices[rank])
}

// HostGPUs are what the ranks of a node may use, as in CUDA_VISIBLE_DEVICES, if somebody said so.
func (j *Job) HostGPUs(node int) string {
	if j.GPUs != "" {
		return j.GPUs
	}
	words := make([]string, 0, len(j.Hosts[node].Devices))
	for _, d := range j.Hosts[node].Devices {
		words = append(words, strconv.Itoa(d))
	}
	return strings.Join(words, ",")
}

// Number is a rank as the user counts it.
func (j *Job) Number(rank int) int {
	if rank < 0 || j.Numbers == nil {
		return rank
	}
	return j.Numbers[rank]
}

// ranksNamed is how processes of a job name ranks in what they say, and local ranks, which are another thing.
var ranksNamed = pattern.Of(`\b(local )?(ranks? )(\d+|\[\d+(?: \d+)*\])`)

// inUserNumbers rewrites what a process of the job has said about ranks: they know each other by the world's numbers.
func (j *Job) inUserNumbers(text string) string {
	if j.Numbers == nil {
		return text
	}
	return ranksNamed().ReplaceAllStringFunc(text, func(named string) string {
		parts := ranksNamed().FindStringSubmatch(named)
		if parts[1] != "" {
			return named
		}
		words := strings.Fields(strings.Trim(parts[3], "[]"))
		for i, word := range words {
			rank, err := strconv.Atoi(word)
			if err != nil || rank >= len(j.Numbers) {
				return named
			}
			words[i] = strconv.Itoa(j.Numbers[rank])
		}
		list := strings.Join(words, " ")
		if strings.HasPrefix(parts[3], "[") {
			list = "[" + list + "]"
		}
		return parts[2] + list
	})
}

// Self stands for the mkrun binary in Argv[0]: on every host the one that its agent is.
const Self = "mkrun"

// Defaults of the bounds a job runs under; each has a flag.
const (
	DefaultSilence      = session.DefaultSilence
	MinSilence          = time.Second
	DefaultStartTimeout = 60 * time.Second
	DefaultAbortGrace   = 300 * time.Millisecond
	DefaultGrace        = 10 * time.Second
)

// crowdedAgents is how many agents a processor of this host may have before their silence means less: they wait for it.
const crowdedAgents = 8

// silence is how long an agent may say nothing. An agent of this host that dies is seen at once, however long that is.
func (j *Job) silence() time.Duration {
	if j.Silence > 0 {
		return j.Silence
	}
	here := 0
	for _, h := range j.Hosts {
		if !h.remote() {
			here++
		}
	}
	return DefaultSilence + time.Duration(max(0, here-crowdedAgents*runtime.NumCPU()))*100*time.Millisecond
}

// excuse is that of agents of this host. Those of other hosts cannot be looked at.
func (j *Job) excuse() session.Excuse {
	remote := make([]bool, len(j.Hosts)) // what else is known of hosts changes when agents come
	for node, h := range j.Hosts {
		remote[node] = h.remote()
	}
	return func(hello *pb.Hello) func() bool {
		if remote[hello.GetNode()] {
			return nil
		}
		return keeper.EffortOf(int(hello.GetPid())).Works
	}
}

// NewID makes a job id: 80 random bits, in letters and digits that survive host names, paths and labels.
func NewID() (string, error) {
	var raw [10]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", fmt.Errorf("making a job id: %w", err)
	}
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw[:])), nil
}

// Pretend returns n hosts that are all this machine, each with a loopback address of its own, so
// that what crosses between "nodes" really goes through sockets.
func Pretend(n int) ([]Host, error) {
	const perByte = 250 // 127.0.x.1 .. 127.0.x.250
	if n > 255*perByte {
		return nil, fmt.Errorf("%d pretended nodes on one host: at most %d loopback addresses are used", n, 255*perByte)
	}
	hosts := make([]Host, n)
	for i := range hosts {
		hosts[i] = Host{
			Name:    fmt.Sprintf("node%d", i),
			Address: fmt.Sprintf("127.0.%d.%d", i/perByte, i%perByte+1),
		}
	}
	return hosts, nil
}
