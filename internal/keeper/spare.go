package keeper

import (
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Spare is a keeper process that waits for its ranks. It is there before they are known, so that their start need not
// wait for a process to come up.
type Spare struct {
	cmd     *exec.Cmd
	control *net.UnixConn
	wire    *transmitter
	sender  *gob.Encoder
	decoder *gob.Decoder
	ready   chan struct{} // closed when the keeper waits for its ranks, or is gone
}

// keepers are the live keepers of this process: what is below them is not for a sweep after another
// keeper's death. Held while a keeper is started and during a sweep, so that neither sees half of the other.
var keepers = struct {
	sync.Mutex
	pids map[int]bool
}{pids: map[int]bool{}}

// Prepare starts a keeper, by the path of the mkrun binary, and makes the calling process a subreaper. Start takes it
// over; else Close ends it.
func Prepare(self string) (*Spare, error) {
	if err := BecomeSubreaper(); err != nil {
		return nil, err
	}
	s := &Spare{ready: make(chan struct{})}
	if err := s.launch(self); err != nil {
		return nil, fmt.Errorf("start the keeper %s: %w", self, err)
	}
	s.wire = &transmitter{conn: s.control}
	s.sender, s.decoder = gob.NewEncoder(s.wire), gob.NewDecoder(s.control)
	_ = s.sender.Encode(command{Kind: cmdReady}) // into an empty socket; a keeper that is gone is seen when it is needed
	go func() {
		defer close(s.ready)
		var r report
		_ = s.decoder.Decode(&r) // an error comes again
	}()
	return s, nil
}

func (s *Spare) launch(self string) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	defer closeAll([]*os.File{ours, theirs})
	conn, err := net.FileConn(ours)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	s.control = conn.(*net.UnixConn)
	s.cmd = &exec.Cmd{
		Path:       self,
		Args:       []string{ProcessName, CommandName},
		Stderr:     os.Stderr,
		ExtraFiles: []*os.File{theirs},
		// A session of its own: see the package comment. It also keeps the terminal's signals away from ranks. A keeper that
		// somebody stopped goes on when its agent is gone, since nobody else is left to end the ranks; to any other SIGCONT
		// means nothing.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGCONT},
	}
	keepers.Lock()
	defer keepers.Unlock()
	if err := s.cmd.Start(); err != nil {
		_ = s.control.Close()
		return err
	}
	keepers.pids[s.cmd.Process.Pid] = true
	return nil
}

// Close ends a keeper that got no ranks. A nil one has none to end.
func (s *Spare) Close() {
	if s == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it has nothing to lose, and may have been stopped
	_ = s.end()
	<-s.ready
}

// end lets go of the keeper and waits for its end.
func (s *Spare) end() error {
	_ = s.control.Close()
	err := s.cmd.Wait()
	keepers.Lock()
	delete(keepers.pids, s.cmd.Process.Pid)
	keepers.Unlock()
	return err
}

// alive reports whether the keeper has not closed its end.
func (s *Spare) alive() bool {
	raw, err := s.control.SyscallConn()
	if err != nil {
		return false
	}
	alive := true
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		alive = n > 0 || errors.Is(err, unix.EAGAIN)
	})
	return err == nil && alive
}

// orPrepare returns the spare keeper, or another one if there is none or it was killed while it waited.
func (s *Spare) orPrepare(self string) (*Spare, error) {
	if s != nil {
		if s.alive() {
			return s, nil
		}
		s.Close()
	}
	return Prepare(self)
}
