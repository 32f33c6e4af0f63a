package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/doctor"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/topology"
)

// processTable is a folder like /proc.
func processTable(t *testing.T, processes map[int]struct{ comm, environ, parent string }) string {
	t.Helper()
	dir := t.TempDir()
	for pid, p := range processes {
		own := filepath.Join(dir, strconv.Itoa(pid))
		if err := os.Mkdir(own, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"comm": p.comm + "\n", "environ": p.environ, "status": fmt.Sprintf("Name:\t%s\nPPid:\t%s\nUid:\t4294967290\t0\t0\t0\n", p.comm, p.parent),
		} {
			if err := os.WriteFile(filepath.Join(own, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// P28: a process that a job left on a GPU is named before the next job's ranks take that GPU, and so is any other.
func TestP28GPUsThatAreHeldAreNamed(t *testing.T) {
	proc := processTable(t, map[int]struct{ comm, environ, parent string }{
		10: {"python3", "HOME=/\x00MKRUN_JOB_ID=old\x00", "1"},
		20: {"python3", "MKRUN_JOB_ID=other\x00", "21"},
		21: {"sh", "MKRUN_JOB_ID=other\x00", "22"},
		22: {"rank-keeper", "", "1"},
		30: {"python3", "", "1"},
		40: {"nvidia-cuda-mps-", "", "1"},
		50: {"python3", "", "50"}, // a table that is read while it changes
	})
	node := eightGPUs()
	for gpu, pids := range map[int][]int{0: {10}, 1: {20, 30}, 2: {40}, 3: {99}, 5: {30}} {
		for _, pid := range pids {
			node.GPUs[gpu].Holders = append(node.GPUs[gpu].Holders, topology.Holder{PID: pid, Memory: uint64(gpu) << 30})
		}
	}
	node.GPUs[7].MIG[1].Holders = []topology.Holder{{PID: 50}}
	const of = " of user 4294967290"
	left := "GPU 0 is in use by process 10 (python3" + of + " left by job old, which is over): nobody waits for it any more: kill -9 10"
	const others = ": wait for its end, or take other GPUs with --gpus"
	shared := []string{
		"GPU 1 is in use by process 20 (python3" + of + " of job other), which has 1024 MiB of its memory" + others,
		"GPU 1 is in use by process 30 (python3" + of + "), which has 1024 MiB of its memory" + others,
	}
	hidden := "GPU 3 is in use by process 99 (not to be seen from here: another container's, or it is ending), which has 3072 MiB of its memory" + others
	for _, tt := range []struct {
		name, visible string
		ranks         int
		want          []string
	}{
		{"the GPUs of four ranks, in their order", "", 4, slices.Concat([]string{left}, shared, []string{hidden})},
		{"others do not matter", "", 1, []string{left}},
		{"the user's choice, by UUID", "GPU-1,4", 2, shared},
		{"one for two ranks is named once", "0", 2, []string{left}},
		{"an instance, not its neighbour", "MIG-one", 1, nil},
		{"an instance", "MIG-two", 1, []string{"MIG-two is in use by process 50 (python3" + of + ")" + others}},
		{"no GPU", "-1", 2, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			visible := slices.Repeat([]string{tt.visible}, tt.ranks)
			seats, _, err := seatRanks(node, startOf(tt.ranks, func(*pb.Start) {}), visible, make([]bool, tt.ranks))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, h := range holdersOf(node, seats, proc) {
				got = append(got, h.text()+": "+h.action())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// The same in --preflight: a warning about this very process.
func TestP28PreflightNamesHolders(t *testing.T) {
	node := eightGPUs()
	node.GPUs[1].Holders = []topology.Holder{{PID: os.Getpid()}}
	for _, tt := range []struct {
		q    checkLook
		want int
	}{
		{checkLook{Ranks: 2}, 1}, {checkLook{Ranks: 1}, 0}, {checkLook{Ranks: 1, Visible: "1"}, 1}, {checkLook{Ranks: 8, Session: true}, 1}, {checkLook{Ranks: 1, Visible: "99"}, 0},
	} {
		got := heldGPUs(node, &tt.q)
		if len(got) != tt.want {
			t.Errorf("%+v: %+v", tt.q, got)
		}
		for _, f := range got {
			if f.Code != "gpu-held" || f.Severity != doctor.Warn || !strings.Contains(f.Text, fmt.Sprint("GPU 1 is in use by process ", os.Getpid())) || f.Action == "" {
				t.Errorf("%+v", f)
			}
		}
	}
}
