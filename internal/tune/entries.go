package tune

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/count"
)

// Entry is what was found for a shape, to be written into a configuration file.
type Entry struct {
	Kind  Kind
	DType string
	PPN   int    // the most of any node
	Net   string // fabric; "" on one node
	Found Found
	Calls int
	Date  string // YYYY-MM-DD
	On    string // the machine
}

// Name is what the entry is called: the same for the same shape, world and engine.
func (e Entry) Name() string {
	name := fmt.Sprintf("tuned %dx%dx%d %s %s %dx%d", e.Kind.M, e.Kind.N, e.Kind.K, e.DType, e.Kind.Engine, e.Kind.Nodes, e.PPN)
	if e.Net != "" {
		name += " " + e.Net
	}
	return name
}

// text is the entry in YAML.
func (e Entry) text() string {
	var b strings.Builder
	s := e.Found.Settings
	fmt.Fprintf(&b, "  - name: %s\n    match:\n      engine: %s\n      dtype: [%s]\n", e.Name(), e.Kind.Engine, e.DType)
	for _, r := range []struct {
		name string
		v    int64
	}{{"m", e.Kind.M}, {"n", e.Kind.N}, {"k", e.Kind.K}, {"nodes", int64(e.Kind.Nodes)}, {"ppn", int64(e.PPN)}} {
		fmt.Fprintf(&b, "      %s: {min: %d, max: %d}\n", r.name, r.v, r.v)
	}
	if e.Net != "" {
		fmt.Fprintf(&b, "      fabric: [%s]\n", e.Net)
	}
	if use := useOf(s); use != "" {
		b.WriteString("    use:\n" + use)
	}
	fmt.Fprintf(&b, "    provenance:\n      how: measured\n      date: %s\n      on: %s\n      note: %s\n", e.Date, quote(e.On), quote(e.note()))
	return b.String()
}

// note says how good it is.
func (e Entry) note() string {
	f := e.Found
	text := fmt.Sprintf("%.4g ms, median of %d calls", f.MS, 2*e.Calls)
	switch {
	case f.Settings == (config.Settings{}):
		text += "; the engine's own choice, which nothing that was tried beats by 1 %"
	case f.OwnMS > 0:
		text += fmt.Sprintf("; the engine's own choice takes %.4g ms", f.OwnMS)
	default:
		text += "; the engine's own choice fails"
	}
	text += fmt.Sprintf("; %s timed", count.Of(f.Timed, "setting"))
	if f.Checked {
		text += "; result checked"
	}
	return text
}

func useOf(s config.Settings) string {
	var b strings.Builder
	mapping := func(key string, pairs ...any) {
		var parts []string
		for i := 0; i < len(pairs); i += 2 {
			if v := pairs[i+1].(int); v != 0 {
				parts = append(parts, fmt.Sprintf("%s: %d", pairs[i], v))
			}
		}
		if len(parts) > 0 {
			fmt.Fprintf(&b, "      %s: {%s}\n", key, strings.Join(parts, ", "))
		}
	}
	word := func(key, v string) {
		if v != "" {
			fmt.Fprintf(&b, "      %s: %s\n", key, v)
		}
	}
	mapping("roles", "compute", s.Compute, "intra", s.Intra, "send", s.Send, "reduce", s.Reduce)
	mapping("tile", "m", s.TileM, "n", s.TileN, "k", s.TileK)
	if s.Stages != 0 {
		fmt.Fprintf(&b, "      stages: %d\n", s.Stages)
	}
	if s.Chunks != 0 {
		fmt.Fprintf(&b, "      chunks: %d\n", s.Chunks)
	}
	word("mover", s.Mover)
	word("algorithm", s.Algorithm)
	mapping("cuda", "cluster", s.CUDA.Cluster, "raster_group", s.CUDA.RasterGroup, "push_group", s.CUDA.PushGroup,
		"row_block", s.CUDA.RowBlock, "k_block", s.CUDA.KBlock, "split_k", s.CUDA.SplitK)
	return b.String()
}

// quote writes a text so that YAML reads it as it is.
func quote(s string) string {
	b, err := yaml.Marshal(s)
	if text := strings.TrimSuffix(string(b), "\n"); err == nil && !strings.ContainsAny(text, "\n") {
		return text
	}
	return fmt.Sprintf("%q", s)
}

// WriteEntries puts entries into a configuration file of an operator, which is made if it is not there. Entries that
// have the name of a new one are replaced, the rest of the file stays as it is. Nothing is written unless the whole would
// pass mkrun config check. Without entries it is only seen whether some could be.
func WriteEntries(name, operator string, entries []Entry) error {
	done, err := lockFolder(filepath.Dir(name)) // others may add to the file: what they have put in stays
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	defer done()
	err = regular(name)
	var old []byte
	if err == nil {
		old, err = os.ReadFile(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		old = []byte(fmt.Sprintf("schema: mkrun.config/1\noperator: %s\n", operator))
	} else if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	text, err := merge(name, operator, string(old), entries)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return canReplace(name)
	}
	if _, err := config.CheckFile(name, []byte(text)); err != nil {
		return fmt.Errorf("%s is left as it was: with the new entries it would say: %w", name, err)
	}
	return replace(name, text)
}

// merge is the text of a file with the entries put in.
func merge(name, operator, old string, entries []Entry) (string, error) {
	if !strings.HasSuffix(old, "\n") {
		old += "\n"
	}
	spans, has, err := config.EntrySpans(name, operator, []byte(old))
	if err != nil {
		return "", fmt.Errorf("%w\n%s is left as it was", err, name)
	}
	lines := strings.SplitAfter(old, "\n")
	byName := make(map[string]Entry)
	for _, e := range entries {
		byName[e.Name()] = e
	}
	var b strings.Builder
	at := 0 // lines that are done
	for _, span := range spans {
		e, ok := byName[span.Name]
		if !ok {
			continue
		}
		b.WriteString(strings.Join(lines[at:span.From-1], "") + e.text())
		at = span.To
		delete(byName, span.Name)
	}
	b.WriteString(strings.Join(lines[at:], ""))
	if !has {
		b.WriteString("\nentries:\n")
	}
	for _, e := range entries {
		if _, ok := byName[e.Name()]; ok {
			b.WriteString(e.text())
			delete(byName, e.Name())
		}
	}
	return b.String(), nil
}

// canReplace says why a file could not be written in one step.
func canReplace(name string) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// replace writes a file in one step: whoever reads it sees the old text or the new one.
func replace(name, text string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", name, err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(name); err == nil {
		mode = info.Mode().Perm()
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
