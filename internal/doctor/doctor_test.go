package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mkrun/mkrun/internal/engine/cuda"
)

const healthyLimits = `Limit                     Soft Limit           Hard Limit           Units
Max processes             96364                96364                processes
Max open files            20000                20000                files
Max locked memory         unlimited            unlimited            bytes
`

// laptop is a fixture: a machine with four cores, no GPU and no RDMA NIC.
func laptop() map[string]string {
	return map[string]string{
		"proc/self/status":             "Name:\tx\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3\n",
		"proc/self/limits":             healthyLimits,
		"proc/self/cgroup":             "0::/user.slice/job\n",
		"proc/meminfo":                 "MemTotal: 16384000 kB\nMemAvailable:   8388608 kB\n",
		"sys/class/net/lo/operstate":   "unknown\n",
		"sys/class/net/eth0/operstate": "up\n",
		"sys/class/net/eth0/speed":     "25000\n",
		"sys/class/net/eth1/operstate": "down\n",
	}
}

// with returns a fixture with some files changed; "-" takes a file away.
func with(files map[string]string, changes map[string]string) map[string]string {
	files = maps.Clone(files)
	for path, content := range changes {
		if content == "-" {
			delete(files, path)
			continue
		}
		files[path] = content
	}
	return files
}

// newHost lays the files out; a content that begins with "->" makes a symbolic link.
func newHost(t *testing.T, files map[string]string) host {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(filepath.Join(root, target), path)
			if e := os.MkdirAll(filepath.Join(root, target), 0o755); e != nil {
				t.Fatal(e)
			}
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return host{
		root:      root,
		openGPUs:  func() gpuState { return gpuState{problem: gpuNoLibrary} },
		dataPlane: func() (string, error) { return "", errors.New("looked in /here and /there") },
		openPlane: func(string) planeState { return planeState{} },
		shmSize:   func() (uint64, error) { return 8 * gib, nil },
		memfd:     func() error { return nil },
		loopback:  func(string) error { return nil },
		python:    func(context.Context) (string, bool) { return "", false },
	}
}

func find(r *Report, code string) (Finding, bool) {
	i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Code == code })
	if i < 0 {
		return Finding{}, false
	}
	return r.Findings[i], true
}

