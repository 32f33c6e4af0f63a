package topology

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// files is what discovery reads: the system's pseudo files, or a copy of them. Paths start with
// /sys, /proc, /dev, /etc or /var whatever the root is.
type files interface {
	read(path string) (string, error)   // content as it is
	link(path string) (string, error)   // target of a symbolic link
	list(path string) ([]string, error) // sorted names in a directory
	writable(path string) (bool, error) // whether this process may open it for writing
}

// Roots are where the pseudo file systems of the machine to be described are mounted; "" is the usual
// place. In a container the host's are often elsewhere.
type Roots struct {
	Sys, Proc, Dev, Etc string
}

// check says whether there is something to read: roots that cannot be read would look like a machine without devices.
func (r Roots) check() error {
	sys, err := os.ReadDir(cmp.Or(r.Sys, "/sys"))
	if err != nil {
		return fmt.Errorf("reading the machine's sysfs: %w", err)
	}
	if !slices.ContainsFunc(sys, func(e fs.DirEntry) bool { return e.Name() == "bus" || e.Name() == "devices" || e.Name() == "class" }) {
		return fmt.Errorf("reading the machine's sysfs: %s has neither bus, devices nor class: nothing of a machine's is mounted there", cmp.Or(r.Sys, "/sys"))
	}
	for _, root := range []string{r.Proc, r.Dev, r.Etc} {
		if root == "" {
			continue
		}
		if _, err := os.ReadDir(root); err != nil {
			return fmt.Errorf("reading the machine's pseudo files: %w", err)
		}
	}
	return nil
}

// osFiles reads a running machine.
type osFiles struct{ roots Roots }

func (f osFiles) real(p string) string {
	for prefix, root := range map[string]string{"/sys": f.roots.Sys, "/proc": f.roots.Proc, "/dev": f.roots.Dev, "/etc": f.roots.Etc} {
		if root != "" && (p == prefix || strings.HasPrefix(p, prefix+"/")) {
			return root + strings.TrimPrefix(p, prefix)
		}
	}
	return p
}

func (f osFiles) read(p string) (string, error) {
	data, err := os.ReadFile(f.real(p))
	return string(data), err
}

func (f osFiles) link(p string) (string, error) { return os.Readlink(f.real(p)) }

func (f osFiles) list(p string) ([]string, error) {
	entries, err := os.ReadDir(f.real(p))
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (f osFiles) writable(p string) (bool, error) {
	switch err := unix.Access(f.real(p), unix.W_OK); {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT):
		return false, nil
	default:
		return false, err
	}
}

// memFiles are files in memory: of a snapshot, or of a test.
type memFiles struct {
	files map[string]string // content by path
	links map[string]string // targets by path
	deny  map[string]bool   // paths that cannot be opened for writing
	empty map[string]bool   // entries of directories of which nothing was read
	dirs  map[string][]string
}

func newMemFiles() *memFiles {
	return &memFiles{files: map[string]string{}, links: map[string]string{}, deny: map[string]bool{}, empty: map[string]bool{}}
}

// index lists what each directory holds; made on first use.
func (m *memFiles) index() map[string][]string {
	if m.dirs != nil {
		return m.dirs
	}
	m.dirs = map[string][]string{}
	add := func(p string) {
		for p != "/" && p != "." {
			dir, name := path.Dir(p), path.Base(p)
			if slices.Contains(m.dirs[dir], name) {
				return
			}
			m.dirs[dir] = append(m.dirs[dir], name)
			p = dir
		}
	}
	for p := range m.files {
		add(p)
	}
	for p := range m.links {
		add(p)
	}
	for p := range m.empty {
		add(p)
	}
	for _, names := range m.dirs {
		slices.Sort(names)
	}
	return m.dirs
}

func (m *memFiles) read(p string) (string, error) {
	if s, ok := m.files[p]; ok {
		return s, nil
	}
	return "", &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
}

func (m *memFiles) link(p string) (string, error) {
	if s, ok := m.links[p]; ok {
		return s, nil
	}
	return "", &fs.PathError{Op: "readlink", Path: p, Err: fs.ErrNotExist}
}

func (m *memFiles) list(p string) ([]string, error) {
	if names, ok := m.index()[p]; ok {
		return names, nil
	}
	return nil, &fs.PathError{Op: "readdir", Path: p, Err: fs.ErrNotExist}
}

func (m *memFiles) writable(p string) (bool, error) {
	return !m.deny[p], nil
}

// recorder keeps what was read, so that a snapshot holds exactly what discovery needs.
type recorder struct {
	files
	kept *memFiles
}

func newRecorder(f files) *recorder { return &recorder{f, newMemFiles()} }

func (r *recorder) read(p string) (string, error) {
	s, err := r.files.read(p)
	if err == nil {
		r.kept.files[p] = s
	}
	return s, err
}

func (r *recorder) link(p string) (string, error) {
	s, err := r.files.link(p)
	if err == nil {
		r.kept.links[p] = s
	}
	return s, err
}

func (r *recorder) list(p string) ([]string, error) {
	names, err := r.files.list(p)
	for _, name := range names {
		r.kept.empty[path.Join(p, name)] = true
	}
	return names, err
}

func (r *recorder) writable(p string) (bool, error) {
	ok, err := r.files.writable(p)
	if err == nil && !ok {
		r.kept.deny[p] = true
	}
	return ok, err
}
