package cpu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/mknet"
	"github.com/mkrun/mkrun/internal/plan"
)

// fabric is a rank's way to ranks of other nodes through the inter-node library: NICs, or the software NIC of emu, write
// straight into the peers' heaps, and raise their flags.
type fabric struct {
	in      *instance
	net     *mknet.Net
	peers   []int // that this rank sends to, or that send to it
	sources map[plan.BufferID]*source
	text    string // what it is made of
	closing atomic.Bool
	wg      sync.WaitGroup
}

// source is a buffer that is sent from and not in the heap: registered memory, which is not Go's.
type source struct {
	region uint8
	mem    []byte
}

// nicPoll is how long a waiter sleeps between two looks at a flag that a NIC may raise, since a NIC wakes nobody.
const nicPoll = 100 * time.Microsecond

// newFabric opens the backend and registers the heap and what is sent from.
func newFabric(in *instance, backend string, job uint64, heapFile *os.File) (*fabric, error) {
	f := &fabric{in: in, sources: map[plan.BufferID]*source{}}
	o, err := mknet.OptionsFor(in.cfg, backend, job)
	if err != nil {
		return nil, err
	}
	if f.net, err = ask(in.patience(), "opens devices", func() (*mknet.Net, error) { return mknet.Open(o) }); err != nil {
		return nil, fmt.Errorf("rank %d, --net %s: %w", in.cfg.Rank, backend, err)
	}
	if err := f.register(heapFile); err != nil {
		return nil, errors.Join(fmt.Errorf("rank %d, --net %s: %w", in.cfg.Rank, backend, err), f.close())
	}
	w := in.cfg.Plan.World
	for rank := range w.Size() {
		if !w.SameNode(rank, in.cfg.Rank) && (talksTo(in.cfg.Plan, in.cfg.Rank, rank) || talksTo(in.cfg.Plan, rank, in.cfg.Rank)) {
			f.peers = append(f.peers, rank)
		}
	}
	in.heap().poll = nicPoll
	return f, nil
}

func (f *fabric) register(heapFile *os.File) error {
	p, me := f.in.cfg.Plan, f.in.cfg.Rank
	if _, err := f.net.Register(f.in.heap().mem, heapFile); err != nil {
		return fmt.Errorf("registering the heap: %w", err)
	}
	for _, t := range p.Ranks[me].Queues[plan.RoleSend] {
		id := t.Src.Buffer
		if t.Kind != plan.Send || p.Buffers[id].InHeap() || f.sources[id] != nil {
			continue
		}
		b := &p.Buffers[id]
		bytes := b.RowSpan(me, p.World.Size()).Len(f.in.cfg.Shape) * f.in.cfg.Shape.Of(b.Cols) * b.Elem.Size(f.in.cfg.DType.Size())
		if bytes == 0 {
			continue
		}
		mem, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return fmt.Errorf("%d bytes for buffer %s: %w", bytes, b.Name, err)
		}
		s := &source{mem: mem}
		f.sources[id] = s
		if s.region, err = f.net.Register(mem, nil); err != nil {
			return fmt.Errorf("registering buffer %s: %w", b.Name, err)
		}
	}
	return nil
}

// memory is a buffer's registered memory, nil for buffers that are not sent from.
func (f *fabric) memory(id plan.BufferID) []uint16 {
	if f == nil || f.sources[id] == nil {
		return nil
	}
	mem := f.sources[id].mem
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/2)
}

// connect connects the peers by their endpoint data, meets all ranks, and sends a probe over every connection.
func (f *fabric) connect(ctx context.Context, common, own [][]byte) error {
	for _, rank := range f.peers {
		if err := f.net.Connect(rank, common[rank], own[rank]); err != nil {
			return err
		}
	}
	if err := f.in.cfg.Bootstrap.Barrier(ctx); err != nil {
		return fmt.Errorf("waiting until all ranks have connected: %w", err)
	}
	if err := f.net.Start(); err != nil {
		return err
	}
	f.text = f.net.Describe()
	if why := f.in.cfg.NICs.Rule; why != "" && mknet.ChoosesNear(f.in.cfg.Net, f.in.chosen.backend) {
		f.text += "; why these NICs: " + why
	}
	f.wg.Go(f.watch)
	return f.net.Verify(f.in.cfg.WaitTimeout)
}

// watch aborts the instance when the network fails.
func (f *fabric) watch() {
	for {
		err := f.net.Status(time.Second)
		if f.closing.Load() {
			return
		}
		if err != nil {
			f.in.Abort(&engine.NetError{Rank: f.in.cfg.Rank, Err: err})
			return
		}
	}
}

func (f *fabric) interrupt(reason error) {
	text := "aborted"
	if reason != nil {
		text = reason.Error()
	}
	f.net.Abort(text)
}

// farewell lets what is under way arrive.
func (f *fabric) farewell() { _ = f.net.Drain(time.Second) }

func (f *fabric) close() error {
	f.closing.Store(true)
	err := f.net.Close()
	f.wg.Wait()
	for _, s := range f.sources {
		err = errors.Join(err, unix.Munmap(s.mem))
	}
	f.sources = nil
	return err
}

