package session

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The environment variables that tell a rank the numbers of the descriptors it inherited.
const (
	EnvSessionFD = "MKRUN_SESSION_FD"
	EnvBrokerFD  = "MKRUN_BROKER_FD"
)

// RankSockets are the two socket pairs between an agent and one rank. They have no name in the file
// system: whoever inherited an end is the rank, and nobody else can be.
type RankSockets struct {
	Session, Broker         *net.UnixConn // the agent's ends
	RankSession, RankBroker *os.File      // the rank's ends, to be inherited by it and closed here
}

// NewRankSockets makes the sockets of one rank; all are close-on-exec here.
func NewRankSockets() (*RankSockets, error) {
	s := new(RankSockets)
	var err error
	if s.Session, s.RankSession, err = socketPair(unix.SOCK_STREAM, "session"); err != nil {
		return nil, err
	}
	if s.Broker, s.RankBroker, err = socketPair(unix.SOCK_SEQPACKET, "broker"); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close closes all ends that are here.
func (s *RankSockets) Close() {
	for _, c := range []*net.UnixConn{s.Session, s.Broker} {
		if c != nil {
			_ = c.Close()
		}
	}
	s.CloseRankEnds()
}

// CloseRankEnds closes the rank's ends once it has inherited them, so that its death is seen here.
func (s *RankSockets) CloseRankEnds() {
	for _, f := range []*os.File{s.RankSession, s.RankBroker} {
		if f != nil {
			_ = f.Close()
		}
	}
}

func socketPair(kind int, name string) (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a rank's %s socket: %w", name, os.NewSyscallError("socketpair", err))
	}
	conn, err := unixConn(os.NewFile(uintptr(fds[0]), name))
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	return conn, os.NewFile(uintptr(fds[1]), name), nil
}

// unixConn turns an inherited descriptor into a connection, and closes the file.
func unixConn(f *os.File) (*net.UnixConn, error) {
	defer func() { _ = f.Close() }()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("inherited descriptor %s: %w", f.Name(), err)
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("inherited descriptor %s is not a Unix socket", f.Name())
	}
	return u, nil
}

// checkPeer refuses a socket whose other end was made by another user.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("asking who is at the other end: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return fmt.Errorf("asking who is at the other end: %w", err)
	}
	if credErr != nil {
		return fmt.Errorf("asking who is at the other end: %w", os.NewSyscallError("getsockopt", credErr))
	}
	if uid := os.Getuid(); int(cred.Uid) != uid {
		return fmt.Errorf("the socket's other end belongs to user %d, not to %d", cred.Uid, uid)
	}
	return nil
}

// InheritedFiles returns the sockets that this process inherited as a rank, and makes sure that the
// processes it starts do not. It may be called once.
func InheritedFiles() (session, broker *os.File, err error) {
	open := func(env string) (*os.File, error) {
		text, ok := os.LookupEnv(env)
		if !ok {
			return nil, fmt.Errorf("%s is not set: this program must be started by mkrun launch as a rank with a session", env)
		}
		fd, err := strconv.Atoi(text)
		if err != nil || fd <= 2 {
			return nil, fmt.Errorf("%s=%q is not the number of an inherited descriptor", env, text)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return nil, fmt.Errorf("%s=%d: %w (was the program started through something that closes descriptors?)", env, fd, err)
		}
		if err := os.Unsetenv(env); err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), env), nil
	}
	if session, err = open(EnvSessionFD); err != nil {
		return nil, nil, err
	}
	if broker, err = open(EnvBrokerFD); err != nil {
		_ = session.Close()
		return nil, nil, err
	}
	return session, broker, nil
}
