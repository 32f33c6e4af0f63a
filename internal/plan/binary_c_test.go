package plan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// buildReader compiles cuda/tests/plan_reader.c with the given extra flags.
func buildReader(t *testing.T, flags ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc): the C header is not tested")
	}
	cuda := filepath.Join("..", "..", "cuda")
	program := filepath.Join(t.TempDir(), "plan_reader")
	args := append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-I", filepath.Join(cuda, "include")}, flags...)
	args = append(args, filepath.Join(cuda, "tests", "plan_reader.c"), "-o", program)
	if out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", cc, strings.Join(args, " "), err, out)
	}
	return program
}

// read gives images to a reader.
func readImages(t *testing.T, program string, images [][]byte, args ...string) string {
	t.Helper()
	var in, out, complaints bytes.Buffer
	for _, image := range images {
		_ = binary.Write(&in, binary.LittleEndian, uint32(len(image))) // into memory: never fails
		in.Write(image)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &complaints
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=abort_on_error=0:detect_leaks=1", "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(program), err, complaints.String())
	}
	return out.String()
}

// goReading is what plan_reader.c prints, from the Go side.
func goReading(t *testing.T, p *Plan, image []byte, quiet bool) string {
	t.Helper()
	r, err := DecodeRank(image)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if !quiet {
		printImage(&b, p, r)
	}
	fmt.Fprintf(&b, "sum %d\n", r.walk(Shape{M: 10007, N: 1009, K: 2003}))
	return b.String()
}

func printImage(b *strings.Builder, p *Plan, r *RankImage) {
	fmt.Fprintf(b, "%s %s rank %d of %d chunks %d nodes", r.Operator, r.Algorithm, r.Rank, r.World.Size(), r.Chunks)
	for _, n := range r.World.PPN {
		fmt.Fprintf(b, " %d", n)
	}
	b.WriteByte('\n')
	for i, buffer := range r.Buffers {
		bits := 0
		for bit, set := range []bool{buffer.Sharded, buffer.Same, buffer.Sum, buffer.Shared} {
			if set {
				bits |= 1 << bit
			}
		}
		fmt.Fprintf(b, "buffer %s kind %d elem %d %v x %v bits %d part %d\n", buffer.Name, buffer.Kind, buffer.Elem, buffer.Rows, buffer.Cols, bits, p.Buffers[i].partOf(r.Rank))
	}
	region := func(g Region) {
		fmt.Fprintf(b, " %s[%v %d/%d..%d/%d,%v %d/%d..%d/%d]", p.Buffers[g.Buffer].Name, g.Rows.Dim, g.Rows.From.Num, g.Rows.From.Den, g.Rows.To.Num, g.Rows.To.Den,
			g.Cols.Dim, g.Cols.From.Num, g.Cols.From.Den, g.Cols.To.Num, g.Cols.To.Den)
	}
	for i, f := range p.Flags {
		fmt.Fprintf(b, "flag %d kind %d", i, f.Kind)
		if f.Field != nil {
			region(f.Field.Region)
			fmt.Fprintf(b, " %d %d", f.Field.BlockRows, f.Field.BlockCols)
		}
		b.WriteByte('\n')
	}
	for role, queue := range p.Ranks[r.Rank].Queues {
		for i := range queue {
			task := &queue[i]
			part := int32(0)
			if task.Kind != Notify {
				part = p.Buffers[task.Dst.Buffer].partOf(task.Peer)
			}
			fmt.Fprintf(b, "task %d %d kind %d peer %d steps %d part %d dst", role, i, task.Kind, task.Peer, task.Steps, part)
			if task.Kind == Notify {
				b.WriteString(" -")
			} else {
				region(task.Dst)
			}
			b.WriteString(" b")
			if task.Kind == Compute {
				region(task.B)
			} else {
				b.WriteString(" -")
			}
			b.WriteString(" src")
			for _, src := range task.sources() {
				region(src)
			}
			for _, w := range task.Waits {
				fmt.Fprintf(b, " wait %d x%d lag %d step %d", w.Flag, w.Count, w.Lag, w.Step)
			}
			for _, s := range task.Signals {
				fmt.Fprintf(b, " signal %d at %d", s.Flag, s.Rank)
			}
			b.WriteByte('\n')
		}
	}
}

