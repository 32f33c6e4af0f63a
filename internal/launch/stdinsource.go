package launch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
)

// Stdin says which ranks read what mkrun launch reads: none by default, when its input stays for whoever comes next.
type Stdin struct {
	All  bool
	One  bool
	Rank int // if One; as the user counts them
}

// ParseStdin reads the value of --stdin for a job of some size.
func ParseStdin(s string, ranks int) (Stdin, error) {
	switch s {
	case "none":
		return Stdin{}, nil
	case "all":
		return Stdin{All: true}, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return Stdin{}, fmt.Errorf("--stdin %s: give none, all or the number of a rank", s)
	}
	if n >= ranks {
		return Stdin{}, fmt.Errorf("--stdin %s: there is no rank %d, only 0 to %d", s, n, ranks-1)
	}
	return Stdin{One: true, Rank: n}, nil
}

// reads reports whether a rank, by the user's number, reads the input.
func (s Stdin) reads(number int) bool { return s.All || s.One && s.Rank == number }

// stdinSource reads the launcher's input and sends it to the nodes whose ranks read it, no faster than the slowest of
// them takes it. It never reads what it could not send, nor a terminal that another job of the shell's has.
type stdinSource struct {
	send   func(node int, m *pb.ToAgent) error
	notice func(text string)
	from   *os.File
	stop   *os.File // closing it ends the wait for input
	waker  *os.File
	done   chan struct{}
	failed chan error
	warned bool // that nothing is read; only run knows it

	mu      sync.Mutex
	changed *sync.Cond
	sent    uint64
	taken   map[int]uint64 // by node that still reads
	ended   bool
}

// startStdin begins to read for the ranks on some nodes. Notices may come at any time.
func startStdin(from *os.File, nodes []int, notice func(text string), send func(node int, m *pb.ToAgent) error) (*stdinSource, error) {
	stop, waker, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	s := &stdinSource{send: send, notice: notice, from: from, stop: stop, waker: waker, taken: map[int]uint64{}, done: make(chan struct{}), failed: make(chan error, 1)}
	s.changed = sync.NewCond(&s.mu)
	for _, node := range nodes {
		s.taken[node] = 0
	}
	go s.run()
	return s, nil
}

// acknowledge notes how far the readers of a node have come.
func (s *stdinSource) acknowledge(node int, t *pb.StdinTaken) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, reading := s.taken[node]; reading {
		s.taken[node] = t.GetBytes()
		if t.GetClosed() {
			delete(s.taken, node)
		}
	}
	s.changed.Broadcast()
}

// failures gets the error that ended the reading, if one did.
func (s *stdinSource) failures() <-chan error {
	if s == nil {
		return nil
	}
	return s.failed
}

// close stops reading.
func (s *stdinSource) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.ended = true
	s.changed.Broadcast()
	s.mu.Unlock()
	_ = s.waker.Close()
	<-s.done
	_ = s.stop.Close()
}

func (s *stdinSource) run() {
	defer close(s.done)
	buf := make([]byte, stdinFrame)
	for {
		room := s.room()
		if room == 0 {
			return
		}
		n, err := s.read(buf[:min(room, len(buf))])
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			s.failed <- fmt.Errorf("reading the input for the ranks: %w", err)
			return
		}
		s.pass(append([]byte(nil), buf[:n]...), n == 0)
		if n == 0 {
			return
		}
	}
}

// room waits until every node that still reads can take something, and is how much; 0 when nobody reads any more.
func (s *stdinSource) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.ended || len(s.taken) == 0 {
			return 0
		}
		room := uint64(stdinWindow)
		for _, taken := range s.taken {
			room = min(room, stdinWindow-(s.sent-taken))
		}
		if room > 0 {
			return int(room)
		}
		s.changed.Wait()
	}
}

// read reads once there is something; 0 is the end. It fails with os.ErrClosed after close.
func (s *stdinSource) read(buf []byte) (int, error) {
	stop := []unix.PollFd{{Fd: int32(s.stop.Fd()), Events: unix.POLLIN}}
	wait := append(stop, unix.PollFd{Fd: int32(s.from.Fd()), Events: unix.POLLIN})
	for {
		watch, long := wait, -1
		if stdio.InBackground(s.from) {
			if !s.warned {
				s.warned = true
				s.notice("the input for the ranks (--stdin) is the terminal, and mkrun is in the background: nothing is read until it is in the foreground (fg); files and pipes are read at any time")
			}
			watch, long = stop, int(foregroundEvery.Milliseconds()) // what is typed is for somebody else
		}
		n, err := unix.Poll(watch, long)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case watch[0].Revents != 0:
			return 0, os.ErrClosed
		case n == 0 || len(watch) == 1 || stdio.InBackground(s.from):
			continue
		}
		n, err = readUnstopped(int(s.from.Fd()), buf)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EIO) && stdio.InBackground(s.from): // since a moment ago
			continue
		}
		return n, err
	}
}

// foregroundEvery is how often is looked whether the shell has given the terminal back: nothing tells a job that runs.
const foregroundEvery = 200 * time.Millisecond

// readUnstopped reads; from a terminal that another job has it fails with EIO, and the process is not stopped.
func readUnstopped(fd int, buf []byte) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, was unix.Sigset_t
	block.Val[0] = 1 << (unix.SIGTTIN - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &was); err != nil {
		return 0, err
	}
	n, err := unix.Read(fd, buf)
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil)
	return n, err
}

func (s *stdinSource) pass(data []byte, end bool) {
	s.mu.Lock()
	s.sent += uint64(len(data))
	nodes := make([]int, 0, len(s.taken))
	for node := range s.taken {
		nodes = append(nodes, node)
	}
	s.mu.Unlock()
	for _, node := range nodes {
		// A node that is lost is an event of its own.
		_ = s.send(node, &pb.ToAgent{Kind: &pb.ToAgent_Stdin{Stdin: &pb.Stdin{Data: data, End: end}}})
	}
}
