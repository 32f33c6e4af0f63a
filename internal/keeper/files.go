package keeper

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Files of ranks go from agent to keeper over the socket that joins them (SCM_RIGHTS): the keeper may have been
// started before they were opened.

const (
	filesAtOnce = 128             // the kernel takes up to 253 with one message
	filesLimit  = 5 * time.Second // for the keepers of a user to take what is on its way to them
)

// transmitter is the agent's writing end.
type transmitter struct {
	conn     *net.UnixConn
	attached []*os.File
}

// attach lets the next bytes that are written carry files.
func (t *transmitter) attach(files []*os.File) { t.attached = files }

func (t *transmitter) Write(b []byte) (int, error) {
	if len(t.attached) == 0 {
		return t.conn.Write(b)
	}
	fds := make([]int, 0, len(t.attached))
	for _, f := range t.attached {
		fds = append(fds, int(f.Fd()))
	}
	t.attached = nil
	rights := unix.UnixRights(fds...)
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		n, _, err := t.conn.WriteMsgUnix(b, rights, nil)
		switch {
		case errors.Is(err, unix.ETOOMANYREFS) && time.Since(begun) < filesLimit: // what all processes of the user have on its way
		case err != nil:
			return n, fmt.Errorf("pass files to the keeper: %w", err)
		case n < len(b):
			more, err := t.conn.Write(b[n:])
			return n + more, err
		default:
			return n, nil
		}
	}
}

// receiver is the keeper's reading end. It keeps the files that come with what is read.
type receiver struct {
	fd    int
	files []int
	lost  bool // some could not be taken
}

func (r *receiver) Read(b []byte) (int, error) {
	rights := make([]byte, unix.CmsgSpace(4*filesAtOnce))
	for {
		n, got, flags, _, err := unix.Recvmsg(r.fd, b, rights, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read from the agent: %w", err)
		}
		r.lost = r.lost || flags&unix.MSG_CTRUNC != 0
		if err := r.keep(rights[:got]); err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, errAgentGone
		}
		return n, nil
	}
}

var errAgentGone = errors.New("the agent is gone")

func (r *receiver) keep(rights []byte) error {
	if len(rights) == 0 {
		return nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return fmt.Errorf("take files from the agent: %w", err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fmt.Errorf("take files from the agent: %w", err)
		}
		r.files = append(r.files, fds...)
	}
	return nil
}

// take puts the numbers of files in the place of their places. Files is -1 if not all are here.
func (l *launch) take(r *receiver) {
	if r.lost || len(r.files) != l.Files {
		for _, fd := range r.files {
			_ = unix.Close(fd)
		}
		r.files, l.Files = nil, -1
	}
	number := func(place int) int {
		if place < 0 || place >= len(r.files) {
			return -1
		}
		return r.files[place]
	}
	for i := range l.Ranks {
		w := &l.Ranks[i]
		w.Stdin, w.Stdout, w.Stderr = number(w.Stdin), number(w.Stdout), number(w.Stderr)
		for _, list := range [][]int{w.Readers, w.Files} {
			for j, place := range list {
				list[j] = number(place)
			}
		}
	}
}