func TestFindings(t *testing.T) {
	mlx := map[string]string{
		"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
		"sys/class/infiniband/mlx5_0/ports/1/rate":  "400 Gb/sec (4X NDR)\n",
		"sys/class/infiniband/mlx5_0/device":        "->sys/devices/pci0000:00/0000:18:00.0",
		"dev/infiniband/uverbs0":                    "",
	}
	h200 := GPU{Name: "NVIDIA H200", Capability: "9.0", ECC: true}
	gpus := func(devices ...GPU) func(*host) {
		return func(h *host) {
			h.openGPUs = func() gpuState { return gpuState{driver: "580.1", cuda: "13.0", devices: devices} }
		}
	}
	problem := func(p gpuProblem) func(*host) {
		return func(h *host) { h.openGPUs = func() gpuState { return gpuState{problem: p, err: "Unknown Error"} } }
	}
	tests := []struct {
		name     string
		files    map[string]string
		change   func(*host)
		code     string
		severity Severity
		text     string // part of the sentence
		action   string // part of what to do
	}{
		{name: "cores", code: "cores", severity: OK, text: "4 cores may be used"},
		{name: "one core", files: map[string]string{"proc/self/status": "Cpus_allowed_list:\t5\n"}, code: "cores", severity: Warn, text: "1 cores", action: "more cores"},
		{name: "quota of a parent, cgroup 2", files: map[string]string{"sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n"}, code: "cores", severity: Warn, text: "the time of 1.5"},
		{name: "no quota, cgroup 2", files: map[string]string{"sys/fs/cgroup/user.slice/job/cpu.max": "max 100000\n"}, code: "cores", severity: OK, text: "4 cores"},
		{name: "quota, cgroup 1", files: map[string]string{
			"proc/self/cgroup":                        "3:cpu,cpuacct:/a\n4:memory:/b\n",
			"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us":    "300000\n",
			"sys/fs/cgroup/cpu/a/cpu.cfs_period_us":   "100000\n",
			"sys/fs/cgroup/memory/cpu.cfs_quota_us":   "1\n",
			"sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us":  "1\n",
			"sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "1\n",
		}, code: "cores", severity: OK, text: "the time of 3"},
		{name: "no /proc", files: map[string]string{"proc/self/status": "-"}, code: "cores", severity: Warn, text: "could not be read"},

		{name: "memory", code: "memory", severity: OK, text: "8.0 GiB of memory available"},
		{name: "little memory", files: map[string]string{"proc/meminfo": "MemAvailable: 524288 kB\n"}, code: "memory", severity: Warn, text: "512.0 MiB", action: "smaller shapes"},
		{name: "limited memory", files: map[string]string{"sys/fs/cgroup/user.slice/memory.max": "536870912\n"}, code: "memory", severity: Warn, text: "no more than 512.0 MiB"},
		{name: "no meminfo", files: map[string]string{"proc/meminfo": "-"}, code: "memory", severity: Warn, text: "could not be read"},

		{name: "files", code: "limit-nofile", severity: OK, text: "at most 20000 open files"},
		{name: "few files", files: map[string]string{"proc/self/limits": strings.Replace(healthyLimits, "20000  ", "256  ", 1)}, code: "limit-nofile", severity: Warn, text: "at most 256", action: "ulimit -n 1024"},
		{name: "few files for good", files: map[string]string{"proc/self/limits": "Max open files 256 512 files\n"}, code: "limit-nofile", severity: Warn, action: "the hard limit is 512"},
		{name: "few processes", files: map[string]string{"proc/self/limits": "Max processes 100 100 processes\n"}, code: "limit-nproc", severity: Warn, text: "at most 100 processes"},
		{name: "no limits", files: map[string]string{"proc/self/limits": "-"}, code: "limit-memlock", severity: Warn, text: "could not be read"},
		{name: "small memlock", files: map[string]string{"proc/self/limits": "Max locked memory 65536 65536 bytes\n"}, code: "limit-memlock", severity: OK, text: "64 KiB"},
		{name: "small memlock and RDMA", files: with(mlx, map[string]string{"proc/self/limits": "Max locked memory 65536 65536 bytes\n"}), code: "limit-memlock", severity: Warn, text: "registering memory will fail", action: "/etc/security/limits.conf"},
		{name: "small memlock as root", files: with(mlx, map[string]string{
			"proc/self/limits": "Max locked memory 65536 65536 bytes\n",
			"proc/self/status": "CapEff:\t000001ffffffffff\nCpus_allowed_list: 0-3\n",
		}), code: "limit-memlock", severity: OK, text: "without limit"},

		{name: "memfd", code: "shared-memory", severity: OK, text: "memfd"},
		{name: "no memfd", change: func(h *host) { h.memfd = func() error { return errors.New("not permitted") } }, code: "shared-memory", severity: Fail, text: "not permitted", action: "seccomp"},
		{name: "shm", code: "shm-size", severity: OK, text: "8.0 GiB"},
		{name: "small shm", change: func(h *host) { h.shmSize = func() (uint64, error) { return 64 * mib, nil } }, code: "shm-size", severity: Warn, text: "only 64.0 MiB", action: "--shm-size"},
		{name: "no shm", change: func(h *host) { h.shmSize = func() (uint64, error) { return 0, errors.New("no such file") } }, code: "shm-size", severity: Warn, text: "no such file"},

		{name: "loopback", code: "loopback", severity: OK, text: "127.0.0.x"},
		{name: "only 127.0.0.1", change: func(h *host) {
			h.loopback = func(ip string) error {
				if ip == "127.0.0.1" {
					return nil
				}
				return errors.New("cannot assign address")
			}
		}, code: "loopback", severity: Fail, text: "127.0.0.2: cannot assign address", action: "lo up"},

		{name: "GPUs", change: gpus(h200, h200), code: "gpu", severity: OK, text: "2 x NVIDIA H200, driver 580.1, CUDA up to 13.0"},
		{name: "old GPU", change: gpus(GPU{Name: "Tesla T4", Capability: "7.5"}), code: "gpu", severity: Warn, text: "below 9.0: GPU 0 (Tesla T4, 7.5)", action: "Hopper"},
		{name: "newer GPU", change: gpus(GPU{Name: "B200", Capability: "10.0", ECC: true}), code: "gpu", severity: OK, text: "B200"},
		{name: "MIG", change: gpus(GPU{Capability: "9.0", MIG: true}), code: "gpu-mig", severity: Warn, text: "MIG is on: GPU 0"},
		{name: "ECC off", change: gpus(GPU{Capability: "9.0"}), code: "gpu-ecc", severity: Warn, text: "ECC is off: GPU 0"},
		{name: "memory errors", change: gpus(GPU{Capability: "9.0", ECC: true, Uncorrected: 3}), code: "gpu-ecc", severity: Warn, text: "GPU 0 (3)", action: "reset"},
		{name: "driver without GPUs", change: gpus(), code: "gpu", severity: Warn, text: "shows no GPU"},
		{name: "no library", code: "gpu", severity: Warn, text: "looked for libnvidia-ml.so.1 in", action: "nothing, for the CPU engine"},
		{name: "no library but a GPU", files: map[string]string{
			"sys/bus/pci/devices/0000:18:00.0/vendor": "0x10de\n",
			"sys/bus/pci/devices/0000:18:00.0/class":  "0x030200\n",
			"sys/bus/pci/devices/0000:19:00.0/vendor": "0x10de\n", // its NVSwitch
			"sys/bus/pci/devices/0000:19:00.0/class":  "0x068000\n",
		}, code: "gpu", severity: Warn, text: "shows 1 NVIDIA GPUs", action: "install the NVIDIA driver"},
		{name: "no NVML in the binary", change: problem(gpuNotBuilt), code: "gpu", severity: Warn, text: "built without NVML", action: "CGO_ENABLED=1"},
		{name: "driver not loaded", change: problem(gpuNoDriver), code: "gpu", severity: Warn, text: "not loaded", action: "modprobe nvidia"},
		{name: "driver mismatch", change: problem(gpuMismatch), code: "gpu", severity: Warn, text: "different versions", action: "reboot"},
		{name: "other driver error", change: problem(gpuOtherError), code: "gpu", severity: Warn, text: "Unknown Error"},

		{name: "no data plane", code: "data-plane", severity: Warn, text: "looked in /here and /there", action: "make cuda"},
		{name: "data plane", change: func(h *host) { h.dataPlane = func() (string, error) { return "/x/libmkernel.so", nil } }, code: "data-plane", severity: OK, text: "/x/libmkernel.so"},

		{name: "data plane of another version", change: plane(planeState{unusable: errors.New("has version 99")}), code: "data-plane", severity: Warn, text: "has version 99", action: "make build cuda"},
		{name: "GPUs for the data plane", change: plane(planeState{devices: []cuda.Device{hopper(0), hopper(1)}}), code: "cuda-gpus", severity: OK, text: "2 GPUs for --engine cuda, with 132 SMs"},
		{name: "a GPU that does not fit", change: plane(planeState{devices: []cuda.Device{hopper(0), {Ordinal: 1, Name: "B200", Major: 10, Cooperative: true}}}), code: "cuda-gpus", severity: Warn,
			text: "GPU 1 (B200) has compute capability 10.0", action: "--gpus"},
		{name: "no peer access", change: plane(planeState{devices: []cuda.Device{hopper(0), hopper(1)}, apart: []string{"0 and 1"}}), code: "cuda-gpus", severity: Warn,
			text: "no peer access between GPUs 0 and 1", action: "mkrun topo"},
		{name: "old driver", change: func(h *host) {
			plane(planeState{noGPUs: errors.New("too old")})(h)
			h.openGPUs = func() gpuState { return gpuState{devices: []GPU{{Name: "H200", Capability: "9.0", ECC: true}}} }
		}, code: "cuda-gpus", severity: Warn, text: "cannot use the GPUs: too old", action: "update the driver"},

		{name: "no RDMA", code: "nic-rdma", severity: OK, text: "over TCP"},
		{name: "RDMA", files: mlx, code: "nic-rdma", severity: OK, text: "mlx5_0 (400 Gb/sec (4X NDR))"},
		{name: "RDMA port down", files: with(mlx, map[string]string{"sys/class/infiniband/mlx5_0/ports/1/state": "1: DOWN\n"}), code: "nic-rdma-down", severity: Warn, text: "mlx5_0 (down)", action: "cables"},
		{name: "second port active", files: with(mlx, map[string]string{
			"sys/class/infiniband/mlx5_0/ports/1/state": "1: DOWN\n",
			"sys/class/infiniband/mlx5_0/ports/2/state": "4: ACTIVE\n",
			"sys/class/infiniband/mlx5_0/ports/2/rate":  "200 Gb/sec (4X HDR)\n",
		}), code: "nic-rdma", severity: OK, text: "200 Gb/sec"},
		{name: "RDMA out of reach", files: with(mlx, map[string]string{"dev/infiniband/uverbs0": "-"}), code: "nic-access", severity: Warn, text: "uverbs", action: "--device /dev/infiniband"},
		{name: "EFA", files: map[string]string{
			"sys/class/infiniband/rdmap16s27/ports/1/state": "4: ACTIVE\n",
			"sys/class/infiniband/rdmap16s27/device":        "->sys/devices/pci0000:10/0000:10:1b.0",
			"sys/bus/pci/devices/0000:10:1b.0/vendor":       "0x1d0f\n",
			"sys/bus/pci/devices/0000:10:1b.0/device":       "0xefa2\n",
		}, code: "nic-rdma", severity: OK, text: "rdmap16s27 (EFA)"},
		{name: "EFA without driver", files: map[string]string{
			"sys/bus/pci/devices/0000:10:1b.0/vendor": "0x1d0f\n",
			"sys/bus/pci/devices/0000:10:1b.0/device": "0xefa1\n",
			"sys/bus/pci/devices/0000:10:1c.0/vendor": "0x1d0f\n", // an ENA
			"sys/bus/pci/devices/0000:10:1c.0/device": "0xec20\n",
		}, code: "nic-efa", severity: Warn, text: "without a driver: 0000:10:1b.0", action: "modprobe efa"},
		{name: "ethernet", code: "nic-tcp", severity: OK, text: "up: eth0"},
		{name: "no ethernet", files: map[string]string{"sys/class/net/eth0/operstate": "down\n"}, code: "nic-tcp", severity: Warn, text: "besides loopback"},

		{name: "no python", code: "python", severity: OK, text: "no python3"},
		{name: "python", change: func(h *host) { h.python = func(context.Context) (string, bool) { return "/p", false } }, code: "python", severity: OK, text: "/p, without torch"},
		{name: "torch", change: func(h *host) { h.python = func(context.Context) (string, bool) { return "/p", true } }, code: "python", severity: OK, text: "/p, with torch"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, with(laptop(), tt.files))
			if tt.change != nil {
				tt.change(&h)
			}
			r := examine(t.Context(), h)
			f, ok := find(r, tt.code)
			if !ok {
				t.Fatalf("no finding %q in:\n%s", tt.code, r.text())
			}
			if f.Severity != tt.severity || !strings.Contains(f.Text, tt.text) || !strings.Contains(f.Action, tt.action) {
				t.Errorf("finding %+v\nwant severity %s, text with %q, action with %q", f, tt.severity, tt.text, tt.action)
			}
			if (f.Severity == OK) != (f.Action == "") {
				t.Errorf("finding %+v: an action belongs to what is amiss, and only there", f)
			}
		})
	}
}

