package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/stdio"
)

// levelNotice marks what an agent has to say that the user should see.
const levelNotice = "notice"

// OutputFiles says where a node keeps its ranks' output, a file per rank and stream, besides sending it on.
type OutputFiles struct {
	Dir     text  `json:"dir,omitempty"`     // made if it is not there; "": nowhere
	Numbers []int `json:"numbers,omitempty"` // of this node's ranks as the user counts them, by local rank
	Width   int   `json:"width,omitempty"`   // digits of a number in file names
}

// outputFiles is what the agent of a node is told.
func (l *launcher) outputFiles(node int) OutputFiles {
	if l.job.OutputDir == "" {
		return OutputFiles{}
	}
	world := l.job.World
	o := OutputFiles{Dir: text(l.job.OutputDir), Width: len(fmt.Sprint(world.Size() - 1))}
	for local := range world.PPN[node] {
		o.Numbers = append(o.Numbers, l.job.Number(world.RankAt(node, local)))
	}
	return o
}

// rankFiles are open files by rank and stream; the pumps of different ones write at the same time.
type rankFiles map[rankStream]*rankFile

type rankStream struct {
	rank   int
	stream stdio.Stream
}

type rankFile struct {
	file   *os.File
	broken bool // only its own pump looks
}

// open makes the files, which must not hold anything of another job: those of an earlier run are replaced. A generation
// that is not a job's first adds to what is there.
func (o OutputFiles) open(ranks []keeper.RankSpec, add bool) (rankFiles, error) {
	if o.Dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(string(o.Dir), 0o755); err != nil {
		return nil, fmt.Errorf("--output-dir: %w", err)
	}
	files := rankFiles{}
	how := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if add {
		how = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	for _, r := range ranks {
		for stream, suffix := range map[stdio.Stream]string{stdio.Stdout: "out", stdio.Stderr: "err"} {
			name := fmt.Sprintf("rank-%0*d.%s", o.Width, o.Numbers[r.LocalRank], suffix)
			f, err := os.OpenFile(filepath.Join(string(o.Dir), name), how, 0o666)
			if err != nil {
				files.close()
				return nil, fmt.Errorf("--output-dir: %w", err)
			}
			files[rankStream{r.Rank, stream}] = &rankFile{file: f}
		}
	}
	return files, nil
}

// write appends to a rank's file. The first failure is returned; after it nothing more is written there.
func (r rankFiles) write(rank int, stream stdio.Stream, data []byte) error {
	f := r[rankStream{rank, stream}]
	if f == nil || f.broken {
		return nil
	}
	if _, err := f.file.Write(data); err != nil {
		f.broken = true
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return fmt.Errorf("output file %s: %w", f.file.Name(), err)
	}
	return nil
}

func (r rankFiles) close() {
	for _, f := range r {
		_ = f.file.Close() // written through to the kernel already
	}
}
