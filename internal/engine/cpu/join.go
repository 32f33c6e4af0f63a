package cpu

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// endpoint is the common part of a rank's endpoint data.
type endpoint struct {
	Digest  string `json:"digest"`            // of plan, shape and dtype
	Address string `json:"address,omitempty"` // where it listens for ranks of other nodes
	Heap    string `json:"heap,omitempty"`    // key of its heap, when all ranks are in one process
	Net     []byte `json:"net,omitempty"`     // of its NICs
}

func (in *instance) open(ctx context.Context) error {
	p, me := in.cfg.Plan, in.cfg.Rank
	sum, err := digest(in.cfg)
	if err != nil {
		return err
	}
	mine := endpoint{Digest: fmt.Sprintf("%x", sum)}
	// Every open of a job gets names of its own; all ranks open in the same order.
	name := "heap-" + strconv.FormatUint(in.engine.opens.Add(1), 10)
	if in.chosen, err = in.chooseNet(ctx); err != nil {
		return err
	}
	var file *os.File // of the heap
	if in.engine.local && in.chosen.backend == NetTCP {
		in.heaps[me] = newLocalHeap(in.lay, digest64(sum))
	} else if in.heaps[me], file, err = newMappedHeap(in.lay, digest64(sum)); err != nil {
		return err
	}
	if in.engine.local {
		in.heaps[me].sharedInProcess()
		in.key = rand.Text()
		mine.Heap = in.key
		in.engine.heaps.Store(in.key, in.heaps[me])
	}
	err = in.openNet(&mine, file)
	if err == nil && file != nil && !in.engine.local {
		if err = in.cfg.Bootstrap.ShareFile(ctx, name, file); err != nil {
			err = fmt.Errorf("sharing the heap with the ranks of the node: %w", err)
		}
	}
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return err
	}
	peers, keys, err := in.exchange(ctx, mine)
	if err != nil {
		return err
	}
	for rank := range peers {
		if rank == me || !p.World.SameNode(rank, me) {
			continue
		}
		if in.heaps[rank], err = in.peerHeap(ctx, rank, name, peers[rank].Heap, digest64(sum)); err != nil {
			return fmt.Errorf("mapping the heap of rank %d: %w", rank, err)
		}
	}
	in.buffers = make([][]uint16, len(p.Buffers))
	for i := range p.Buffers {
		b := &p.Buffers[i]
		n := b.RowSpan(me, p.World.Size()).Len(in.cfg.Shape) * in.cfg.Shape.Of(b.Cols)
		sent := in.fabric.memory(plan.BufferID(i))
		switch {
		case b.Kind == plan.BufLanding:
		case sent != nil:
			in.buffers[i] = sent
		case b.InHeap():
			in.buffers[i] = in.heap().elements(in.lay.landing[i], n)
		default:
			in.buffers[i] = make([]uint16, n)
		}
	}
	if err := in.compile(); err != nil {
		return err
	}
	if in.fabric != nil {
		common := make([][]byte, len(peers))
		for rank := range peers {
			common[rank] = peers[rank].Net
		}
		return in.fabric.connect(ctx, common, keys)
	}
	return in.connectTCP(ctx, peers, keys)
}

// openNet opens what carries bytes between nodes, and adds the rank's endpoint.
func (in *instance) openNet(mine *endpoint, heapFile *os.File) (err error) {
	if in.chosen.backend != NetTCP {
		if in.fabric, err = newFabric(in, in.chosen.backend, in.chosen.job, heapFile); err == nil {
			mine.Net, err = in.fabric.net.Endpoint(engine.Everyone)
		}
		return err
	}
	if in.net, err = newNetwork(in); err != nil {
		return err
	}
	if in.net.listener != nil {
		mine.Address = in.net.listener.Addr().String()
	}
	return nil
}

