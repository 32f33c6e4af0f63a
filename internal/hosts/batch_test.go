package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func FuzzFromSlurm(f *testing.F) {
	f.Add("n[1-4]", "2(x3),1")
	f.Fuzz(func(t *testing.T, nodes, tasks string) {
		list, err := FromSlurm(nodes, tasks)
		if err != nil {
			return
		}
		for _, h := range list {
			if tasks != "" && h.Slots < 1 && !strings.Contains(nodes, ":") {
				t.Fatalf("%v has no slots", h)
			}
		}
	})
}

func TestBatchSystems(t *testing.T) {
	list, err := FromSlurm("n[01-03],gpu7", "2(x3),1")
	want := []Host{host("", "n01", 2), host("", "n02", 2), host("", "n03", 2), host("", "gpu7", 1)}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, list, ignorePlace); diff != "" {
		t.Error(diff)
	}
	for _, tasks := range []string{"2", "2(x5)", "2(x", "2(x3)", "0(x4)", "(x4)", "2(x0),1", "2(x3),1,1"} {
		if list, err := FromSlurm("n[01-03],gpu7", tasks); err == nil {
			t.Errorf("%s was accepted as %v", tasks, list)
		}
	}
	list, err = FromNodeFile("PBS_NODEFILE", []byte("a\na\nb.x\r\nA\n\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Host{host("", "a", 3), host("", "b.x", 1)}, list, ignorePlace); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"", "\n\n", "a\n-x\n", "a b\n"} {
		if list, err := FromNodeFile("PBS_NODEFILE", []byte(text)); err == nil {
			t.Errorf("%q was accepted as %v", text, list)
		}
	}
}

func TestFromBatch(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nodes")
	if err := os.WriteFile(file, []byte("a\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	step := func(nodes, tasks, number string) map[string]string { // as in salloc -N2 -n4 srun ...
		return map[string]string{"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": tasks, "SLURM_STEP_NODELIST": nodes, "SLURM_STEP_NUM_TASKS": number}
	}
	for _, tt := range []struct {
		env     map[string]string
		counted bool
		want    string
	}{
		{env: step("n1", "1", "1"), want: "error: give --ppn or -n"},
		{env: step("n1", "1", "1"), counted: true, want: "n1 n2"},
		{env: step("n1", "2(x2)", "1"), want: "n1:2 n2:2"}, // an interactive step
		{env: step("n[1-2]", "2(x2)", "4"), want: "error: this is one of 4 processes that srun started"},
		{env: step("n1", "2", "2"), counted: true, want: "error: this is one of 2 processes that srun started"},
		{env: map[string]string{"SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "1"}, want: "n1:1"},
		{env: map[string]string{"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1"}, want: "error: speaks of 1 hosts"},
		{env: map[string]string{"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "3(x2)"}, want: "n1:3 n2:3"},
		{env: map[string]string{"SLURM_JOB_NODELIST": "n1"}, want: "n1"},
		{env: map[string]string{"PBS_NODEFILE": file}, want: "a:2"},
		{env: map[string]string{"LSB_DJOB_HOSTFILE": file}, want: "a:2"},
		{env: map[string]string{}, want: "error"},
		{env: map[string]string{"PBS_NODEFILE": file + "x"}, want: "error"},
	} {
		list, err := FromBatch(func(name string) (string, bool) { v, ok := tt.env[name]; return v, ok }, tt.counted)
		var words []string
		for _, h := range list {
			words = append(words, h.String())
		}
		word, fails := strings.CutPrefix(tt.want, "error")
		word = strings.TrimPrefix(word, ": ")
		if got := strings.Join(words, " "); (err != nil) != fails || err == nil && got != tt.want || err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("%v: %s, %v; want %s", tt.env, got, err, tt.want)
		}
	}
}
