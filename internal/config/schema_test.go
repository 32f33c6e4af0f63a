package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/mkrun/mkrun/configs"
)

// jsonSchema checks values against the part of JSON Schema that our schemas use, and panics on any other.
type jsonSchema struct{ root map[string]any }

func readSchema(t *testing.T, name string) jsonSchema {
	t.Helper()
	data, err := configs.FS.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var s jsonSchema
	if err := json.Unmarshal(data, &s.root); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}

func (s jsonSchema) resolve(schema map[string]any) map[string]any {
	ref, ok := schema["$ref"].(string)
	if !ok {
		return schema
	}
	return s.root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
}

// check returns what is wrong with a value, "" if nothing.
func (s jsonSchema) check(schema any, v any, at string) string {
	if allowed, ok := schema.(bool); ok {
		if allowed {
			return ""
		}
		return at + " must not be there"
	}
	rules := s.resolve(schema.(map[string]any))
	object, _ := v.(map[string]any)
	list, _ := v.([]any)
	text, isText := v.(string)
	number, isNumber := v.(float64)
	properties, _ := rules["properties"].(map[string]any)
	for key, want := range rules {
		wrong := ""
		switch key {
		case "$schema", "$defs", "title", "description", "default", "then":
		case "type":
			if !ofType(want, v) {
				wrong = fmt.Sprintf("is %T, want %v", v, want)
			}
		case "const":
			if v != want {
				wrong = fmt.Sprintf("is %v, want %v", v, want)
			}
		case "enum":
			if !slices.Contains(want.([]any), v) {
				wrong = fmt.Sprintf("is %v, want one of %v", v, want)
			}
		case "minimum":
			if isNumber && number < want.(float64) {
				wrong = "is too small"
			}
		case "maximum":
			if isNumber && number > want.(float64) {
				wrong = "is too large"
			}
		case "exclusiveMinimum":
			if isNumber && number <= want.(float64) {
				wrong = "is too small"
			}
		case "minLength":
			if isText && len(text) < int(want.(float64)) {
				wrong = "is too short"
			}
		case "pattern":
			if isText && !regexp.MustCompile(want.(string)).MatchString(text) {
				wrong = "does not match " + want.(string)
			}
		case "minProperties":
			if object != nil && len(object) < int(want.(float64)) {
				wrong = "has too few keys"
			}
		case "required":
			for _, name := range want.([]any) {
				if _, ok := object[name.(string)]; object != nil && !ok {
					wrong = fmt.Sprintf("lacks %v", name)
				}
			}
		case "minItems":
			if list != nil && len(list) < int(want.(float64)) {
				wrong = "has too few items"
			}
		case "uniqueItems":
			for i := range list {
				if slices.Contains(list[:i], list[i]) {
					wrong = fmt.Sprintf("has %v twice", list[i])
				}
			}
		case "properties":
			for name, value := range object {
				if p, ok := properties[name]; ok {
					if wrong := s.check(p, value, at+"."+name); wrong != "" {
						return wrong
					}
				}
			}
		case "propertyNames":
			for name := range object {
				if wrong := s.check(want, name, at+" key "+name); wrong != "" {
					return wrong
				}
			}
		case "additionalProperties":
			for name, value := range object {
				if _, ok := properties[name]; !ok {
					if wrong := s.check(want, value, at+"."+name); wrong != "" {
						return wrong
					}
				}
			}
		case "items":
			for i, item := range list {
				if wrong := s.check(want, item, fmt.Sprintf("%s[%d]", at, i)); wrong != "" {
					return wrong
				}
			}
		case "allOf":
			for _, part := range want.([]any) {
				if wrong := s.check(part, v, at); wrong != "" {
					return wrong
				}
			}
		case "if":
			if s.check(want, v, at) == "" {
				if wrong := s.check(rules["then"], v, at); wrong != "" {
					return wrong
				}
			}
		default:
			panic("this test does not know the keyword " + key)
		}
		if wrong != "" {
			return at + " " + wrong
		}
	}
	return ""
}

func ofType(want, v any) bool {
	if names, ok := want.([]any); ok {
		return slices.ContainsFunc(names, func(n any) bool { return ofType(n, v) })
	}
	switch x := v.(type) {
	case nil:
		return want == "null"
	case bool:
		return want == "boolean"
	case string:
		return want == "string"
	case float64:
		return want == "number" || want == "integer" && x == math.Trunc(x)
	case []any:
		return want == "array"
	default:
		return want == "object"
	}
}

// asJSON is a YAML text as an editor's validator sees it.
func asJSON(t *testing.T, text string) (v any, ok bool) {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil || json.Unmarshal(data, &v) != nil {
		return nil, false
	}
	return v, true
}

