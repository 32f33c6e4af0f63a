package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// The messages by which file descriptors travel between a rank and its agent, one per datagram of a
// SOCK_SEQPACKET socket:
//
//	op(1) id(4) rank(4) text        integers little-endian
//
// opShare (rank -> agent): text names the one descriptor that comes along.
// opWant  (rank -> agent): the descriptor that `rank` shared under the name is wanted.
// opReply (agent -> rank): the answer to request id; with text, why it failed; for a want, the descriptor.
const (
	opShare byte = 1 + iota
	opWant
	opReply
)

const (
	brokerHeader = 9
	maxFileName  = 128
	maxBrokerErr = 256
)

type brokerMessage struct {
	op   byte
	id   uint32
	rank int32
	text string
	file *os.File // owned by whoever holds the message
}

func (m *brokerMessage) closeFile() {
	if m.file != nil {
		_ = m.file.Close()
		m.file = nil
	}
}

func appendBrokerMessage(b []byte, m brokerMessage) []byte {
	b = append(b, m.op)
	b = binary.LittleEndian.AppendUint32(b, m.id)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.rank))
	return append(b, m.text...)
}

// parseBrokerMessage reads one datagram; files is the number of descriptors that came along.
func parseBrokerMessage(b []byte, files int) (brokerMessage, error) {
	if len(b) < brokerHeader {
		return brokerMessage{}, fmt.Errorf("a message of %d bytes is shorter than its header", len(b))
	}
	m := brokerMessage{
		op:   b[0],
		id:   binary.LittleEndian.Uint32(b[1:]),
		rank: int32(binary.LittleEndian.Uint32(b[5:])),
		text: string(b[brokerHeader:]),
	}
	switch m.op {
	case opShare, opWant:
		if err := checkFileName(m.text); err != nil {
			return brokerMessage{}, err
		}
		want := 0
		if m.op == opShare {
			want = 1
		}
		if files != want {
			return brokerMessage{}, fmt.Errorf("a request with operation %d came with %d descriptors; expected %d", m.op, files, want)
		}
	case opReply:
		if len(m.text) > maxBrokerErr || files > 1 || (files == 1 && m.text != "") {
			return brokerMessage{}, fmt.Errorf("a reply with %d descriptors and %d bytes of text", files, len(m.text))
		}
	default:
		return brokerMessage{}, fmt.Errorf("unknown operation %d", m.op)
	}
	return m, nil
}

func checkFileName(name string) error {
	if name == "" || len(name) > maxFileName {
		return fmt.Errorf("the name of a shared file has %d bytes; it must have 1 to %d", len(name), maxFileName)
	}
	return nil
}

// readBroker receives one message; io.EOF is wrapped in the error at the end of the connection, and for
// an empty message. Descriptors that come with a message that is no good are closed.
func readBroker(conn *net.UnixConn) (brokerMessage, error) {
	// One byte and room for one descriptor more than is allowed, so that too much is seen as such.
	var buf [brokerHeader + max(maxFileName, maxBrokerErr) + 1]byte
	oob := make([]byte, unix.CmsgSpace(2*4))
	n, oobn, flags, _, readErr := conn.ReadMsgUnix(buf[:], oob) // sets MSG_CMSG_CLOEXEC
	files, err := receivedFiles(oob[:oobn])                     // an empty message, too, may bring some
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	switch {
	case readErr != nil:
		return brokerMessage{}, readErr
	case err != nil:
		return brokerMessage{}, err
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return brokerMessage{}, errors.New("a message is too long, or carries too many descriptors")
	}
	m, err := parseBrokerMessage(buf[:n], len(files))
	if err != nil {
		return brokerMessage{}, err
	}
	if len(files) == 1 {
		m.file, files = files[0], nil
	}
	return m, nil
}

// receivedFiles takes ownership of every descriptor in a control message, whatever else is wrong.
func receivedFiles(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("reading a control message: %w", err)
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, fmt.Errorf("a control message that passes no descriptors: %w", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "shared"))
		}
	}
	return files, nil
}

// writeBroker sends one message with its file, which stays open here. With wait it waits for room in
// the socket; without, a full socket is an error.
func writeBroker(conn *net.UnixConn, m brokerMessage, wait bool) error {
	to, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	data := appendBrokerMessage(nil, m)
	send := func(oob []byte) error {
		var sendErr error
		err := to.Write(func(fd uintptr) bool {
			sendErr = unix.Sendmsg(int(fd), data, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			return !(wait && sendErr == unix.EAGAIN)
		})
		if err == nil && sendErr != nil {
			err = os.NewSyscallError("sendmsg", sendErr)
		}
		return err
	}
	if m.file == nil {
		return send(nil)
	}
	from, err := m.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("sharing %s: %w", m.file.Name(), err)
	}
	var sendErr error
	if err := from.Control(func(fd uintptr) { sendErr = send(unix.UnixRights(int(fd))) }); err != nil {
		return fmt.Errorf("sharing %s: %w", m.file.Name(), err)
	}
	return sendErr
}
