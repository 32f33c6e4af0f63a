package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// The commands in the Kubernetes manifests are ones that mkrun understands, and start what they say.
func TestExamplesForKubernetes(t *testing.T) {
	files, err := filepath.Glob("../../examples/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	t.Setenv("JOB_COMPLETION_INDEX", "0")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		commands := 0
		decoder := yaml.NewDecoder(bytes.NewReader(data))
		for {
			var doc any
			if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, command := range commandsIn(doc) {
				commands++
				args := append([]string{"launch", "--dry-run"}, command[2:]...)
				var stdout, stderr bytes.Buffer
				if status := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); status != 0 || !strings.Contains(stdout.String(), "32 ranks on 4 nodes") {
					t.Errorf("%s: %q: status %d\n%s%s", file, command, status, stdout.String(), stderr.String())
				}
			}
		}
		if commands != 1 {
			t.Errorf("%s has %d commands, want 1", file, commands)
		}
	}
}

// commandsIn finds the lists of words that begin with mkrun.
func commandsIn(v any) (found [][]string) {
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			found = append(found, commandsIn(inner)...)
		}
	case []any:
		var words []string
		for _, inner := range v {
			if word, ok := inner.(string); ok {
				words = append(words, word)
			}
			found = append(found, commandsIn(inner)...)
		}
		if len(words) > 1 && words[0] == "mkrun" {
			found = append(found, words)
		}
	}
	return found
}
