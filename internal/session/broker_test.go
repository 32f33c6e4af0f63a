package session

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// brokerPair is a broker that serves rank 0 of ranks 0 and 1, and rank 0's raw end of the socket.
func brokerPair(t testing.TB) (b *fdBroker, raw *os.File, served chan error) {
	t.Helper()
	conn, raw, err := socketPair(unix.SOCK_SEQPACKET, "broker")
	if err != nil {
		t.Fatal(err)
	}
	b = newFDBroker()
	b.setRanks(0, 2)
	served = make(chan error, 1)
	go func() {
		served <- b.serve(0, conn)
		_ = conn.Close()
	}()
	return b, raw, served
}

func rawSend(t testing.TB, raw *os.File, data []byte, files int) {
	t.Helper()
	null, err := os.Open("/dev/null") // not the socket itself: a queued copy would keep it open
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var fds []int
	for range files {
		fds = append(fds, int(null.Fd()))
	}
	var oob []byte
	if files > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(int(raw.Fd()), data, oob, nil, unix.MSG_NOSIGNAL); err != nil && err != unix.EPIPE {
		t.Fatal(err)
	}
}

func TestBrokerRejectsMalformed(t *testing.T) {
	request := func(op byte, name string) []byte {
		return appendBrokerMessage(nil, brokerMessage{op: op, text: name})
	}
	for _, test := range []struct {
		name  string
		data  []byte
		files int
		want  string
	}{
		{"short", []byte{1, 2}, 0, "shorter than its header"},
		{"unknown", request(77, "x"), 0, "unknown operation"},
		{"reply", request(opReply, ""), 0, "a reply where a request belongs"},
		{"no name", request(opWant, ""), 0, "0 bytes"},
		{"long name", request(opWant, strings.Repeat("x", maxFileName+1)), 0, "129 bytes"},
		{"too long", request(opWant, strings.Repeat("x", 100_000)), 0, "too long"},
		{"share without a file", request(opShare, "x"), 0, "came with 0 descriptors"},
		{"want with a file", request(opWant, "x"), 1, "came with 1 descriptors"},
		{"two files", request(opShare, "x"), 2, "came with 2 descriptors"},
		{"many files", request(opShare, "x"), 100, "too many descriptors"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := openFiles(t)
			_, raw, served := brokerPair(t)
			rawSend(t, raw, test.data, test.files)
			if err := <-served; err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			_ = raw.Close()
			for openFiles(t) > before { // the server closes its end after its word
				if t.Context().Err() != nil {
					t.Fatal("a descriptor leaked")
				}
			}
		})
	}
}

// A rank that asks and never reads is cut off; the broker does not wait for it.
func TestBrokerCutsOffWhoDoesNotRead(t *testing.T) {
	_, raw, served := brokerPair(t)
	defer raw.Close()
	ask := appendBrokerMessage(nil, brokerMessage{op: opWant, rank: 55, text: "of another node"})
	for range 100_000 {
		if err := unix.Sendmsg(int(raw.Fd()), ask, nil, nil, unix.MSG_NOSIGNAL); err != nil {
			break
		}
	}
	if err := <-served; err == nil || !strings.Contains(err.Error(), "does not read the answers") {
		t.Errorf("got %v", err)
	}
}

func TestBrokerLimits(t *testing.T) {
	b, raw, served := brokerPair(t)
	client, err := unixConn(raw)
	if err != nil {
		t.Fatal(err)
	}
	c := newBrokerClient(client)
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range maxFilesPerRank {
		if err := c.share(t.Context(), fmt.Sprint(i), f); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.share(t.Context(), "one more", f); err == nil || !strings.Contains(err.Error(), "the most a rank may") {
		t.Errorf("got %v", err)
	}
	refused := make(chan error, maxWantsPerRank+1)
	for i := range maxWantsPerRank + 1 {
		go func() { _, err := c.want(t.Context(), 1, fmt.Sprint(i)); refused <- err }()
	}
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "already waits for 128 files") {
		t.Errorf("got %v", err)
	}
	b.close(io.ErrUnexpectedEOF)
	for range maxWantsPerRank {
		if err := <-refused; err == nil || err.Error() != io.ErrUnexpectedEOF.Error() {
			t.Errorf("got %v", err)
		}
	}
	c.close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// FuzzBroker throws datagrams at a live broker: it may refuse, it may not crash, hang or keep descriptors.
func FuzzBroker(f *testing.F) {
	f.Add(appendBrokerMessage(nil, brokerMessage{op: opShare, text: "x"}), uint8(1))
	f.Add(appendBrokerMessage(nil, brokerMessage{op: opWant, rank: 1, text: "x"}), uint8(0))
	f.Add(appendBrokerMessage(nil, brokerMessage{op: opReply}), uint8(3))
	f.Add([]byte{}, uint8(2))
	f.Add(bytes.Repeat([]byte{1}, 500), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, files uint8) {
		before := openFiles(t)
		b, raw, served := brokerPair(t)
		rawSend(t, raw, data, int(files)%5)
		rawSend(t, raw, data, int(files)%5)
		_ = raw.Close()
		if err := <-served; err != nil {
			t.Log(err) // a refusal, as most of this deserves
		}
		b.close(io.EOF)
		for openFiles(t) > before {
			if t.Context().Err() != nil {
				t.Fatal("a descriptor leaked")
			}
		}
	})
}

// FuzzBrokerMessage checks that what is parsed is what was written.
func FuzzBrokerMessage(f *testing.F) {
	f.Add(appendBrokerMessage(nil, brokerMessage{op: opWant, id: 7, rank: -1, text: "heap"}), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, files uint8) {
		m, err := parseBrokerMessage(data, int(files))
		if err == nil && !bytes.Equal(appendBrokerMessage(nil, m), data) {
			t.Errorf("%x was read as %+v", data, m)
		}
	})
}
