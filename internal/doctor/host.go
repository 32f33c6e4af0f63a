package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/dataplane"
)

// host is what the checks see of a machine. Tests put fixtures in its place.
type host struct {
	root      string // in front of /proc, /sys and /dev/infiniband
	openGPUs  func() gpuState
	dataPlane func() (string, error)
	openPlane func(path string) planeState
	shmSize   func() (bytes uint64, err error)
	memfd     func() error
	loopback  func(ip string) error
	python    func(context.Context) (path string, torch bool)
}

func thisHost() host {
	return host{
		root:      "/",
		openGPUs:  openNVML,
		dataPlane: dataplane.Find,
		openPlane: openDataPlane,
		shmSize: func() (uint64, error) {
			var st unix.Statfs_t
			if err := unix.Statfs("/dev/shm", &st); err != nil {
				return 0, err
			}
			return st.Blocks * uint64(st.Bsize), nil
		},
		memfd:    tryMemfd,
		loopback: tryLoopback,
		python:   findPython,
	}
}

// read returns the trimmed content of a file below the root; "" when it cannot be read.
func (h host) read(path string) string {
	data, err := os.ReadFile(filepath.Join(h.root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// list returns the names in a folder below the root, sorted.
func (h host) list(path string) []string {
	entries, err := os.ReadDir(filepath.Join(h.root, path))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// tryMemfd makes, sizes and maps a memory file, as the CPU engine does for its heap.
func tryMemfd() error {
	fd, err := unix.MemfdCreate("mkrun-doctor", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	const size = 1 << 16
	if err := unix.Ftruncate(fd, size); err != nil {
		return fmt.Errorf("ftruncate of a memfd: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap of a memfd: %w", err)
	}
	mem[size-1] = 1
	return unix.Munmap(mem)
}

// tryLoopback opens a TCP connection to itself at an address.
func tryLoopback(ip string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	return conn.Close()
}

func findPython(ctx context.Context) (path string, torch bool) {
	path, err := exec.LookPath("python3")
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", false
	}
	const probe = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
	return path, exec.CommandContext(ctx, path, "-c", probe).Run() == nil
}
