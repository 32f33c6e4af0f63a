package session

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "secret")
	var wg sync.WaitGroup
	secrets, made := make([]Secret, 8), make([]bool, 8)
	for i := range secrets { // at the same time: one makes it, all get the same
		wg.Go(func() {
			var err error
			if secrets[i], made[i], err = CreateSecretFile(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	makers := 0
	for i, s := range secrets {
		if !s.Equal(secrets[0]) {
			t.Errorf("secret %d differs", i)
		}
		if made[i] {
			makers++
		}
	}
	if makers != 1 {
		t.Errorf("%d made it", makers)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestSecretFilesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := strings.Repeat("0f", SecretSize)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		write("group", good, 0o640):                      "open to others (mode 0640)",
		write("world", good, 0o604):                      "open to others (mode 0604)",
		write("short", good[2:], 0o600):                  "62 characters",
		write("long", good+"00", 0o600):                  "66 characters",
		write("huge", strings.Repeat("0", 1<<20), 0o600): "longer than",
		write("letters", good[:62]+"xy", 0o600):          "hexadecimal",
		write("zero", strings.Repeat("0", 64), 0o600):    "all zero",
		fifo:                       "not a regular file",
		dir:                        "not a regular file",
		filepath.Join(dir, "none"): "no such file",
	} {
		if _, err := ReadSecretFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		} else if strings.Contains(err.Error(), good[:32]) {
			t.Errorf("%s: the error shows the secret", path)
		}
	}
	if _, err := ReadSecretFile(write("good", good+"\n", 0o400)); err != nil {
		t.Error(err)
	}
}

func listenPool(t *testing.T, secret Secret, me Identity) (*PoolListener, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := ListenPool(secret, me, l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool, l.Addr().String()
}

// Of a member that tries several addresses at once, the connection that it goes on with is the only one seen.
func TestPoolOneConnectionPerMember(t *testing.T) {
	secret := NewSecret()
	pool, address := listenPool(t, secret, Identity{RoleHead, -1})
	const members = 20
	for node := range members {
		go func() {
			conn, err := DialPool(t.Context(), secret, Identity{RoleAgent, node}, Identity{RoleHead, -1}, []string{address, address, address})
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.CloseWrite()
		}()
	}
	seen := map[int]bool{}
	for range members {
		conn, err := pool.Accept()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(conn)
		if err != nil || string(text) != "hello" || seen[conn.Peer().Node] {
			t.Errorf("%v says %q (%v), seen before: %v", conn.Peer(), text, err, seen[conn.Peer().Node])
		}
		seen[conn.Peer().Node] = true
		_ = conn.Close()
	}
}

func TestPoolRefusesStrangers(t *testing.T) {
	secret := NewSecret()
	_, address := listenPool(t, secret, Identity{RoleStanding, -1})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	launcher := Identity{RoleLauncher, -1}
	if _, err := DialPool(ctx, NewSecret(), launcher, Identity{RoleStanding, -1}, []string{address}); !errors.Is(err, errStranger) {
		t.Errorf("with another secret: %v", err)
	}
	if _, err := DialPool(ctx, secret, launcher, Identity{RoleHead, -1}, []string{address}); err == nil || !strings.Contains(err.Error(), "standing agent, not head") {
		t.Errorf("looking for a head: %v", err)
	}
	// A certificate of a job is none of the pool, though the secret is the same.
	config, err := tlsConfig(secret, "job", launcher)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dialMember(ctx, dialTCP, []string{address}, config); !errors.Is(err, errStranger) {
		t.Errorf("as a member of a job: %v", err)
	}
}

// Strangers at a pool's port cost little and stop nobody.
func TestPoolHostileBytes(t *testing.T) {
	secret := NewSecret()
	pool, address := listenPool(t, secret, Identity{RoleStanding, -1})
	go func() {
		for {
			if conn, err := pool.Accept(); err != nil {
				return
			} else if conn.Peer().Role != RoleLauncher {
				t.Errorf("%v came through", conn.Peer())
			}
		}
	}()
	attack(t, address, func() {
		conn, err := DialPool(t.Context(), secret, Identity{RoleLauncher, -1}, Identity{RoleStanding, -1}, []string{address})
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	})
}
