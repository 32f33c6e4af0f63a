package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func mustEncode(t testing.TB, p *Plan, rank int) []byte {
	t.Helper()
	b, err := p.EncodeRank(rank)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBinaryReadsBack(t *testing.T) {
	for _, m := range planMakers {
		for _, ppn := range [][]int{{1}, {2, 2}, {1, 3}, {2, 3, 1}} {
			p := m.must(t, World{PPN: ppn}, 2)
			for rank := range p.Ranks {
				r, err := DecodeRank(mustEncode(t, p, rank))
				if err != nil {
					t.Fatalf("%s on %v, rank %d: %v", m.name, ppn, rank, err)
				}
				if r.Operator != p.Operator || r.Algorithm != p.Algorithm || r.Rank != rank || r.Chunks != p.Chunks {
					t.Errorf("%s on %v: %s %s rank %d chunks %d", m.name, ppn, r.Operator, r.Algorithm, r.Rank, r.Chunks)
				}
				if diff := cmp.Diff(p.Ranks[rank].Queues, r.Queues, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("%s on %v: rank %d reads back otherwise:\n%s", m.name, ppn, rank, diff)
				}
				for i := range p.Buffers {
					want := p.Buffers[i]
					if part := want.partOf(rank); r.Parts[i] != part {
						t.Errorf("buffer %q has part %d, want %d", want.Name, r.Parts[i], part)
					}
					want.Parts = nil
					if diff := cmp.Diff(want, r.Buffers[i]); diff != "" {
						t.Error(diff)
					}
				}
				for i, f := range p.Flags {
					f.Name = ""
					if diff := cmp.Diff(f, r.Flags[i]); diff != "" {
						t.Error(diff)
					}
				}
				for role, queue := range p.Ranks[rank].Queues {
					for i, task := range queue {
						if task.Kind != Notify && r.DstParts[role][i] != p.Buffers[task.Dst.Buffer].partOf(task.Peer) {
							t.Errorf("%s: part %d", p.Describe(task), r.DstParts[role][i])
						}
					}
				}
			}
		}
	}
}

// A plan of 2 x 8 ranks stays within 32 KB per rank, and is evaluated for a new shape in microseconds.
func TestBinaryIsSmall(t *testing.T) {
	for _, m := range planMakers {
		p := m.must(t, Uniform(2, 8), 4)
		most := 0
		for rank := range p.Ranks {
			most = max(most, len(mustEncode(t, p, rank)))
		}
		t.Logf("%s on 2 x 8 in 4 chunks: %d bytes per rank", m.name, most)
		if most > 32<<10 {
			t.Errorf("%s: %d bytes are more than 32 KB", m.name, most)
		}
	}
}

// More chunks than fit are refused when the plan is made; what is made fits, at every rank.
func TestPlansFitALaunch(t *testing.T) {
	for _, m := range planMakers {
		for _, ppn := range [][]int{{8, 8}, {1}, {8}, {1, 8}, {8, 1, 1, 1, 1, 1, 1, 1, 1}, {8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {3, 1, 4, 1, 5, 9, 2, 6}} {
			w, made := World{PPN: ppn}, 0
			for chunks := 1; chunks <= 64; chunks++ {
				p, err := m.make(w, chunks)
				if err != nil {
					// What is advised is right, from wherever one comes.
					for _, asked := range []int{chunks, 64} {
						var tooLarge *SizeError
						_, err := m.make(w, asked)
						if !errors.As(err, &tooLarge) || tooLarge.Chunks != made || !strings.HasSuffix(err.Error(), fmt.Sprintf("; take at most %d", made)) {
							t.Errorf("%s on %v in %d chunks: %v, and %d is the most", m.name, ppn, asked, err, made)
						}
					}
					break
				}
				made = chunks
				if chunks > 8 && chunks < 60 {
					continue
				}
				for rank := range p.Ranks {
					if n := len(mustEncode(t, p, rank)); n > maxImage(w) {
						t.Errorf("%s on %v in %d chunks: %d bytes for rank %d", m.name, ppn, chunks, n, rank)
					}
				}
			}
			if made < 4 {
				t.Errorf("%s on %v: only up to %d chunks", m.name, ppn, made)
			}
		}
	}
	_, err := AGGemm(Uniform(2, 8), 16)
	if want := "ag_gemm: in 16 chunks per shard, rank 0's part of the plan for 2 nodes x 8 ranks has"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func BenchmarkEvaluate(b *testing.B) {
	for _, m := range planMakers {
		r, err := DecodeRank(mustEncode(b, m.must(b, Uniform(2, 8), 4), 3))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(m.name, func(b *testing.B) {
			var sum int64
			m := int64(8192)
			for b.Loop() {
				m++
				for _, s := range r.Spans {
					from, to := s.At(Shape{M: m, N: 1024, K: 4096})
					sum += to - from
				}
			}
			b.ReportMetric(float64(len(r.Spans)), "formulas")
		})
	}
}

func TestEncodeRefusesNonsense(t *testing.T) {
	p := mustAG(t, Uniform(1, 2), 1)
	for _, rank := range []int{-1, 2} {
		if _, err := p.EncodeRank(rank); err == nil {
			t.Errorf("rank %d was written", rank)
		}
	}
	p.Chunks = 0
	if _, err := p.EncodeRank(0); err == nil {
		t.Error("a plan that means nothing was written")
	}
}

// Truncated at every length, and with every bit flipped, an image is refused.
func TestDecodeRefusesDamage(t *testing.T) {
	image := mustEncode(t, planMakers[1].must(t, Uniform(2, 2), 1), 1)
	for n := range image {
		if _, err := DecodeRank(image[:n]); err == nil {
			t.Fatalf("%d of %d bytes were read", n, len(image))
		}
	}
	if _, err := DecodeRank(append(append([]byte{}, image...), 0)); err == nil {
		t.Fatal("a byte too many was read")
	}
	for bit := range 8 * len(image) {
		image[bit/8] ^= 1 << (bit % 8)
		if _, err := DecodeRank(image); err == nil {
			t.Fatalf("bit %d of byte %d was flipped, and nobody saw", bit%8, bit/8)
		}
		image[bit/8] ^= 1 << (bit % 8)
	}
}

// hostile are words that sizes and indices are replaced by.
var hostile = []uint32{0, 1, 2, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff, 0x10000, 1 << 30}

// Every word replaced by hostile sizes, with a right checksum: an error or a plan, never a panic.
func TestDecodeSurvivesHostileSizes(t *testing.T) {
	image := mustEncode(t, planMakers[1].must(t, Uniform(2, 2), 1), 1)
	read, refused := 0, 0
	for at := 0; at < len(image); at += 4 {
		was := binary.LittleEndian.Uint32(image[at:])
		for _, w := range hostile {
			binary.LittleEndian.PutUint32(image[at:], w)
			if at != 12 {
				seal(image)
			}
			if _, err := DecodeRank(image); err == nil {
				read++
			} else {
				refused++
			}
		}
		binary.LittleEndian.PutUint32(image[at:], was)
	}
	t.Logf("%d read, %d refused", read, refused)
	if refused < read { // a small number may be right where another stood
		t.Errorf("only %d of %d damaged plans were refused", refused, read+refused)
	}
}

// FuzzDecode reads any bytes, with a right checksum half of the time.
func FuzzDecode(f *testing.F) {
	for _, m := range append(slices.Clone(planMakers), planMaker{"mlp", mlp}) {
		for _, ppn := range [][]int{{1}, {2, 1}, {1, 1, 2}} {
			p := m.must(f, World{PPN: ppn}, 1)
			for rank := range p.Ranks {
				f.Add(mustEncode(f, p, rank), true)
			}
		}
	}
	f.Add(mustEncode(f, gatedProduct(), 1), true)
	f.Add(mustEncode(f, gatherOfProducts(), 2), true)
	f.Add([]byte("MKPL"), false)
	f.Fuzz(func(t *testing.T, image []byte, sealed bool) {
		if sealed && len(image) >= headerBytes {
			seal(image)
		}
		r, err := DecodeRank(image)
		if err != nil {
			return
		}
		for _, s := range r.Spans {
			if from, to := s.At(Shape{M: 1 << 40, N: 7, K: 8}); from > to {
				t.Errorf("%v is %d to %d", s, from, to)
			}
		}
		// What an executor looks up must be there.
		size := r.World.Size()
		region := func(what string, g Region) {
			if int(g.Buffer) >= len(r.Buffers) || !g.Rows.valid() || !g.Cols.valid() {
				t.Errorf("%s: %+v", what, g)
			}
		}
		for _, queue := range r.Queues {
			for _, task := range queue {
				if int(task.Kind) >= len(kindNames) || task.Peer < 0 || task.Peer >= size {
					t.Errorf("kind %v to rank %d of %d", task.Kind, task.Peer, size)
				}
				for _, src := range task.sources() {
					region("source", src)
				}
				if task.Kind != Notify {
					region("destination", task.Dst)
				}
				if task.Kind == Compute {
					region("second operand", task.B)
				}
				for _, w := range task.Waits {
					if int(w.Flag) >= len(r.Flags) {
						t.Errorf("a wait for flag %d of %d", w.Flag, len(r.Flags))
					}
				}
				for _, s := range task.Signals {
					if int(s.Flag) >= len(r.Flags) || s.Rank < 0 || s.Rank >= size {
						t.Errorf("a signal of flag %d of %d at rank %d of %d", s.Flag, len(r.Flags), s.Rank, size)
					}
				}
			}
		}
	})
}
