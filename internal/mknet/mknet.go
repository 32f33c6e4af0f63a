// Package mknet is the inter-node library, libmknet.so, opened at run time: writes with flags between the memories of
// ranks on different nodes, over the NIC backends that cuda/net has. Commands are pushed without a call into C.
package mknet

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Library is the file name of the library.
const Library = "libmknet.so"

// Preferred are the backends that "auto" tries, in this order.
var Preferred = []string{"efa", "ibverbs", "ofi"}

// Options describe a rank's network; see mknet_desc in cuda/include/mknet.h.
type Options struct {
	Backend     string
	Rank, World int
	Job         uint64        // the same on all ranks of a job, and of no other
	Timeout     time.Duration // of a command
	CPUs        string        // where the proxy thread runs, as in "0-7,16"; "": anywhere
	Rails       string        // number of each NIC's rail, as in "2,3"; "": their positions
	Emu         Emu
	RDMA        RDMA
	OFI         OFI
}

// Emu is the link that the backend emu emulates.
type Emu struct {
	Bandwidth float64 // of each NIC, bytes per second; 0: as fast as memory
	Latency   time.Duration
	Jitter    time.Duration // unordered links only
	NICs      int           // 0: one
	Unordered bool
	Piece     int // largest message in bytes; 0: the library's choice
	Seed      uint64
	DropAfter uint64 // the message with this number of each NIC, from 1, is lost; 0: none
}

// RDMA are settings of the backends ibverbs and efa. Zero values: chosen.
type RDMA struct {
	Devices      string // NICs in rail order, separated by commas, each NAME or NAME:PORT
	Library      string // libibverbs to load, or libefa
	EFAHome      string // EFA installation whose libraries are found first, libfabric too
	GID          int    // 1 + index in the GID table
	QueuePairs   int    // per peer and NIC
	MTU          int    // largest path MTU in bytes
	TrafficClass int
	ServiceLevel int
	Timeout      int // 4.096 us x 2^Timeout
	Retries      int
	RNRRetries   int
	Relaxed      bool // ordering of data
}

// OFI says which of libfabric's providers carries the backend ofi. Zero values: chosen.
type OFI struct {
	Provider            string // as in fi_info -l
	Devices             string // domains in rail order, separated by commas
	Address             string // of this host, for providers over IP that are no NICs
	Library             string // libfabric to load
	FirstPort, LastPort int    // where such providers listen; 0: anywhere
	Hardware            bool   // NICs only, no provider in software
}

// Command is a write of rows x bytes from a region to a peer's heap, and the flag that follows; see mknet_command.
type Command struct {
	Region       uint8
	Peer         uint16
	Rows         uint32
	Source       uint64
	Target       uint64
	Bytes        uint64 // of a row
	Flag         uint64 // offset in the peer's heap, or NoFlag
	Value        uint64
	SourceStride uint32
	TargetStride uint32
}

// NoFlag is the Flag of a command that raises none.
const NoFlag = ^uint64(0)

// Path is the library to open, if set before the first call; else Find finds it. Tests, whose binaries lie elsewhere, set it.
var Path string

// VerbsPath is the libibverbs to load, if set; tests set it.
var VerbsPath string

// Find returns the path of the library: beside the mkrun binary, in ../build (a source tree) or in ../lib from there.
func Find() (string, error) {
	if Path != "" {
		return Path, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the folder of the mkrun binary: %w", err)
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real
	}
	return find(filepath.Dir(exe))
}

func find(dir string) (string, error) {
	for _, d := range []string{dir, filepath.Join(dir, "../build"), filepath.Join(dir, "../lib")} {
		path := filepath.Join(d, Library)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is neither in %s nor in ../build or ../lib from there: make net builds it", Library, dir)
}
