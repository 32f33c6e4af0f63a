package launch

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// link makes a program that needs a library of some name.
func link(t *testing.T, dir, library string) string {
	t.Helper()
	for name, text := range map[string]string{"lib.c": "int f(void) { return 0; }", "main.c": "int f(void); int main(void) { return f(); }"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	so, program := filepath.Join(dir, library), filepath.Join(dir, "needs-"+library)
	for _, args := range [][]string{
		{"-shared", "-Wl,-soname," + library, "-o", so, filepath.Join(dir, "lib.c")},
		{"-Wl,--no-as-needed", "-o", program, filepath.Join(dir, "main.c"), so},
	} {
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc %v: %v\n%s", args, err, out)
		}
	}
	return program
}

func TestOpenMPIProgramsAreRefused(t *testing.T) {
	dir := t.TempDir()
	open, mpich := link(t, dir, "libmpi.so.40"), link(t, dir, "libmpi.so.12")
	spec := func(pmi bool, argv0 string) []*pb.RankSpec {
		return []*pb.RankSpec{{Argv: [][]byte{[]byte(argv0)}, Dir: []byte(dir), Env: [][]byte{[]byte("PATH=/nowhere:" + dir)}, Pmi: pmi}}
	}
	for _, name := range []string{open, filepath.Base(open), "./" + filepath.Base(open)} {
		err := refuseOpenMPI(spec(true, name))
		if err == nil || !strings.Contains(err.Error(), open) || !strings.Contains(err.Error(), "PMIx") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, ranks := range [][]*pb.RankSpec{spec(false, open), spec(true, mpich), spec(true, "not-there"), spec(true, "./lib.c")} {
		if err := refuseOpenMPI(ranks); err != nil {
			t.Errorf("%v: %v", ranks, err)
		}
	}
}