func (in *instance) connectTCP(ctx context.Context, peers []endpoint, keys [][]byte) error {
	for _, l := range in.net.inward {
		if err := l.compile(); err != nil {
			return err
		}
	}
	err := in.net.connect(ctx, func(rank int) (string, *linkKey, error) {
		if _, _, err := net.SplitHostPort(peers[rank].Address); err != nil {
			return "", nil, fmt.Errorf("rank %d published no address to connect to: %w", rank, err)
		}
		if len(keys[rank]) != len(linkKey{}) {
			return "", nil, fmt.Errorf("rank %d gave rank %d no key for its connection", rank, in.cfg.Rank)
		}
		return peers[rank].Address, (*linkKey)(keys[rank]), nil
	})
	if err != nil {
		return err
	}
	in.net.start()
	return nil
}

// exchange publishes the own endpoint and reads those of all ranks, with the keys meant for this one.
func (in *instance) exchange(ctx context.Context, mine endpoint) ([]endpoint, [][]byte, error) {
	boot, size := in.cfg.Bootstrap, in.cfg.Plan.World.Size()
	blob, err := json.Marshal(mine)
	if err != nil {
		return nil, nil, err
	}
	if err := boot.Put(ctx, engine.Everyone, blob); err != nil {
		return nil, nil, fmt.Errorf("publishing the endpoint: %w", err)
	}
	if err := in.putPrivate(ctx); err != nil {
		return nil, nil, err
	}
	if err := boot.Fence(ctx); err != nil {
		return nil, nil, fmt.Errorf("waiting for the endpoints of all ranks: %w", err)
	}
	peers, keys := make([]endpoint, size), make([][]byte, size)
	for rank := range size {
		common, private, err := boot.Get(ctx, rank)
		if err != nil {
			return nil, nil, fmt.Errorf("endpoint of rank %d: %w", rank, err)
		}
		if err := json.Unmarshal(common, &peers[rank]); err != nil {
			return nil, nil, fmt.Errorf("endpoint of rank %d: %w", rank, err)
		}
		if peers[rank].Digest != mine.Digest {
			return nil, nil, fmt.Errorf("rank %d runs another plan, shape or dtype than rank %d (digest %.12s, not %.12s); are both of one build?",
				rank, in.cfg.Rank, peers[rank].Digest, mine.Digest)
		}
		keys[rank] = private
	}
	return peers, keys, nil
}

// putPrivate publishes what only one peer may know: the key of its connection, or NIC endpoints with memory keys.
func (in *instance) putPrivate(ctx context.Context) error {
	private := map[int][]byte{}
	if in.fabric != nil {
		for _, rank := range in.fabric.peers {
			blob, err := in.fabric.net.Endpoint(rank)
			if err != nil {
				return fmt.Errorf("endpoint for rank %d: %w", rank, err)
			}
			private[rank] = blob
		}
	} else {
		for rank, l := range in.net.inward {
			private[rank] = l.key[:]
		}
	}
	for rank, blob := range private {
		if err := in.cfg.Bootstrap.Put(ctx, rank, blob); err != nil {
			return fmt.Errorf("publishing what rank %d must know: %w", rank, err)
		}
	}
	return nil
}

func (in *instance) peerHeap(ctx context.Context, rank int, name, key string, digest uint64) (*heap, error) {
	if in.engine.local {
		h, ok := in.engine.heaps.Load(key)
		if !ok {
			return nil, errors.New("it was not opened by this engine")
		}
		return h.(*heap), nil
	}
	f, err := in.cfg.Bootstrap.PeerFile(ctx, rank, name)
	if err != nil {
		return nil, err
	}
	h, err := openMappedHeap(f, in.lay, digest)
	return h, errors.Join(err, f.Close())
}

// digest identifies what all ranks must agree on.
func digest(cfg engine.Config) ([]byte, error) {
	h := sha256.New()
	sum, err := cfg.Plan.Digest()
	if err != nil {
		return nil, err
	}
	_, _ = h.Write(sum) // a hash takes everything
	for _, n := range []int64{cfg.Shape.M, cfg.Shape.N, cfg.Shape.K, int64(cfg.DType)} {
		_ = binary.Write(h, binary.LittleEndian, n)
	}
	return h.Sum(nil), nil
}
