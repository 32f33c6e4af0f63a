package tune

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mkrun/mkrun/internal/config"
)

// JournalSchema names the layout of a results file: a Header in the first line, a measurement in each other.
const JournalSchema = "mkrun.tune/1"

// Header says what a results file holds times of. Times under another header cannot be compared.
type Header struct {
	Schema   string `json:"schema"`
	Operator string `json:"operator"`
	Engine   string `json:"engine"`
	DType    string `json:"dtype"`
	PPN      []int  `json:"ppn"` // ranks of each node
	Machine  string `json:"machine"`
	Net      string `json:"net"` // what joins the nodes, emulated rates included
	Build    string `json:"build"`
	Calls    int    `json:"calls"`
	Seed     uint64 `json:"seed"`
}

// Record is one measurement: settings of a shape that were timed next to each other.
type Record struct {
	Shape    string            `json:"shape"`
	Calls    int               `json:"calls"`
	Check    bool              `json:"check,omitempty"` // not timed, but compared with a reference
	Settings []config.Settings `json:"settings"`
	Times    []Time            `json:"times"`
	Date     string            `json:"date"` // when
}

func (r Record) key() (string, error) {
	r.Times, r.Date = nil, ""
	b, err := json.Marshal(r)
	return string(b), err
}

// Journal is a results file: what was measured is added to it at once, so a search that was cut short goes on where it
// was. A search takes the same steps when it sees the same times.
type Journal struct {
	Today string // is written to what is measured, YYYY-MM-DD
	Date  string // when that was measured which was asked for last
	Added int    // measurements of this process
	Found int    // that were there already

	file  *os.File
	known map[string]Record
}

// OpenJournal opens a results file, or makes one. One that holds times of something else is refused. A last line that
// was not written to its end is dropped. Until it is closed nobody else can open it so.
func OpenJournal(name string, h Header) (*Journal, error) {
	h.Schema = JournalSchema
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the results file: %w", err)
	}
	j := &Journal{file: f, known: make(map[string]Record)}
	if err := regular(name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := j.lock(name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := j.read(name, h); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// lock refuses a file that another search adds to: each would cut off and write over what the other one has measured.
func (j *Journal) lock(name string) error {
	had, err := lock(j.file, false)
	if err != nil || had {
		return err
	}
	who := "another mkrun tune"
	if pids := holders(j.file); len(pids) > 0 {
		who += " (process " + strings.Join(pids, ", ") + ")"
	}
	return fmt.Errorf("%s is in use by %s; let that end, or choose another file with --results", name, who)
}

// regular refuses what is no file of a disk: a device or a pipe may have no end, and keeps nothing.
func regular(name string) error {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file (%s)", name, info.Mode())
	}
	return err
}

func (j *Journal) read(name string, h Header) error {
	wanted, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encoding the head of the results file: %w", err)
	}
	end := int64(0) // of the last whole line
	lines := bufio.NewReader(j.file)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // a last line without an end was cut short
		}
		if err != nil {
			return fmt.Errorf("reading the results file: %w", err)
		}
		end += int64(len(line))
		line = bytes.TrimSuffix(line, []byte("\n"))
		if n == 1 {
			if err := sameHeader(name, line, wanted); err != nil {
				return err
			}
			continue
		}
		if err := j.add(line); err != nil {
			return fmt.Errorf("%s:%d: this is no measurement (%w); remove the line, or choose another file with --results", name, n, err)
		}
	}
	if err := j.file.Truncate(end); err != nil {
		return fmt.Errorf("cutting off an unfinished line of the results file: %w", err)
	}
	if _, err := j.file.Seek(end, io.SeekStart); err != nil {
		return fmt.Errorf("going to the end of the results file: %w", err)
	}
	if end == 0 {
		return j.write(wanted)
	}
	return nil
}

// sameHeader says what a results file is of, if it is not what is wanted.
func sameHeader(name string, line, wanted []byte) error {
	if bytes.Equal(line, wanted) {
		return nil
	}
	var theirs, ours map[string]any
	if err := json.Unmarshal(line, &theirs); err != nil || theirs["schema"] == nil {
		return fmt.Errorf("%s is no results file of mkrun tune; choose another with --results", name)
	}
	if err := json.Unmarshal(wanted, &ours); err != nil {
		return fmt.Errorf("reading the head of the results file: %w", err)
	}
	for _, key := range []string{"schema", "operator", "engine", "dtype", "ppn", "machine", "net", "build", "calls", "seed"} {
		if a, b := fmt.Sprint(theirs[key]), fmt.Sprint(ours[key]); a != b {
			return fmt.Errorf("%s holds times of another search: %s %s, and this one has %s; choose another file with --results, or remove it", name, key, a, b)
		}
	}
	return fmt.Errorf("%s holds times of another search; choose another file with --results, or remove it", name)
}

func (j *Journal) add(line []byte) error {
	var r Record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return err
	}
	if len(r.Times) != len(r.Settings) || len(r.Times) == 0 {
		return fmt.Errorf("%d times of %d settings", len(r.Times), len(r.Settings))
	}
	key, err := r.key()
	if err != nil {
		return err
	}
	j.known[key] = r
	return nil
}

// write adds a line, and sees to it that it stays.
func (j *Journal) write(line []byte) error {
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("writing the results file: %w", err)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("writing the results file: %w", err)
	}
	return nil
}

// Check wraps a checking function for a shape: what the file holds is not checked again.
func (j *Journal) Check(shape string, check func(context.Context, config.Settings) error) func(context.Context, config.Settings) error {
	return func(ctx context.Context, s config.Settings) error {
		times, err := j.once(Record{Shape: shape, Check: true, Settings: []config.Settings{s}}, func() ([]Time, error) {
			err := check(ctx, s)
			var wrong *WrongError
			if errors.As(err, &wrong) {
				return []Time{{Failed: wrong.Why}}, nil
			}
			return []Time{{}}, err
		})
		if err == nil && times[0].Failed != "" {
			err = &WrongError{times[0].Failed}
		}
		return err
	}
}

// Measure wraps a measuring function for a shape: what the file holds is not measured again.
func (j *Journal) Measure(shape string, measure Measure) Measure {
	return func(ctx context.Context, settings []config.Settings, calls int) ([]Time, error) {
		return j.once(Record{Shape: shape, Calls: calls, Settings: settings}, func() ([]Time, error) { return measure(ctx, settings, calls) })
	}
}

// once is what the file says of a record, or what the function says, which is then added.
func (j *Journal) once(r Record, measure func() ([]Time, error)) ([]Time, error) {
	key, err := r.key()
	if err != nil {
		return nil, fmt.Errorf("encoding a measurement: %w", err)
	}
	if known, ok := j.known[key]; ok {
		j.Found++
		j.Date = known.Date
		return known.Times, nil
	}
	if r.Times, err = measure(); err != nil {
		return nil, err
	}
	r.Date, j.Date = j.Today, j.Today
	line, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding a measurement: %w", err)
	}
	j.known[key] = r
	j.Added++
	return r.Times, j.write(line)
}

// Close closes the file.
func (j *Journal) Close() error { return j.file.Close() }
