// Package engine is what an operator run needs from whoever executes plans: the CPU engine
// (engine/cpu) or the CUDA data plane. One process drives one rank.
package engine

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/ports"
)

// Net says what carries bytes between nodes, and describes the emulated link of the backends tcp and emu. Zero values
// mean tcp, as fast as the host is, in order.
type Net struct {
	Backend      string        `json:"backend,omitempty"`  // auto, efa, ibverbs, ofi, emu or tcp; "" = tcp
	Devices      string        `json:"devices,omitempty"`  // NICs in rail order, separated by commas; "" = all that can be used
	Provider     string        `json:"provider,omitempty"` // of libfabric, for ofi; "" = chosen
	GID          int           `json:"gid,omitempty"`      // 1 + index in the GID table of a RoCE NIC; 0 = chosen
	RDMA         RDMA          `json:"rdma,omitzero"`
	BandwidthGBs float64       `json:"bandwidth_gbs"`        // per rank and direction, GB/s (1e9 bytes)
	Latency      time.Duration `json:"latency"`              // added to every message
	Reorder      bool          `json:"reorder"`              // deliver the pieces of messages out of order
	Jitter       time.Duration `json:"jitter,omitempty"`     // by which such a piece may be late; 0 = the backend's
	EmuNICs      int           `json:"emu_nics,omitempty"`   // emu: NICs of a rank, which share its bandwidth; 0 = one
	DropAfter    uint64        `json:"drop_after,omitempty"` // emu: the message with this number of each NIC, from 1, is lost, which is an error; 0 = none
	Seed         uint64        `json:"seed"`                 // of the reordering
}

// Emulates reports whether a link is asked for that is emulated.
func (n Net) Emulates() bool {
	return n.BandwidthGBs != 0 || n.Latency != 0 || n.Reorder || n.Jitter != 0 || n.OfEmu()
}

// OfEmu reports whether something is asked for that only the backend emu emulates.
func (n Net) OfEmu() bool { return n.EmuNICs != 0 || n.DropAfter != 0 }

// RDMA is how queue pairs are set up. Zero values: as the library chooses.
type RDMA struct {
	QueuePairs   int           `json:"queue_pairs,omitempty"`   // per peer and NIC
	MTU          int           `json:"mtu,omitempty"`           // largest path MTU in bytes
	TrafficClass int           `json:"traffic_class,omitempty"` // RoCE
	ServiceLevel int           `json:"service_level,omitempty"`
	DeadPeer     time.Duration `json:"dead_peer,omitempty"`   // a peer that does not answer for so long is gone
	Retries      int           `json:"retries,omitempty"`     // of a packet, within that time
	RNRRetries   int           `json:"rnr_retries,omitempty"` // when a peer has no receive posted; 7: without end
	Relaxed      bool          `json:"relaxed,omitempty"`     // relaxed ordering of data
}

// NICs are those near a rank, as its agent found them; the zero value where nobody looked.
type NICs struct {
	Devices   []string // RDMA devices
	Rails     []int    // their numbers, the same on nodes of the same build; nil: not known
	Rule      string   // why these
	ProxyCPUs string   // where the thread that drives them runs, as 0-7,16; "": anywhere
}

// CUDA is what only the CUDA engine is told. What is 0 or "" the data plane chooses by shape; all ranks are told the same.
// Of Config, Workers[compute] are the CTAs that a kernel has in all, Workers[intra] those of them that also push (mover
// sm), and Tile, the columns of a tile: 128 or 256, of 128 rows, or 32 or 64, of 64 rows, where no rank has more.
type CUDA struct {
	Mover       string `json:"mover,omitempty"`        // who moves bytes inside a node: sm or ce
	Cluster     int    `json:"cluster,omitempty"`      // CTAs that load operands for each other: 1 or 2
	RasterGroup int    `json:"raster_group,omitempty"` // tiles of M that are walked together
	PushGroup   int    `json:"push_group,omitempty"`   // sm: blocks of rows that are announced together
	RowBlock    int    `json:"row_block,omitempty"`    // ce: rows of a copy, 128 times a power of two
	KBlock      int    `json:"k_block,omitempty"`      // ce: columns of a copy, 64 times a power of two
	SplitK      int    `json:"split_k,omitempty"`      // parts of K that different CTAs take; with tiles of 128 columns
	ShareGPUs   bool   `json:"share_gpus,omitempty"`   // ranks may share a GPU
}

// Config is everything an engine is told when a rank opens it.
type Config struct {
	Rank        int
	Plan        *plan.Plan // already verified
	Shape       plan.Shape
	DType       DType
	Workers     [plan.NumRoles]int // that start in each role: goroutines, >= 1 each (CPU), or CTAs, 0 = the engine's choice (CUDA)
	Tile        int                // rows and columns of the square a compute worker finishes at once; 0 = the engine's default
	CUDA        CUDA               // for the CUDA engine only
	Device      int                // the rank's GPU, among those that this process sees
	Net         Net
	NICs        NICs
	Ports       ports.Range   // to take them on
	ListenAddr  string        // IP address (no port) where this rank takes connections of other nodes; "" = 127.0.0.1
	WaitTimeout time.Duration // bound of every single wait for a flag or a peer
	Bootstrap   Bootstrap
}

// Host is the address where a rank takes connections of other nodes.
func (c *Config) Host() string { return cmp.Or(c.ListenAddr, "127.0.0.1") }

