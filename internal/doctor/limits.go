package doctor

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
)

const (
	mib = 1 << 20
	gib = 1 << 30

	unlimited = math.MaxUint64
)

// cores counts the cores that this process may use: its CPU mask, cut by the cgroup's quota.
func (r *Report) cores(h host) {
	allowed := countList(field(h.read("proc/self/status"), "Cpus_allowed_list:"))
	if allowed == 0 {
		r.bad("cores", Warn, "is /proc mounted?", "the allowed cores could not be read from /proc/self/status")
		return
	}
	text := fmt.Sprintf("%d cores may be used", allowed)
	usable := float64(allowed)
	if quota := h.cpuQuota(); quota < usable {
		usable = quota
		text += fmt.Sprintf(", but a quota allows the time of %.4g", quota)
	}
	if usable < 2 {
		r.bad("cores", Warn, "give the container or job more cores, or expect ranks to take turns", "%s", text)
		return
	}
	r.ok("cores", "%s", text)
}

func (r *Report) memory(h host) {
	kb, err := strconv.ParseUint(strings.TrimSuffix(field(h.read("proc/meminfo"), "MemAvailable:"), " kB"), 10, 64)
	if err != nil {
		r.bad("memory", Warn, "is /proc mounted?", "the available memory could not be read from /proc/meminfo")
		return
	}
	free := kb << 10
	text := size(free) + " of memory available"
	if limit := h.memoryLimit(); limit < free {
		free = limit
		text += ", but the cgroup may use no more than " + size(limit)
	}
	if free < gib {
		r.bad("memory", Warn, "use smaller shapes, or free memory", "%s", text)
		return
	}
	r.ok("memory", "%s", text)
}

// limits looks at the limits of this process that stop jobs in surprising places.
func (r *Report) limits(h host) {
	rows := h.read("proc/self/limits")
	for _, l := range []struct {
		code, row, flag, of string
		need                uint64
	}{
		{"limit-nofile", "Max open files", "-n", "open files", 1024},
		{"limit-nproc", "Max processes", "-u", "processes and threads", 1024},
	} {
		soft, hard, ok := limit(rows, l.row)
		switch {
		case !ok:
			r.bad(l.code, Warn, "is /proc mounted?", "the limit of %s could not be read from /proc/self/limits", l.of)
		case soft < l.need:
			action := fmt.Sprintf("ulimit %s %d", l.flag, l.need)
			if hard < l.need {
				action += fmt.Sprintf(" needs an administrator: the hard limit is %s", count(hard))
			}
			r.bad(l.code, Warn, action, "at most %s %s; a job of 16 ranks wants %d", count(soft), l.of, l.need)
		default:
			r.ok(l.code, "at most %s %s", count(soft), l.of)
		}
	}
	soft, _, ok := limit(rows, "Max locked memory")
	capable := hasCapability(field(h.read("proc/self/status"), "CapEff:"), capIPCLock)
	rdma := len(h.list("sys/class/infiniband")) > 0
	switch {
	case !ok:
		r.bad("limit-memlock", Warn, "is /proc mounted?", "the limit of locked memory could not be read from /proc/self/limits")
	case soft == unlimited || capable:
		r.ok("limit-memlock", "memory may be locked without limit")
	case rdma:
		r.bad("limit-memlock", Warn,
			"raise it to unlimited: memlock in /etc/security/limits.conf for logins (then ulimit -l unlimited), LimitMEMLOCK=infinity for services such as slurmd, --ulimit memlock=-1 for containers",
			"at most %s of memory may be locked, and there are RDMA NICs: registering memory will fail", size(soft))
	default:
		r.ok("limit-memlock", "at most %s of memory may be locked; without RDMA NICs nothing needs more", size(soft))
	}
}

// capIPCLock is the number of CAP_IPC_LOCK: its owner may lock memory beyond the limit.
const capIPCLock = 14

func hasCapability(mask string, number uint) bool {
	bits, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && bits>>number&1 == 1
}

