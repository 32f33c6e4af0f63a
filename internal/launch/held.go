package launch

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/internal/doctor"
	"github.com/mkrun/mkrun/internal/keeper"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/topology"
)

// visibleDevices is the variable in which CUDA is told which GPUs a process may use.
const visibleDevices = "CUDA_VISIBLE_DEVICES"

// heldGPUs finds, before ranks are started, which of the GPUs that they will take are in use.
func heldGPUs(node *topology.Node, q *checkLook) []doctor.Finding {
	visible, sessions := make([]string, q.Ranks), make([]bool, q.Ranks)
	start := &pb.Start{Bind: BindNone}
	for i := range q.Ranks {
		visible[i], sessions[i] = q.Visible, q.Session
		start.Ranks = append(start.Ranks, &pb.RankSpec{LocalRank: int32(i)})
	}
	seats, _, err := seatRanks(node, start, visible, sessions)
	if err != nil {
		return nil // the ranks' start tells
	}
	var findings []doctor.Finding
	for _, h := range holdersOf(node, seats, procFiles) {
		findings = append(findings, doctor.Finding{Code: "gpu-held", Severity: doctor.Warn, Text: h.text(), Action: h.action()})
	}
	return findings
}

// heldGPU is a GPU that a rank will take and that a process holds.
type heldGPU struct {
	gpu    string // for people
	memory uint64
	holder holder
}

// text says who holds what.
func (h heldGPU) text() string {
	text := fmt.Sprintf("%s is in use by process %d (%s)", h.gpu, h.holder.pid, h.holder.what)
	if h.memory > 0 {
		text += fmt.Sprintf(", which has %d MiB of its memory", h.memory>>20)
	}
	return text
}

// action says what to do about it.
func (h heldGPU) action() string {
	if h.holder.left {
		return fmt.Sprintf("nobody waits for it any more: kill -9 %d", h.holder.pid)
	}
	return "wait for its end, or take other GPUs with --gpus"
}

// holdersOf finds what holds the GPUs of ranks.
func holdersOf(node *topology.Node, seats []seat, proc string) []heldGPU {
	var held []heldGPU
	seen := map[string]bool{}
	for _, s := range seats {
		if s.gpu == "" || seen[s.gpu] {
			continue
		}
		seen[s.gpu] = true
		name, holders := holdersNamed(node, s.gpu)
		for _, h := range holders {
			who := lookAt(proc, h.PID)
			if !who.server {
				held = append(held, heldGPU{name, h.Memory, who})
			}
		}
	}
	return held
}

// holdersNamed are those of the GPU, or the instance of one, that CUDA knows by a name.
func holdersNamed(node *topology.Node, name string) (string, []topology.Holder) {
	for _, g := range node.GPUs {
		if g.UUID == name || strconv.Itoa(g.Index) == name {
			return fmt.Sprintf("GPU %d", g.Index), g.Holders
		}
		for _, m := range g.MIG {
			if m.UUID == name {
				return name, m.Holders
			}
		}
	}
	return "", nil
}

// holder is a process as this host's process table tells of it.
type holder struct {
	pid    int
	what   string
	left   bool // a job of mkrun's started it that is over
	server bool // it is there for all processes of the GPU
}

const (
	procFiles = "/proc"
	// mpsServer begins the name of CUDA's multi-process service, which holds a GPU for those who share it.
	mpsServer = "nvidia-cuda-mps"
)

func lookAt(proc string, pid int) holder {
	h := holder{pid: pid}
	dir := filepath.Join(proc, strconv.Itoa(pid))
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		h.what = "not to be seen from here: another container's, or it is ending"
		return h
	}
	name := strings.TrimSpace(string(comm))
	h.server = strings.HasPrefix(name, mpsServer)
	words := []string{name}
	if owner := ownerOf(dir); owner != "" {
		words = append(words, "of "+owner)
	}
	environ, _ := os.ReadFile(filepath.Join(dir, "environ")) // other users' are closed
	if job := lookupEnv(strings.Split(string(environ), "\x00"), "MKRUN_JOB_ID"); job != "" {
		if h.left = !kept(proc, pid); h.left {
			words = append(words, "left by job "+job+", which is over")
		} else {
			words = append(words, "of job "+job)
		}
	}
	h.what = strings.Join(words, " ")
	return h
}

// kept reports whether a process has a keeper above it, which ends it with its job.
func kept(proc string, pid int) bool {
	var seen []int
	for ; pid > 1 && !slices.Contains(seen, pid); pid = parentOf(proc, pid) {
		seen = append(seen, pid)
		comm, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "comm"))
		if err == nil && strings.TrimSpace(string(comm)) == keeper.ProcessName {
			return true
		}
	}
	return false
}

// parentOf is 0 for a process that is gone.
func parentOf(proc string, pid int) int {
	n, _ := strconv.Atoi(statusLine(filepath.Join(proc, strconv.Itoa(pid)), "PPid:"))
	return n
}

// ownerOf is the name of a process's user, or the number.
func ownerOf(dir string) string {
	id, _, _ := strings.Cut(statusLine(dir, "Uid:"), "\t")
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	if id != "" {
		return "user " + id
	}
	return ""
}

// statusLine is what a line of a process's status says.
func statusLine(dir, name string) string {
	text, _ := os.ReadFile(filepath.Join(dir, "status"))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
