package cuda_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/plan"
)

// hostRuntime stands for the CUDA runtime where GPU memory is the host's.
const hostRuntime = `#include <stdlib.h>
#include <string.h>
typedef int cudaError_t;
enum { cudaSuccess, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
static inline const char* cudaGetErrorString(cudaError_t e) { return e ? "failed" : "fine"; }
static inline cudaError_t cudaGetDeviceCount(int* n) { *n = atoi(getenv("HOSTLIB_GPUS")); return 0; }
static inline cudaError_t cudaSetDevice(int d) { return d < 0; }
static inline cudaError_t cudaMalloc(void** p, size_t n) { *p = aligned_alloc(64, (n + 63) / 64 * 64); return *p == NULL; }
static inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, int way) { memcpy(to, from, n); return way < 0; }
static inline cudaError_t cudaDeviceSynchronize(void) { return 0; }
`

// The example in C is right for any number of ranks, also one that does not divide the rows.
func TestCExample(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cuda_runtime.h"), []byte(hostRuntime), 0o600); err != nil {
		t.Fatal(err)
	}
	const source = "../../../examples/c/ag_gemm.c"
	if _, err := os.Stat(source); err != nil { // so that go test knows that the result depends on it
		t.Fatal(err)
	}
	example := filepath.Join(dir, "ag_gemm")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-I", dir, "-I../../../cuda/include", source,
		"-o", example, hostlib, "-Wl,-rpath,"+filepath.Dir(hostlib)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, ranks := range []int{1, 2, 3} {
		p, err := plan.AGGemm(plan.Uniform(1, ranks), 1)
		if err != nil {
			t.Fatal(err)
		}
		plans := t.TempDir()
		for rank := range ranks {
			image, err := p.EncodeRank(rank)
			if err == nil {
				err = os.WriteFile(filepath.Join(plans, fmt.Sprintf("rank%d.plan", rank)), image, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), example, fmt.Sprint(ranks), plans)
		cmd.Env = append(os.Environ(), fmt.Sprint("HOSTLIB_GPUS=", ranks), "ASAN_OPTIONS=detect_leaks=0")
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Count(string(out), ": 0 of 524288 elements are wrong\n") != ranks {
			t.Errorf("%d ranks: %v\n%s", ranks, err, out)
		}
	}
}
