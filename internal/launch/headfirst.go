package launch

import (
	"bufio"
	"context"
	"io"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// Where hosts cannot connect to the launcher (it is behind NAT, or they behind a jump host), the head runs on the first
// host. Launcher and head speak over ssh's stdin and stdout, in messages with their length before them.

// HeadCommand is the hidden subcommand of mkrun whose body is Head.
const HeadCommand = "head"

const (
	headBeat    = session.DefaultHeartbeat       // how often launcher and head say that they are there
	headSilence = session.DefaultSilence * 3 / 2 // after which the other one is gone: as an agent bears its parent's
	maxHeadWord = 128 << 20                      // bytes of one message: a job with its environment, or all reports
)

// headOrder is what the head is told.
type headOrder struct {
	Job      *Job             `json:"job"`
	Argv     []text           `json:"argv"` // the job's, byte for byte; so are the next three
	Env      []text           `json:"env"`
	Dir      text             `json:"dir"`
	Output   text             `json:"output"`
	Users    []string         `json:"users"` // to log in as, by node; "": whoever ssh takes
	Verbose  bool             `json:"verbose"`
	Events   bool             `json:"events"`   // are wanted
	Progress bool             `json:"progress"` // is shown
	Elapsed  time.Duration    `json:"elapsed"`  // since the command was given
	Forward  []syscall.Signal `json:"forward"`
}

// headOutcome is how the job ended there.
type headOutcome struct {
	Outcome *Outcome `json:"outcome"`
	Error   string   `json:"error"` // of a head that could not begin
}

// headPipe is one side's end of the way between launcher and head.
type headPipe struct {
	mu sync.Mutex
	w  io.Writer
	r  *bufio.Reader
}

func (p *headPipe) sendTo(m *pb.ToHead) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := protodelim.MarshalTo(p.w, m)
	return err
}

func (p *headPipe) sendFrom(m *pb.FromHead) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := protodelim.MarshalTo(p.w, m)
	return err
}

// beat says now and then that this side is there, until ctx is done.
func beat(ctx context.Context, say func() error) {
	ticker := time.NewTicker(headBeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if say() != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
