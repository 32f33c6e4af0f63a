//go:build !cgo

package mknet

import (
	"errors"
	"os"
	"time"
)

var errNoCgo = errors.New("this mkrun was built without cgo (CGO_ENABLED=0) and cannot open " + Library)

// Net is a rank's network, which this build has not.
type Net struct{}

// Usable fails.
func Usable(Options) (string, error) { return "", errNoCgo }

// Open fails.
func Open(Options) (*Net, error) { return nil, errNoCgo }

// Register fails.
func (*Net) Register([]byte, *os.File) (uint8, error) { return 0, errNoCgo }

// Endpoint fails.
func (*Net) Endpoint(int) ([]byte, error) { return nil, errNoCgo }

// Connect fails.
func (*Net) Connect(int, []byte, []byte) error { return errNoCgo }

// Start fails.
func (*Net) Start() error { return errNoCgo }

// Verify fails.
func (*Net) Verify(time.Duration) error { return errNoCgo }

// Push fails.
func (*Net) Push(Command, time.Time) (uint64, error) { return 0, errNoCgo }

// Flush fails.
func (*Net) Flush(int, uint64, time.Time) error { return errNoCgo }

// Drain fails.
func (*Net) Drain(time.Duration) error { return errNoCgo }

// Abort does nothing.
func (*Net) Abort(string) {}

// Status fails.
func (*Net) Status(time.Duration) error { return errNoCgo }

// Describe says nothing.
func (*Net) Describe() string { return "" }

// Close does nothing.
func (*Net) Close() error { return nil }