// wantKeys holds an object of the schema against the struct that the same part of a file is read into: the same
// keys, none besides, each with a description.
func (s jsonSchema) wantKeys(at string, schema map[string]any, typ reflect.Type) (faults []string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
		typ = typ.Elem()
		schema = s.resolve(schema)
		if items, ok := schema["items"].(map[string]any); ok {
			schema = items
		} else if values, ok := schema["additionalProperties"].(map[string]any); ok {
			schema = values
		}
	}
	if typ.Kind() != reflect.Struct {
		return nil
	}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	schema = s.resolve(schema)
	if schema["additionalProperties"] != false {
		fault("%s allows unknown keys", at)
	}
	properties, _ := schema["properties"].(map[string]any)
	var keys []string
	for i := range typ.NumField() {
		field := typ.Field(i)
		if !field.IsExported() {
			continue
		}
		key := field.Tag.Get("yaml")
		keys = append(keys, key)
		property, ok := properties[key].(map[string]any)
		if !ok {
			fault("%s lacks the key %q", at, key)
			continue
		}
		if property["description"] == nil && s.resolve(property)["description"] == nil {
			fault("%s.%s has no description", at, key)
		}
		faults = append(faults, s.wantKeys(at+"."+key, property, field.Type)...)
	}
	for key := range properties {
		if !slices.Contains(keys, key) {
			fault("%s has the key %q, which the loader does not know", at, key)
		}
	}
	return faults
}

func (s jsonSchema) enum(t *testing.T, def, property string) []string {
	t.Helper()
	schema := s.root
	if def != "" {
		schema = s.root["$defs"].(map[string]any)[def].(map[string]any)
	}
	p := schema["properties"].(map[string]any)[property].(map[string]any)
	if items, ok := p["items"].(map[string]any); ok {
		p = items
	}
	var list []string
	for _, v := range p["enum"].([]any) {
		if v != "" {
			list = append(list, v.(string))
		}
	}
	return list
}

// The schemas for editors know the same keys and words as the loader.
func TestSchemasAreInStep(t *testing.T) {
	s := readSchema(t, "schema.json")
	for _, fault := range s.wantKeys("schema.json", s.root, reflect.TypeFor[operatorFile]()) {
		t.Error(fault)
	}
	for _, tt := range []struct {
		def, property string
		known         []string
	}{
		{"", "operator", Operators()}, {"match", "engine", knownEngines}, {"match", "dtype", knownDTypes},
		{"match", "fabric", knownFabrics}, {"use", "mover", knownMovers}, {"use", "algorithm", Algorithms(opGemmAR)}, {"provenance", "how", knownHows},
	} {
		if got := s.enum(t, tt.def, tt.property); !slices.Equal(got, tt.known) {
			t.Errorf("schema.json: %s is one of %v, the loader knows %v", tt.property, got, tt.known)
		}
	}
	shapes := readSchema(t, "shapes.schema.json")
	for _, fault := range shapes.wantKeys("shapes.schema.json", shapes.root, reflect.TypeFor[shapesDocument]()) {
		t.Error(fault)
	}
}

// A difference between schema and loader is noticed.
func TestSchemaDriftIsSeen(t *testing.T) {
	s := readSchema(t, "schema.json")
	use := s.root["$defs"].(map[string]any)["use"].(map[string]any)["properties"].(map[string]any)
	use["stagess"] = use["stages"]
	delete(use, "stages")
	if faults := s.wantKeys("schema.json", s.root, reflect.TypeFor[operatorFile]()); len(faults) != 2 {
		t.Errorf("faults %q, want a key too few and one too many", faults)
	}
}

// Every built-in file names its schema, exists in it, and passes it.
func TestBuiltInFilesPassTheirSchema(t *testing.T) {
	files, err := BuiltIn()
	if err != nil || len(files) != 1+len(Operators()) {
		t.Fatalf("%d built-in files (%v), want the shapes and one for each of %v", len(files), err, Operators())
	}
	for _, f := range files {
		if _, err := CheckFile(f.Name, f.Data); err != nil {
			t.Error(err)
		}
		first, _, _ := strings.Cut(string(f.Data), "\n")
		name, ok := strings.CutPrefix(first, "# yaml-language-server: $schema=")
		if !ok {
			t.Errorf("%s begins with %q; editors look for a yaml-language-server line", f.Name, first)
			continue
		}
		if _, err := os.Stat(filepath.Join("../../configs", name)); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		s := readSchema(t, name)
		v, ok := asJSON(t, string(f.Data))
		if !ok {
			t.Errorf("%s is no YAML", f.Name)
		} else if wrong := s.check(s.root, v, "$"); wrong != "" {
			t.Errorf("%s against %s: %s", f.Name, name, wrong)
		}
	}
}

// What the schema refuses the loader refuses, and the other way round but for what a schema cannot say.
func TestSchemaAndLoaderAgree(t *testing.T) {
	s := readSchema(t, "schema.json")
	texts := maps.Clone(badOperatorFiles())
	for i, text := range soundOperatorFiles() {
		texts[fmt.Sprintf("sound %d", i)] = text
	}
	beyondSchema := []string{"other operator", "empty range", "doubled entry", "overlap", "overlap of other conditions", "overlap on a list",
		"not square", "half a tile", "no calendar", "huge number", "octal", "octal of two digits", "huge end of a range", "fraction", "same name", "anchor", "tag", "row block", "K block", "a split of wide tiles", "a split of a cluster", "a cluster of narrow tiles", "more that push than CTAs", "more that push than SMs", "more than the SMs"}
	for name, text := range texts {
		_, loader := parseOperator("ag_gemm", "f.yaml", []byte(text))
		v, ok := asJSON(t, text)
		if !ok {
			continue
		}
		wrong := s.check(s.root, v, "$")
		switch {
		case loader == nil && wrong != "":
			t.Errorf("%s: the loader takes it, the schema says %s", name, wrong)
		case loader != nil && wrong == "" && !slices.Contains(beyondSchema, name):
			t.Errorf("%s: the schema takes it, the loader says %v", name, loader)
		}
	}
}
