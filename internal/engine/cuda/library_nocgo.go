//go:build !cgo

package cuda

import (
	"context"
	"errors"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/topology"
)

// ABI is the version of the data plane's C interface that this mkrun was built with: none.
const ABI = uint32(0)

var errNoCgo = errors.New("this mkrun was built without cgo (CGO_ENABLED=0) and has no CUDA engine: build it with CGO_ENABLED=1 and a C compiler")

// Library is the data plane library. This build cannot open it.
type Library struct{ Path string }

// OpenLibrary fails: a library can be opened through cgo only.
func OpenLibrary(string) (*Library, error) { return nil, errNoCgo }

// Devices fails.
func (*Library) Devices() ([]Device, error) { return nil, errNoCgo }

// Reaches fails.
func (*Library) Reaches(int, int) (bool, error) { return false, errNoCgo }

// UUIDs fails.
func (*Library) UUIDs() ([]string, error) { return nil, errNoCgo }

// Pair fails.
func (*Library) Pair(int, int) ([2]topology.MeasuredPath, error) {
	return [2]topology.MeasuredPath{}, errNoCgo
}

// FanOut fails.
func (*Library) FanOut([]int, []topology.MeasuredFan) ([]topology.MeasuredFan, error) {
	return nil, errNoCgo
}

// HostLink fails.
func (*Library) HostLink(int) (topology.MeasuredHost, error) {
	return topology.MeasuredHost{}, errNoCgo
}

// DeviceMemory fails.
func (*Library) DeviceMemory(engine.Config) (int64, error) { return 0, errNoCgo }

// Engine is the CUDA engine, which this build has not.
type Engine struct{}

// New fails.
func New(string) (*Engine, error) { return nil, errNoCgo }

// Name implements engine.Engine.
func (*Engine) Name() string { return "cuda" }

// Open implements engine.Engine.
func (*Engine) Open(context.Context, engine.Config) (engine.Instance, error) { return nil, errNoCgo }