// plane is a change of a host: its data plane says this.
func plane(s planeState) func(*host) {
	return func(h *host) {
		h.dataPlane = func() (string, error) { return "/x/libmkernel.so", nil }
		h.openPlane = func(string) planeState { return s }
	}
}

func hopper(i int) cuda.Device {
	return cuda.Device{Ordinal: i, Name: "NVIDIA H200", Major: 9, SMs: 132, Cooperative: true}
}

func TestExitAndEngines(t *testing.T) {
	ready := func(h *host) {
		h.openGPUs = func() gpuState { return gpuState{devices: []GPU{{Name: "H200", Capability: "9.0", ECC: true}}} }
		h.dataPlane = func() (string, error) { return "/x", nil }
	}
	tests := []struct {
		name      string
		change    func(*host)
		exit      int
		cpu, cuda bool
		status    Severity
	}{
		{"laptop", func(*host) {}, 0, true, false, Warn},
		{"GPU machine", ready, 0, true, true, OK},
		{"GPU machine without the library", func(h *host) {
			ready(h)
			h.dataPlane = func() (string, error) { return "", errors.New("none") }
		}, 0, true, false, Warn},
		{"GPU machine with another version of the library", func(h *host) {
			ready(h)
			h.openPlane = func(string) planeState { return planeState{unusable: errors.New("version")} }
		}, 0, true, false, Warn},
		{"small /dev/shm stops no engine", func(h *host) { ready(h); h.shmSize = func() (uint64, error) { return 1, nil } }, 0, true, true, Warn},
		{"no shared memory", func(h *host) { ready(h); h.memfd = func() error { return errors.New("no") } }, 1, false, false, Fail},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, laptop())
			tt.change(&h)
			var out bytes.Buffer
			if exit := run(t.Context(), h, &out, true); exit != tt.exit {
				t.Errorf("exit = %d, want %d", exit, tt.exit)
			}
			var r Report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatalf("not one JSON document: %v\n%s", err, out.String())
			}
			want := []bool{tt.cpu, tt.cuda}
			if got := []bool{r.Engines[0].Ready, r.Engines[1].Ready}; !slices.Equal(got, want) || r.Status != tt.status {
				t.Errorf("cpu and cuda ready = %v, status %s; want %v, %s\n%s", got, r.Status, want, tt.status, r.text())
			}
			if r.Schema != "mkrun.doctor/1" || r.Build == "" {
				t.Errorf("schema %q, build %q", r.Schema, r.Build)
			}
		})
	}
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	if exit := run(t.Context(), newHost(t, laptop()), &out, false); exit != 0 {
		t.Errorf("exit = %d", exit)
	}
	for _, want := range []string{"ok    cores ", "warn  gpu ", "-> nothing, for the CPU engine", "engine cpu   can run here", "engine cuda  cannot run here: see gpu, data-plane"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("text lacks %q:\n%s", want, out.String())
		}
	}
}

// A driver that hangs must not hang the doctor.
func TestDriverThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, laptop())
		answer := make(chan gpuState)
		h.openGPUs = func() gpuState { return <-answer }
		f, ok := find(examine(t.Context(), h), "gpu")
		if !ok || f.Severity != Warn || !strings.Contains(f.Text, "did not answer") {
			t.Errorf("finding %+v, want a warning that the driver did not answer", f)
		}
		close(answer)
	})
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestReportThatCannotBeWritten(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		if exit := run(t.Context(), newHost(t, laptop()), brokenWriter{}, asJSON); exit == 0 {
			t.Errorf("exit is 0 though nothing was written (JSON %v)", asJSON)
		}
	}
}

// The real machine: nothing may crash, and the CPU engine's needs are met wherever tests run.
func TestThisHost(t *testing.T) {
	var out bytes.Buffer
	if exit := Run(t.Context(), &out, false); exit != 0 {
		t.Errorf("exit = %d on this machine:\n%s", exit, out.String())
	}
	t.Log("\n" + out.String())
}
