package config

import (
	"fmt"
	"io/fs"

	"github.com/mkrun/mkrun/configs"
)

// CheckFile reads a file as a launch would, the catalogue of shapes or the settings of an operator by what
// its schema key says, and tells in a few words what it holds. name is the file's name in errors; the error is one
// *Error or several joined: all mistakes, in the order of the file.
func CheckFile(name string, data []byte) (holds string, err error) {
	d := parse(name, data)
	if d.schemaOf() == shapesSchema {
		shapes := readShapes(d)
		if err := d.err(); err != nil {
			return "", err
		}
		return fmt.Sprintf("shapes, %d layers of %d models", len(shapes.List()), len(shapes.models)), nil
	}
	op := readOperator("", d)
	if err := d.err(); err != nil {
		return "", err
	}
	if len(op.entries) == 1 {
		return op.Name + ", 1 entry", nil
	}
	return fmt.Sprintf("%s, %d entries", op.Name, len(op.entries)), nil
}

// File is a configuration file.
type File struct {
	Name string // as shown to people
	Data []byte
}

// ReadFile reads a file to be checked. Of one that is too large to be right it reads no more than shows that.
func ReadFile(name string) (File, error) {
	data, err := readFile(name)
	if err != nil {
		return File{}, fmt.Errorf("reading the configuration: %w", err)
	}
	return File{Name: name, Data: data}, nil
}

// BuiltIn returns the files that are built into the binary, by name.
func BuiltIn() ([]File, error) {
	names, err := fs.Glob(configs.FS, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("listing the built-in configuration: %w", err)
	}
	files := make([]File, 0, len(names))
	for _, name := range names {
		data, err := configs.FS.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading the built-in %s: %w", name, err)
		}
		files = append(files, File{Name: "embedded configs/" + name, Data: data})
	}
	return files, nil
}
