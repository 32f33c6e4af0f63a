package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeMunge puts programs into the PATH that speak as MUNGE's do: what is sealed is in the clear.
func fakeMunge(t *testing.T, unmunge string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"munge":   fmt.Sprintf(`[ "$1" = --restrict-uid=%d ] || exit 1; printf MUNGE:; cat`, os.Geteuid()),
		"unmunge": unmunge,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestSealedByMunge(t *testing.T) {
	open := `printf 'UID:  %s\n' >&3; read -r c; printf '%%s' "${c#MUNGE:}"; `
	me := fmt.Sprint(os.Geteuid())
	for _, tt := range []struct{ name, unmunge, want string }{
		{"one's own", fmt.Sprintf(open, me), ""},
		{"opened before on this host", fmt.Sprintf(open, me) + "exit 17", ""},
		{"another user's", fmt.Sprintf(open, "4711"), "user 4711 sealed it, not you"},
		{"for another user", `echo "unmunge: Error: Unauthorized credential" >&2; exit 18`, "exit status 18 (unmunge: Error: Unauthorized credential)"},
		{"whose it is not said", `cat`, "does not say who"},
		{"nonsense about whose it is", `echo "UID: x" >&3; cat`, "does not say who"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fakeMunge(t, tt.unmunge)
			if !CanSeal() {
				t.Fatal("the programs are not found")
			}
			sealed, err := Seal(t.Context(), []byte("secret"))
			if err != nil || !Sealed(sealed) {
				t.Fatalf("%q, %v", sealed, err)
			}
			data, err := Unseal(t.Context(), sealed)
			switch {
			case tt.want == "" && (err != nil || string(data) != "secret"):
				t.Errorf("%q, %v", data, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%q, %v; want %q", data, err, tt.want)
			}
		})
	}
	t.Run("without the programs", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if CanSeal() {
			t.Error("they are found")
		}
		if _, err := Seal(t.Context(), nil); err == nil {
			t.Error("sealed")
		}
		if _, err := Unseal(t.Context(), nil); err == nil {
			t.Error("opened")
		}
	})
}
