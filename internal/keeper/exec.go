package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/stdio"
)

// defaultPath is searched where a rank's environment has no PATH, as execvp does.
const defaultPath = "/bin:/usr/bin"

// execError says why a rank's program cannot be started, and the exit status for it.
type execError struct {
	status int
	text   string
}

// CheckProgram says what would keep a rank from being started, as far as that can be told without trying; nil if
// nothing does.
func CheckProgram(argv, env []string, dir string) error {
	if _, fail := resolve(wireRank{Argv: argv, Env: env, Dir: dir}); fail != nil {
		return errors.New(fail.text)
	}
	return nil
}

// resolve finds a rank's program the way a shell in its directory with its environment would.
func resolve(r wireRank) (path string, fail *execError) {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return "", &execError{stdio.StatusNotFound, "no program given"}
	}
	dir := r.Dir
	if dir == "" {
		dir = "."
	}
	if info, err := os.Stat(dir); err != nil {
		return "", &execError{stdio.StatusLauncher, fmt.Sprintf("working directory %q: %v", dir, reason(err))}
	} else if !info.IsDir() {
		return "", &execError{stdio.StatusLauncher, fmt.Sprintf("working directory %q: not a directory", dir)}
	}

	name := r.Argv[0]
	if strings.Contains(name, "/") {
		if err := executable(inDir(dir, name)); err != nil {
			return "", refuse(r, err)
		}
		return name, nil // looked up after the change of directory
	}
	search := lookupEnv(r.Env, "PATH", defaultPath)
	var denied error
	for _, d := range filepath.SplitList(search) {
		if d == "" {
			d = "."
		}
		path := filepath.Join(d, name)
		if _, err := os.Stat(inDir(dir, path)); err != nil {
			continue // not there, or in a folder that this user may not search: as a shell does
		}
		switch err := executable(inDir(dir, path)); {
		case err == nil:
			if !filepath.IsAbs(path) {
				path = "./" + path
			}
			return path, nil
		case errors.Is(err, fs.ErrPermission) && denied == nil:
			denied = fmt.Errorf("%s: %w", path, err)
		}
	}
	if denied != nil {
		return "", refuse(r, denied)
	}
	return "", refuse(r, fmt.Errorf("%w in PATH=%s", syscall.ENOENT, search))
}

// executable reports why a file could not be executed, as far as that can be told without trying.
func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return reason(err)
	}
	if info.IsDir() {
		return fmt.Errorf("%w: it is a directory", syscall.EACCES)
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// reason takes the operation and path off an error, which the caller names better.
func reason(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

func inDir(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// lookupEnv is the value of the last setting of a name, as the C library sees a doubled one in a new environment
// made by a shell.
func lookupEnv(env []string, name, unset string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return unset
}

// refuse makes the error people see of a failed look-up or exec.
func refuse(r wireRank, err error) *execError {
	status, advice := stdio.StatusNotExecutable, ""
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		status = stdio.StatusNotFound
	case errors.Is(err, syscall.ENOEXEC):
		advice = "; a script needs a first line such as #!/bin/sh"
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE):
		status = stdio.StatusLauncher // the node is short of something; the program may be fine
	}
	dir := r.Dir
	if dir == "" {
		dir, _ = os.Getwd()
	}
	return &execError{status, fmt.Sprintf("cannot start %q in directory %q: %v%s", r.Argv[0], dir, err, advice)}
}

// spawn starts a rank. It must be called on a thread that lives as long as the process: ranks are killed when
// that thread ends, and are bound to CPUs by being started while that thread is.
func spawn(path string, r wireRank, null int) (pid int, fail *execError) {
	stdin := r.Stdin
	if stdin < 0 {
		stdin = null
	}
	files := []uintptr{uintptr(stdin), uintptr(r.Stdout), uintptr(r.Stderr)}
	for _, fd := range r.Files {
		files = append(files, uintptr(fd))
	}
	env := r.Env
	if env == nil {
		env = []string{} // nil would be the keeper's own
	}
	unbind, err := bindThread(r.CPUs)
	if err != nil {
		return 0, &execError{stdio.StatusLauncher, fmt.Sprintf("binding it to CPUs %v: %v", r.CPUs, err)}
	}
	defer unbind()
	pid, err = syscall.ForkExec(path, r.Argv, &syscall.ProcAttr{
		Dir:   r.Dir,
		Env:   env,
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: its interpreter (the #! line) or loader", err) // the file itself was there
		}
		return 0, refuse(r, err)
	}
	return pid, nil
}

// descriptors are the numbers a rank's files have in the keeper.
func (r wireRank) descriptors() []int {
	fds := append([]int{r.Stdout, r.Stderr}, r.Files...)
	if r.Stdin >= 0 {
		fds = append(fds, r.Stdin)
	}
	return fds
}
