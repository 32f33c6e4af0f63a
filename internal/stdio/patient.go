package stdio

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Patient returns a writer to a file that waits where the file takes nothing now. Whoever shares a terminal or pipe with this
// process (ssh does it) can make it one that never waits; then a write that finds it full fails with EAGAIN, which is no
// reason to give up. Other writers are returned as they are.
func Patient(w io.Writer) io.Writer {
	if file, ok := w.(*os.File); ok {
		return patient{file}
	}
	return w
}

type patient struct{ file *os.File }

func (p patient) Write(b []byte) (int, error) {
	written := 0
	for {
		n, err := p.file.Write(b[written:])
		written += n
		if !errors.Is(err, unix.EAGAIN) {
			return written, err
		}
		if err := p.wait(); err != nil {
			return written, err
		}
	}
}

// wait returns when the file takes something, or never will.
func (p patient) wait() error {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var pollErr error
	err = conn.Control(func(fd uintptr) {
		for {
			_, pollErr = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
			if !errors.Is(pollErr, unix.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, pollErr)
}
