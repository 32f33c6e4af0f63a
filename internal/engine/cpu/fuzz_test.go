package cpu

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/mkrun/mkrun/internal/plan"
)

// FuzzFrames feeds a receiver what a peer might send. It may refuse or take it, but what it takes lands
// in the region of the task that the frame names, and nowhere else.
func FuzzFrames(f *testing.F) {
	valid := func(fr frame, data int) []byte {
		var b [frameSize]byte
		fr.encode(&b)
		return append(b[:], make([]byte, data)...)
	}
	size := int(small.M / 2 * small.K * 2)
	send := uint8(plan.RoleSend)
	f.Add(valid(frame{kind: frameTask, role: send, epoch: 1, length: uint32(size)}, size))
	f.Add(append(valid(frame{kind: frameTask, role: send, epoch: 1, length: 8}, 8), valid(frame{kind: frameTask, role: send, epoch: 1, offset: 8, length: uint32(size - 8)}, size-8)...))
	f.Add(valid(frame{kind: frameTask, role: send, task: 1, epoch: 1}, 0))
	f.Add(valid(frame{kind: frameBarrier, epoch: 1}, 0))
	f.Add(valid(frame{kind: frameBye}, 0))
	f.Add(valid(frame{kind: 7, role: 9, task: 1 << 31, epoch: 1 << 63, offset: 1 << 63, length: 1 << 31}, 0))

	j := openJob(f, agGemm(f, 1, 1, 1), small, options{})
	in := j.ranks[1].(*instance)
	f.Fuzz(func(t *testing.T, raw []byte) {
		l := newInLink(in.net, 0)
		if err := l.compile(); err != nil {
			t.Fatal(err)
		}
		memory := in.heap().mem
		for i := range memory[in.lay.landing[3]:] {
			memory[in.lay.landing[3]+int64(i)] = 0xee
		}
		r := bufio.NewReader(bytes.NewReader(raw))
		for {
			if bye, err := l.readFrame(r); bye || err != nil {
				break
			}
		}
		// Rank 0 may only write its own rows of the gathered A; those of rank 1 lie behind them.
		for i, b := range memory[in.lay.landing[3]+int64(size):] {
			if b != 0xee {
				t.Fatalf("byte %d behind the region was overwritten", i)
			}
		}
	})
}