func (r *Report) sharedMemory(h host) {
	if err := h.memfd(); err != nil {
		r.bad("shared-memory", Fail, "the CPU engine shares memory between ranks through memfd: use Linux 3.17 or newer and allow the call in the container's seccomp profile",
			"memory cannot be shared between processes: %v", err)
	} else {
		r.ok("shared-memory", "memory can be shared between processes (memfd)")
	}
	switch total, err := h.shmSize(); {
	case err != nil:
		r.bad("shm-size", Warn, "mount a tmpfs at /dev/shm; NCCL, used for comparison, needs it", "/dev/shm cannot be used: %v", err)
	case total < gib:
		r.bad("shm-size", Warn, "for containers: --shm-size=1g; NCCL, used for comparison, needs it (mkrun itself does not)", "/dev/shm holds only %s", size(total))
	default:
		r.ok("shm-size", "/dev/shm holds %s", size(total))
	}
}

// loopback checks the addresses that pretended nodes get.
func (r *Report) loopback(h host) {
	for _, ip := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.9"} {
		if err := h.loopback(ip); err != nil {
			r.bad("loopback", Fail, "bring the loopback interface up with all of 127.0.0.0/8 (ip link set lo up)", "cannot connect to %s: %v", ip, err)
			return
		}
	}
	r.ok("loopback", "127.0.0.x can be used for pretended nodes")
}

func (r *Report) python(ctx context.Context, h host) {
	switch path, torch := h.python(ctx); {
	case path == "":
		r.ok("python", "no python3: not needed, except for the Python package and comparisons with PyTorch")
	case !torch:
		r.ok("python", "%s, without torch: not needed, except for comparisons with PyTorch", path)
	default:
		r.ok("python", "%s, with torch", path)
	}
}

// cpuQuota is the cores' worth of time that the tightest cgroup around this process allows.
func (h host) cpuQuota() float64 {
	best := math.Inf(1)
	h.eachCgroup("cpu", func(dir string, v2 bool) {
		var quota, period string
		if v2 {
			quota, period, _ = strings.Cut(h.read(dir+"/cpu.max"), " ")
		} else {
			quota, period = h.read(dir+"/cpu.cfs_quota_us"), h.read(dir+"/cpu.cfs_period_us")
		}
		q, errQ := strconv.ParseFloat(quota, 64)
		p, errP := strconv.ParseFloat(period, 64)
		if errQ == nil && errP == nil && q > 0 && p > 0 {
			best = min(best, q/p)
		}
	})
	return best
}

// memoryLimit is the limit of the tightest cgroup around this process, in bytes.
func (h host) memoryLimit() uint64 {
	best := uint64(unlimited)
	h.eachCgroup("memory", func(dir string, v2 bool) {
		file := "/memory.limit_in_bytes"
		if v2 {
			file = "/memory.max"
		}
		if n, err := strconv.ParseUint(h.read(dir+file), 10, 64); err == nil {
			best = min(best, n)
		}
	})
	return best
}

// eachCgroup visits this process's cgroup for a controller and all its parents, in versions 1 and 2.
func (h host) eachCgroup(controller string, visit func(dir string, v2 bool)) {
	lines := bufio.NewScanner(strings.NewReader(h.read("proc/self/cgroup")))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var base string
		v2 := parts[0] == "0" && parts[1] == ""
		switch {
		case v2:
			base = "sys/fs/cgroup"
		case strings.Contains(","+parts[1]+",", ","+controller+","):
			base = "sys/fs/cgroup/" + controller
		default:
			continue
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			visit(base+dir, v2)
			if dir == "/" {
				break
			}
		}
	}
}

// field returns what stands after a key at the start of a line, trimmed.
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// countList counts the members of a list such as 0-3,8.
func countList(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			return 0
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(to); err != nil {
				return 0
			}
		}
		n += last - first + 1
	}
	return n
}

// limit reads a row of /proc/self/limits.
func limit(rows, name string) (soft, hard uint64, ok bool) {
	fields := strings.Fields(field(rows, name))
	if len(fields) < 2 {
		return 0, 0, false
	}
	parse := func(s string) (uint64, bool) {
		if s == "unlimited" {
			return unlimited, true
		}
		n, err := strconv.ParseUint(s, 10, 64)
		return n, err == nil
	}
	soft, okSoft := parse(fields[0])
	hard, okHard := parse(fields[1])
	return soft, hard, okSoft && okHard
}

func count(n uint64) string {
	if n == unlimited {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

// size writes bytes for people.
func size(n uint64) string {
	switch {
	case n >= gib:
		return fmt.Sprintf("%.1f GiB", float64(n)/gib)
	case n >= mib:
		return fmt.Sprintf("%.1f MiB", float64(n)/mib)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
