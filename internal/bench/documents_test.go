package bench

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/doctor"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/sim"
	"github.com/mkrun/mkrun/internal/tune"
)

// keys are those of a document, at all levels.
func keys(t reflect.Type, into map[string]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		into[name] = into[name] || strings.Contains(options, "omit")
		keys(t.Field(i).Type, into)
	}
}

// docs/documents.md names every key of every document, under its schema.
func TestKeysAreDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/documents.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(data), "\n## ")[1:]
	for i, tt := range []struct {
		schema string
		types  []reflect.Type
	}{
		{report.Schema, []reflect.Type{reflect.TypeFor[report.Document]()}},
		{"prediction", []reflect.Type{reflect.TypeFor[sim.Prediction]()}},
		{Schema, []reflect.Type{reflect.TypeFor[Document]()}},
		{tune.JournalSchema, []reflect.Type{reflect.TypeFor[tune.Header](), reflect.TypeFor[tune.Record]()}},
		{doctor.Schema, []reflect.Type{reflect.TypeFor[doctor.Report]()}},
	} {
		if len(sections) <= i || !strings.Contains(sections[i], tt.schema) {
			t.Fatalf("section %d is not of %s", i+1, tt.schema)
		}
		all := make(map[string]bool)
		for _, typ := range tt.types {
			keys(typ, all)
		}
		for key, optional := range all {
			switch {
			case len(key) == 1: // m, n, k of shapes need no words
			case !strings.Contains(sections[i], "`"+key+"`"):
				t.Errorf("%s: the key %q is not documented", tt.schema, key)
			case !optional && strings.Contains(sections[i], "[`"+key+"`]"):
				t.Errorf("%s: the key %q is documented as left out where it does not apply, and never is", tt.schema, key)
			}
		}
	}
}
