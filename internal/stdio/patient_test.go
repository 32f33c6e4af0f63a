package stdio

import (
	"bytes"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A pipe that somebody else makes non-blocking after this process has opened it is written to its end.
func TestPatient(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w") // blocking, as far as the runtime knows
	defer func() { _ = r.Close() }()
	if err := unix.SetNonblock(fds[1], true); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	done := make(chan error, 1)
	go func() {
		_, err := Patient(w).Write(data)
		_ = w.Close()
		done <- err
	}()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(data))
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
