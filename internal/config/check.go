package config

import (
	"fmt"
	"io/fs"

	"github.com/goccy/go-yaml"

	"github.com/mkrun/mkrun/configs"
)

// CheckFile reads a file as a launch would, the catalogue of shapes or the settings of an operator by what
// its schema key says, and tells in a few words what it holds. name is the file's name in errors, which are
// one *Error or several joined.
func CheckFile(name string, data []byte) (holds string, err error) {
	var head struct {
		Schema string `yaml:"schema"`
	}
	// What is wrong with a file that cannot be read even so far is said below, with its place.
	if err := yaml.Unmarshal(data, &head); err == nil && head.Schema == shapesSchema {
		shapes, err := ParseShapes(name, data)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("shapes, %d layers of %d models", len(shapes.List()), len(shapes.models)), nil
	}
	op, err := parseOperator("", name, data)
	if err != nil {
		return "", err
	}
	if len(op.entries) == 1 {
		return op.Name + ", 1 entry", nil
	}
	return fmt.Sprintf("%s, %d entries", op.Name, len(op.entries)), nil
}

// File is a configuration file that is built into the binary.
type File struct {
	Name string // as shown to people
	Data []byte
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
