package topology

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// A snapshot is a gzip-compressed tar archive: snapshotMeta, and below snapshotFiles the pseudo files
// that discovery read, links as links. Whatever discovery can tell of the machine, it can tell of the
// snapshot.
const (
	snapshotSchema = "mkrun.topo.snapshot/1"
	snapshotMeta   = "mkrun-topo.json"
	snapshotFiles  = "files"
	snapshotDenied = "denied.json"
)

// Snapshot captures this machine, with all names, GUIDs, serial numbers and addresses of the network
// replaced, and returns what was captured as a node.
func Snapshot(ctx context.Context, w io.Writer, o LiveOptions) (*Node, error) {
	rec := newRecorder(osFiles{o.Roots})
	_, c, err := live(ctx, rec, o)
	if err != nil {
		return nil, err
	}
	c, kept := pseudonymise(c, rec.kept)
	if err := writeSnapshot(w, c, kept); err != nil {
		return nil, fmt.Errorf("writing the snapshot: %w", err)
	}
	return assemble(kept, c), nil
}

func writeSnapshot(w io.Writer, c captured, m *memFiles) error {
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	put := func(name string, content []byte) error {
		if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err := out.Write(content)
		return err
	}
	meta, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := put(snapshotMeta, meta); err != nil {
		return err
	}
	denied, err := json.Marshal(slices.Sorted(maps.Keys(m.deny)))
	if err != nil {
		return err
	}
	if err := put(snapshotDenied, denied); err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(m.files)) {
		if err := put(snapshotFiles+p, []byte(m.files[p])); err != nil {
			return err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(m.links)) {
		h := &tar.Header{Typeflag: tar.TypeSymlink, Name: snapshotFiles + p, Linkname: m.links[p], Mode: 0o777, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(m.empty)) {
		_, file := m.files[p]
		if _, link := m.links[p]; file || link {
			continue
		}
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: snapshotFiles + p + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return zip.Close()
}

// unpack reads gzip-compressed content into memory: a snapshot, or any other input.
func (im *importer) unpack(file string, data []byte) ([]*Node, error) {
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, &ImportError{file, 0, "the gzip data is broken: " + err.Error()}
	}
	content, err := io.ReadAll(io.LimitReader(zip, maxInput+1))
	if err != nil {
		return nil, &ImportError{file, 0, "the gzip data is broken: " + err.Error()}
	}
	if len(content) > maxInput {
		return nil, &ImportError{file, 0, fmt.Sprintf("larger than %d MiB when unpacked: not a topology", maxInput>>20)}
	}
	if isTar(content) {
		return parseSnapshot(file, content)
	}
	if isGzip(content) {
		return nil, &ImportError{file, 0, "compressed twice"}
	}
	return im.recognise(file, content)
}

func isGzip(data []byte) bool { return bytes.HasPrefix(data, []byte{0x1f, 0x8b}) }

// isTar says whether data is a tar archive, by the mark at its place in the first header.
func isTar(data []byte) bool { return len(data) >= 512 && string(data[257:262]) == "ustar" }

// parseSnapshot reads the archive of a snapshot into memory; nothing is unpacked on disk.
func parseSnapshot(file string, archive []byte) ([]*Node, error) {
	in := tar.NewReader(bytes.NewReader(archive))
	m := newMemFiles()
	var c captured
	found := false
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, &ImportError{file, 0, "the archive is broken: " + err.Error()}
		}
		p, below := strings.CutPrefix(strings.TrimPrefix(h.Name, "./"), snapshotFiles)
		if below && h.Typeflag == tar.TypeSymlink {
			m.links[p] = h.Linkname
			continue
		}
		if below && h.Typeflag == tar.TypeDir {
			m.empty[strings.TrimSuffix(p, "/")] = true
			continue
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(in)
		if err != nil {
			return nil, &ImportError{file, 0, fmt.Sprintf("reading %s in the archive: %v", h.Name, err)}
		}
		switch {
		case h.Name == snapshotMeta:
			if err := json.Unmarshal(content, &c); err != nil {
				return nil, &ImportError{file, 0, fmt.Sprintf("%s in the archive: %v", snapshotMeta, err)}
			}
			found = true
		case h.Name == snapshotDenied:
			var denied []string
			if err := json.Unmarshal(content, &denied); err != nil {
				return nil, &ImportError{file, 0, fmt.Sprintf("%s in the archive: %v", snapshotDenied, err)}
			}
			for _, d := range denied {
				m.deny[d] = true
			}
		case below:
			m.files[p] = string(content)
		}
	}
	if !found {
		return nil, &ImportError{file, 0, fmt.Sprintf("no %s in the archive: this is no snapshot of mkrun topo", snapshotMeta)}
	}
	if c.Schema != snapshotSchema {
		return nil, &ImportError{file, 0, fmt.Sprintf("schema %q of the snapshot: this mkrun reads %q", c.Schema, snapshotSchema)}
	}
	n := assemble(m, c)
	if err := n.check(); err != nil {
		return nil, &ImportError{file, 0, err.Error()}
	}
	return []*Node{n}, nil
}
