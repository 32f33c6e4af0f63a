package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/mknet"
	"github.com/mkrun/mkrun/internal/operator"
)

// netFlags say what carries bytes between nodes, and how long is waited for them: of every command that runs operators.
type netFlags struct {
	net  engine.Net
	gid  int    // index; -1: chosen
	mode string // of mknet.Links; "": none
	wait time.Duration
}

// add adds the flags to a command, among those of fs.
func (f *netFlags) add(cmd *cobra.Command, fs *pflag.FlagSet) {
	fs.StringVar(&f.net.Backend, "net", operator.NetAuto, "what carries bytes between nodes: efa (AWS EFA), ibverbs (RDMA NICs), ofi (a provider of libfabric), emu (a software NIC, on one host), tcp, or auto: the first that all ranks have")
	_ = cmd.RegisterFlagCompletionFunc("net", cobra.FixedCompletions(operator.Nets[1:], cobra.ShellCompDirectiveNoFileComp))
	fs.StringVar(&f.net.Devices, "net-devices", "", "NICs of every rank in rail order, as in mlx5_0,mlx5_1:2 (default: those nearest to the rank's GPU or CPUs)")
	fs.StringVar(&f.net.Provider, "net-provider", "", "ofi: provider of libfabric, as in efa or tcp (default: the first that has NICs, else tcp)")
	fs.IntVar(&f.gid, "net-gid", -1, "index in the GID table of RoCE NICs (default: chosen by type and address)")
	rdma := &f.net.RDMA
	fs.IntVar(&rdma.QueuePairs, "net-qps", 0, "queue pairs per peer and NIC, at most 8 (0: one)")
	fs.IntVar(&rdma.MTU, "net-mtu", 0, "largest path MTU of RDMA NICs in bytes: 256, 512, 1024, 2048 or 4096 (0: what both ports have)")
	fs.IntVar(&rdma.TrafficClass, "net-traffic-class", 0, "traffic class of RoCE packets, 0 to 255: that of the fabric's lossless queue")
	fs.IntVar(&rdma.ServiceLevel, "net-service-level", 0, "service level of RDMA packets, 0 to 15")
	fs.DurationVar(&rdma.DeadPeer, "net-dead-peer", 0, "a peer whose NIC does not answer for so long is gone (0: 7.5s; devices may take four times as long)")
	fs.IntVar(&rdma.Retries, "net-retries", 0, "retries of a packet within that time, 1 to 6 (0: 6)")
	fs.IntVar(&rdma.RNRRetries, "net-rnr-retries", 0, "retries when a peer has no receive posted, 1 to 6, or 7: until --wait-timeout (0: 6)")
	fs.BoolVar(&rdma.Relaxed, "net-relaxed", false, "let RDMA NICs write data in relaxed PCIe order; flags then come by immediate")
	fs.Float64Var(&f.net.BandwidthGBs, "net-bandwidth", 0, "emulated bandwidth between nodes, GB/s per rank and direction (0: not limited)")
	fs.DurationVar(&f.net.Latency, "net-latency", 0, "emulated latency of each message between nodes, e.g. 50us")
	fs.BoolVar(&f.net.Reorder, "net-reorder", false, "deliver the pieces of messages between nodes out of order (seeded by --seed)")
	fs.DurationVar(&f.net.Jitter, "net-jitter", 0, "with --net-reorder: up to so much is added to the latency of each piece (0: 300us)")
	fs.Uint64Var(&f.net.DropAfter, "net-drop-after", 0, "emu: the message with this number of each NIC is lost, which is an error (0: none)")
	fs.StringVar(&f.mode, "net-mode", "", "emu: a link as of a kind of NIC: cx7 (in order, 50 GB/s, 2us) or efa (out of order, two NICs with 50 GB/s together, 8us to 12us); other flags go before it")
	fs.DurationVar(&f.wait, "wait-timeout", 20*time.Second, "bound of every single wait of a rank for a flag or a peer")
	_ = cmd.RegisterFlagCompletionFunc("net-mode", cobra.FixedCompletions(slices.Sorted(maps.Keys(mknet.Links)), cobra.ShellCompDirectiveNoFileComp))
}

// take is what the flags say, with the emulated link that --net-mode names but for what other flags say. The seed is that of the
// reordering.
func (f *netFlags) take(cmd *cobra.Command, seed uint64) (engine.Net, error) {
	net := f.net
	net.GID, net.Seed = f.gid+1, seed
	if f.mode == "" {
		return net, nil
	}
	link, ok := mknet.Links[f.mode]
	given := cmd.Flags().Changed
	switch {
	case !ok:
		return net, &usageError{cmd.CommandPath(), fmt.Errorf("--net-mode %s: there are %s", f.mode, strings.Join(slices.Sorted(maps.Keys(mknet.Links)), ", "))}
	case !given("net"):
		net.Backend = "emu"
	case net.Backend != "emu":
		return net, &usageError{cmd.CommandPath(), fmt.Errorf("--net-mode %s is a link of --net emu, not of %s", f.mode, net.Backend)}
	}
	net.EmuNICs = link.EmuNICs
	if !given("net-bandwidth") {
		net.BandwidthGBs = link.BandwidthGBs
	}
	if !given("net-latency") {
		net.Latency = link.Latency
	}
	if !given("net-reorder") {
		net.Reorder = link.Reorder
	}
	if !given("net-jitter") && net.Reorder {
		net.Jitter = link.Jitter
	}
	return net, nil
}
