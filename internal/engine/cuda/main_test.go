package cuda_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/mkrun/mkrun/internal/engine/cuda/cudatest"
	"github.com/mkrun/mkrun/internal/leaktest"
)

// hostlib is the data plane on host memory.
var hostlib string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mkrun-cuda-")
	if err == nil {
		hostlib, err = cudatest.Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	if code == 0 {
		if err := leaktest.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
