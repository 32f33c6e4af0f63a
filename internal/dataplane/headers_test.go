package dataplane

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The go command builds a package anew only when a file in its folder changes. A header that lies elsewhere must be
// linked there, or a cached build goes on with the structs of an earlier one.
func TestHeadersOfCgoPackagesAreInTheirFolders(t *testing.T) {
	include := regexp.MustCompile(`(?m)^(?:// )?#include "(.+)"`)
	for dir, want := range map[string]int{"../mknet": 2, "../engine/cuda": 3} {
		var outside []string
		seen := map[string]bool{}
		var follow func(path string)
		follow = func(path string) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range include.FindAllSubmatch(text, -1) {
				for _, from := range []string{"../../cuda/include", filepath.Dir(path)} {
					if header := filepath.Join(from, string(m[1])); !seen[header] {
						if _, err := os.Stat(header); err != nil {
							continue
						}
						seen[header] = true
						if from != dir {
							outside = append(outside, header)
						}
						follow(header)
						break
					}
				}
			}
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.[ghc]*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if info, err := os.Lstat(f); err == nil && info.Mode().IsRegular() && filepath.Ext(f) != ".go" {
				follow(f)
			}
		}
		if len(outside) != want {
			t.Errorf("%s: found headers %q, want %d: does the test still look at the right files?", dir, outside, want)
		}
		for _, header := range outside {
			a, errA := os.Stat(header)
			b, errB := os.Stat(filepath.Join(dir, filepath.Base(header)))
			if errA != nil || errB != nil || !os.SameFile(a, b) {
				t.Errorf("%s lacks a link to %s", dir, header)
			}
		}
	}
}
