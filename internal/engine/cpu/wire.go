package cpu

import (
	"encoding/binary"
	"fmt"
)

// A frame is a header and, for data, bytes. It names a task of the sender's plan, never memory: the
// receiver, who has the same plan, knows where the bytes go and which flags follow. Bytes of elements
// travel in the order of x86 and ARM, little-endian.
type frame struct {
	kind   frameKind
	role   uint8
	task   uint32 // index in the role's queue of the sender; of a barrier: the round
	epoch  uint64 // of a barrier: its number
	offset uint64 // of the piece in the message
	length uint32 // of the piece
}

type frameKind uint8

const (
	frameTask    frameKind = 1 // a piece of a task's message
	frameBarrier frameKind = 2
	frameBye     frameKind = 3 // the sender closes in good order
)

const (
	frameMagic = 0x6d6b6631 // "mkf1"
	frameSize  = 32
	// maxPiece bounds the bytes of a frame, so that messages of several workers interleave.
	maxPiece = 256 << 10
	// maxReordered is the same for reordering links: about what a datagram network carries at once.
	maxReordered = 8 << 10
)

func (f frame) encode(b *[frameSize]byte) {
	binary.LittleEndian.PutUint32(b[0:], frameMagic)
	b[4], b[5], b[6], b[7] = byte(f.kind), f.role, 0, 0
	binary.LittleEndian.PutUint32(b[8:], f.task)
	binary.LittleEndian.PutUint32(b[12:], f.length)
	binary.LittleEndian.PutUint64(b[16:], f.epoch)
	binary.LittleEndian.PutUint64(b[24:], f.offset)
}

func decodeFrame(b *[frameSize]byte) (frame, error) {
	if m := binary.LittleEndian.Uint32(b[0:]); m != frameMagic {
		return frame{}, fmt.Errorf("a frame begins with %#x instead of %#x", m, uint32(frameMagic))
	}
	if b[6] != 0 || b[7] != 0 {
		return frame{}, fmt.Errorf("reserved bytes of a frame are set")
	}
	return frame{
		kind: frameKind(b[4]), role: b[5],
		task:   binary.LittleEndian.Uint32(b[8:]),
		length: binary.LittleEndian.Uint32(b[12:]),
		epoch:  binary.LittleEndian.Uint64(b[16:]),
		offset: binary.LittleEndian.Uint64(b[24:]),
	}, nil
}