// walk is the number that plan_reader.c makes of everything that a launch looks up.
func (r *RankImage) walk(s Shape) uint64 {
	var sum uint64
	add := func(n uint64) { sum = sum*31 + n }
	for _, span := range r.Spans {
		from, to := span.At(s)
		add(uint64(from))
		add(uint64(to))
	}
	for i := range r.Flags {
		rows, cols := r.Flags[i].Field.blocks(s)
		add(uint64(rows * cols))
	}
	size := r.World.Size()
	for role, queue := range r.Queues {
		for i := range queue {
			t := &queue[i]
			for _, src := range t.sources() {
				add(uint64(src.Buffer))
			}
			for _, w := range t.Waits {
				add(uint64(w.Flag))
			}
			for _, sig := range t.Signals {
				add(uint64(sig.Rank))
			}
			if t.Kind == Notify {
				continue
			}
			held := All(r.Buffers[t.Dst.Buffer].Rows)
			if r.Buffers[t.Dst.Buffer].Sharded {
				held = Part(held.Dim, int(r.DstParts[role][i]), size)
			}
			from, to := held.At(s)
			add(uint64(from))
			add(uint64(to - from))
		}
	}
	return sum
}

// What C reads is what Go wrote, and both compute the same from it.
func TestCReadsWhatGoWrote(t *testing.T) {
	program := buildReader(t)
	var images [][]byte
	var want strings.Builder
	for _, m := range planMakers {
		for _, ppn := range [][]int{{1}, {2, 2}, {2, 3, 1}} {
			p := m.must(t, World{PPN: ppn}, 2)
			for rank := range p.Ranks {
				image := mustEncode(t, p, rank)
				images = append(images, image)
				want.WriteString(goReading(t, p, image, false))
			}
		}
	}
	got := readImages(t, program, images)
	if got != want.String() {
		t.Errorf("C reads something else:\n%.4000s", cmp.Diff(want.String(), got))
	}
}

// The C reader, under sanitizers, takes truncated, flipped and hostile images without a step beyond them, and its
// verdict is that of the Go reader.
func TestCReaderSurvivesDamage(t *testing.T) {
	program := buildReader(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	n := 6000
	if testing.Short() || brief {
		n = 1000
	}
	rng := rand.New(rand.NewPCG(11, 12))
	var sources [][]byte
	for _, m := range planMakers {
		p := m.must(t, World{PPN: []int{2, 1}}, 1)
		for rank := range p.Ranks {
			sources = append(sources, mustEncode(t, p, rank))
		}
	}
	images := make([][]byte, 0, n)
	for range n {
		image := bytes.Clone(sources[rng.IntN(len(sources))])
		for range 1 + rng.IntN(3) {
			switch at := rng.IntN(len(image)); rng.IntN(6) {
			case 0:
				image = image[:at]
			case 1:
				image[at] ^= 1 << rng.IntN(8)
			case 2:
				image = append(image, image[at:]...)
			default: // most damage is done to one word, so that what is behind the checksum is reached
				at = at &^ 3
				if at+4 <= len(image) {
					w := hostile[rng.IntN(len(hostile))]
					if rng.IntN(2) == 0 {
						w = rng.Uint32N(64)
					}
					binary.LittleEndian.PutUint32(image[at:], w)
				}
			}
			if len(image) == 0 {
				break
			}
		}
		if len(image) >= headerBytes && rng.IntN(8) > 0 {
			binary.LittleEndian.PutUint32(image[8:], uint32(len(image)))
			seal(image)
		}
		images = append(images, image)
	}
	verdicts := strings.Split(strings.TrimSuffix(readImages(t, program, images, "quiet"), "\n"), "\n")
	if len(verdicts) != n {
		t.Fatalf("%d verdicts on %d images", len(verdicts), n)
	}
	read := 0
	for i, image := range images {
		r, err := DecodeRank(image)
		want := "refused: "
		if err == nil {
			read++
			want = fmt.Sprintf("sum %d", r.walk(Shape{M: 10007, N: 1009, K: 2003}))
		}
		if !strings.HasPrefix(verdicts[i], want) {
			t.Fatalf("image %d: C says %q, Go says %q (%v)", i, verdicts[i], want, err)
		}
	}
	t.Logf("%d damaged images: %d read, %d refused, by C and Go alike", n, read, n-read)
}