// Bootstrap connects the ranks of a job before their engines can talk to each other. The session
// implements it for launched ranks; tests and the in-process mode implement it in memory.
// All methods are collective in the sense that a rank must not Get before its own Fence returned.
type Bootstrap interface {
	// Put publishes endpoint data (addresses, keys, queue pairs; opaque to the session): to == Everyone for the
	// part that all ranks may read, or one rank for the part that only it may.
	Put(ctx context.Context, to int, blob []byte) error
	// Fence returns when every rank has called it; afterwards all that was Put can be read.
	Fence(ctx context.Context) error
	// Get returns what rank `from` put for everyone, and what it put for the calling rank (nil if nothing).
	Get(ctx context.Context, from int) (common, private []byte, err error)
	// ShareFile offers an open file (heap memory) to the ranks of this node under a name.
	ShareFile(ctx context.Context, name string, f *os.File) error
	// PeerFile returns the file that a rank of this node shared, waiting until it did. The caller closes it.
	PeerFile(ctx context.Context, rank int, name string) (*os.File, error)
	// Barrier returns when every rank of the job has entered it. Calls are matched by their order.
	Barrier(ctx context.Context) error
}

// NetError is a failure of the network between nodes as seen by one rank: of a NIC, a queue pair, a path.
type NetError struct {
	Rank int
	Err  error
}

func (e *NetError) Error() string { return fmt.Sprintf("rank %d: network: %v", e.Rank, e.Err) }

func (e *NetError) Unwrap() error { return e.Err }

// Networked is an instance that can say what carries its bytes between nodes, and why.
type Networked interface {
	Network() (name, why string)
}

// Everyone addresses the common part of a rank's endpoint data.
const Everyone = -1

// Engine opens ranks.
type Engine interface {
	Name() string // "cpu" or "cuda", as in --engine
	// Open makes the rank's heap, connects it to its peers and returns when Run may be called.
	Open(ctx context.Context, cfg Config) (Instance, error)
}

// MemoryEstimator is an engine that can tell, before anything starts, how much host memory it will take.
type MemoryEstimator interface {
	// HostMemory is the number of bytes that Open allocates for a rank. Of cfg, it needs Rank, Plan, Shape,
	// DType, Workers and Tile. Sizes that overflow are an error.
	HostMemory(cfg Config) (int64, error)
}

// Instance is one rank's open operator. It is used by one goroutine, except Abort and Close.
type Instance interface {
	// SetInput copies raw elements (row-major bits of the dtype) into the rank's part of an input buffer.
	SetInput(buffer string, bits []uint16) error
	// Poison fills an output buffer with NaN.
	Poison(buffer string) error
	// Output copies the rank's part of an output buffer out.
	Output(buffer string) ([]uint16, error)
	// Sync lines all ranks up right before a timed call (a device-side or shared-memory barrier,
	// much tighter than Bootstrap.Barrier).
	Sync(ctx context.Context) error
	// Run executes the plan once: one epoch. It returns when the rank's outputs are complete and its inputs may be reused.
	Run(ctx context.Context) (Stats, error)
	// Abort makes a Run in progress, and all later ones, return at once with the reason. Safe from any goroutine.
	Abort(reason error)
	// Close frees everything. Peers may still be reading: it is called only after a barrier or an abort.
	Close() error
}

// Queuer is an instance on a device that runs behind the host: it can time calls that follow one another there, as
// an application's do.
type Queuer interface {
	// Queue runs the plan a number of times, as Sync and Run in turns would, but waits for the device at the end only.
	Queue(ctx context.Context, calls int) ([]Stats, error)
}

// Chooser is an instance that fills in settings that were left to it.
type Chooser interface {
	// Settings are those in use, by their names in results.
	Settings() map[string]any
}

// Stats is what one Run did on one rank.
type Stats struct {
	Time       time.Duration                // from the end of Sync to the end of the call: by the device's clock, where there is one
	IntraBytes int64                        // written by this rank to ranks of its node
	InterBytes int64                        // written by this rank to ranks of other nodes
	Waited     [plan.NumRoles]time.Duration // for flags, by a worker of each role: the mean over those that have it
	Host       time.Duration                // of the caller's thread, where a device does the work
	Launches   int                          // kernels and copies that the caller's thread started for it, where a device does
}

// WaitError is a wait that was not satisfied in time: what was waited for, what was seen, and who owes it.
type WaitError struct {
	Rank    int    // who waited
	Role    string // in which role
	Task    string // doing what
	Flag    string // name of the flag
	Seen    uint64
	Wanted  uint64
	Signals string // which rank and task should have raised it
	Owing   []int  // the ranks among them, in ascending order; nil: not known
	After   time.Duration
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("rank %d waited %v in %s (%s) for flag %q: seen %d, wanted %d; %s should have raised it",
		e.Rank, e.After, e.Role, e.Task, e.Flag, e.Seen, e.Wanted, e.Signals)
}

// PeerError is the loss of another rank as seen from this one. The peer usually has a better story to
// tell: whoever looks for the cause of a failure should prefer its report to this one.
type PeerError struct {
	Rank int // who saw it
	Peer int // who is gone; -1: some rank, which says so itself
	Err  error
}

func (e *PeerError) Error() string {
	if e.Peer < 0 {
		return fmt.Sprintf("rank %d was stopped by another: %v", e.Rank, e.Err)
	}
	return fmt.Sprintf("rank %d lost its connection to rank %d: %v", e.Rank, e.Peer, e.Err)
}

func (e *PeerError) Unwrap() error { return e.Err }
