package dataplane

import (
	"debug/elf"
	"fmt"
	"os"
)

// Whole refuses a library that was cut short, as by a copy that broke off: the loader maps such a file and the process dies
// of SIGBUS.
func Whole(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("it is no whole library: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	for _, p := range f.Progs {
		if end := p.Off + p.Filesz; p.Type == elf.PT_LOAD && (end < p.Off || end > uint64(info.Size())) {
			return fmt.Errorf("it is no whole library: it has %d bytes of %d or more", info.Size(), end)
		}
	}
	return nil
}
