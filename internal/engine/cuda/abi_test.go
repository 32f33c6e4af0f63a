package cuda_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// layoutScript prints what scripts/gpu/mkernel.py takes the structs of the C interface for, and, with an argument, a C
// program that prints the same from the header.
const layoutScript = `
import ctypes, sys
sys.path.insert(0, "../../../scripts/gpu")
import mkernel
pairs = {"mk_context_desc": "ContextDesc", "mk_ag_gemm_desc": "AgGemmDesc", "mk_ag_gemm_args": "Args",
         "mk_ag_gemm_config": "Config", "mk_ag_gemm_waits": "Waits", "mk_error": "Error"}
if len(sys.argv) > 1:
    print('#include <stddef.h>\n#include <stdio.h>\n#include "mkernel.h"\nint main(void) {\nprintf("version %u\\n", MK_VERSION);')
else:
    print("version", mkernel.VERSION)
for c, py in pairs.items():
    struct = getattr(mkernel, py)
    for name, *_ in struct._fields_:
        field = getattr(struct, name)
        if len(sys.argv) > 1:
            print(f'printf("{c}.{name} %zu %zu\\n", offsetof({c}, {name}), sizeof ((({c}*)0)->{name}));')
        else:
            print(f"{c}.{name}", field.offset, field.size)
    print(f'printf("{c} %zu\\n", sizeof({c}));' if len(sys.argv) > 1 else f"{c} {ctypes.sizeof(struct)}")
if len(sys.argv) > 1:
    print("return 0; }")
`

// mkrun is compiled with the header itself, so its structs cannot differ from it. Python's are written by hand.
func TestPythonHasTheLayoutOfTheHeader(t *testing.T) {
	output := func(name string, stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	for _, read := range []string{"../../../scripts/gpu/mkernel.py", "../../../cuda/include/mkernel.h"} { // by others: so that a change is seen
		if _, err := os.ReadFile(read); err != nil {
			t.Fatal(err)
		}
	}
	python := output("python3", "", "-B", "-c", layoutScript)
	source := output("python3", "", "-B", "-c", layoutScript, "c")
	binary := filepath.Join(t.TempDir(), "layout")
	output("gcc", source, "-x", "c", "-I../../../cuda/include", "-", "-o", binary)
	header := output(binary, "")
	p, h := strings.Split(python, "\n"), strings.Split(header, "\n")
	if len(h) < 40 || len(p) != len(h) {
		t.Fatalf("%d lines from Python, %d from the header", len(p), len(h))
	}
	for i := range h {
		if p[i] != h[i] {
			t.Errorf("Python: %s; the header: %s (field, offset, size)", p[i], h[i])
		}
	}
}