// barrier tells the first rank of another node that this node has come to a barrier.
func (f *fabric) barrier(to, round int, number uint64) error {
	c := mknet.Command{Peer: uint16(to), Flag: uint64(offRounds + round*cellSize), Value: number}
	_, err := f.net.Push(c, time.Now().Add(f.in.cfg.WaitTimeout))
	return f.in.explain(err)
}

// remote is what a task says to one peer: a command for its bytes and first flag, and others for further flags.
type remote struct {
	f        *fabric
	commands []mknet.Command
	bytes    int64
}

// message prepares what a task says to a rank of another node.
func (f *fabric) message(t *task, peer int) (*remote, error) {
	m := &remote{f: f}
	first := mknet.Command{Peer: uint16(peer), Flag: mknet.NoFlag}
	if t.plan.Kind == plan.Send && t.plan.Peer == peer && t.src.size() > 0 {
		if err := f.place(&first, t, peer); err != nil {
			return nil, err
		}
		m.bytes = t.src.size()
	}
	m.commands = append(m.commands, first)
	for _, s := range t.plan.Signals {
		if s.Rank != peer {
			continue
		}
		at := uint64(f.in.lay.flags + int64(s.Flag)*cellSize)
		if last := &m.commands[len(m.commands)-1]; last.Flag == mknet.NoFlag {
			last.Flag = at
		} else {
			m.commands = append(m.commands, mknet.Command{Peer: uint16(peer), Flag: at})
		}
	}
	return m, nil
}

// place fills in where the bytes are and where they go.
func (f *fabric) place(c *mknet.Command, t *task, peer int) error {
	in := f.in
	src, srcStride, err := in.offset(in.cfg.Rank, t.plan.Src)
	if err != nil {
		return err
	}
	dst, dstStride, err := in.offset(peer, t.plan.Dst)
	if err != nil {
		return err
	}
	if srcStride > math.MaxUint32 || dstStride > math.MaxUint32 {
		return fmt.Errorf("rows of %d and %d bytes; up to 4 GiB - 1 can be sent", srcStride, dstStride)
	}
	if s := f.sources[t.plan.Src.Buffer]; s != nil {
		c.Region = s.region
	} else {
		src += in.lay.landing[t.plan.Src.Buffer]
	}
	if in.lay.landing[t.plan.Dst.Buffer] < 0 {
		return fmt.Errorf("sends into buffer %s, which is not in the heap", in.cfg.Plan.Buffers[t.plan.Dst.Buffer].Name)
	}
	c.Rows, c.Bytes = uint32(t.src.rows), uint64(2*t.src.cols)
	c.Source, c.SourceStride = uint64(src), uint32(srcStride)
	c.Target, c.TargetStride = uint64(dst+in.lay.landing[t.plan.Dst.Buffer]), uint32(dstStride)
	return nil
}

// offset is where a region begins in a rank's part of its buffer, and the distance of its rows, in bytes.
func (in *instance) offset(rank int, r plan.Region) (at, stride int64, err error) {
	p, shape := in.cfg.Plan, in.cfg.Shape
	b := &p.Buffers[r.Buffer]
	first, last := b.RowSpan(rank, p.World.Size()).At(shape)
	row0, row1 := r.Rows.At(shape)
	col0, _ := r.Cols.At(shape)
	if row0 < first || row1 > last {
		return 0, 0, fmt.Errorf("rows [%d,%d) are not within rank %d's part of buffer %s, rows [%d,%d)", row0, row1, rank, b.Name, first, last)
	}
	elem := b.Elem.Size(in.cfg.DType.Size())
	stride = shape.Of(b.Cols) * elem
	return (row0-first)*stride + col0*elem, stride, nil
}

// send implements sender: it returns when the task's source may be reused. A flag after the first is raised when the bytes
// are in place, so it waits for them.
func (m *remote) send(_ *task, epoch uint64) (int64, error) {
	deadline := time.Now().Add(m.f.in.cfg.WaitTimeout)
	for i := range m.commands {
		c := m.commands[i]
		c.Value = epoch
		position, err := m.f.net.Push(c, deadline)
		if err == nil && (m.bytes > 0 || i+1 < len(m.commands)) {
			err = m.f.net.Flush(int(c.Peer), position, deadline)
		}
		if err != nil {
			return 0, m.f.in.explain(err)
		}
	}
	return m.bytes, nil
}

// explain turns an error of the network into what the rank reports: the abort, if that is why.
func (in *instance) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case in.aborted() != nil:
		return errAborted
	}
	return &engine.NetError{Rank: in.cfg.Rank, Err: err}
}

// jobOf makes the number of a job and its opening from what every rank drew.
func jobOf(nonces []uint64) uint64 {
	h := fnvOffset
	var b [8]byte
	for _, n := range nonces {
		binary.LittleEndian.PutUint64(b[:], n)
		for _, c := range b {
			h = (h ^ uint64(c)) * fnvPrime
		}
	}
	return h
}

const fnvOffset, fnvPrime = uint64(0xcbf29ce484222325), uint64(0x100000001b3)
