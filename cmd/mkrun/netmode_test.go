package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mkrun/mkrun/internal/engine"
)

// A mode is what its flags would say, but for those that are given beside it.
func TestNetMode(t *testing.T) {
	us := time.Microsecond
	for args, want := range map[string]engine.Net{
		"":                             {Backend: "auto"},
		"--net-mode cx7":               {Backend: "emu", BandwidthGBs: 50, Latency: 2 * us},
		"--net-mode efa":               {Backend: "emu", BandwidthGBs: 50, Latency: 8 * us, Reorder: true, Jitter: 4 * us, EmuNICs: 2},
		"--net-mode cx7 --net-reorder": {Backend: "emu", BandwidthGBs: 50, Latency: 2 * us, Reorder: true},
		"--net emu --net-mode efa --net-bandwidth 0 --net-latency 1ms --net-jitter 5us": {Backend: "emu", Latency: time.Millisecond, Reorder: true, Jitter: 5 * us, EmuNICs: 2},
		"--net-mode efa --net-reorder=false --net-drop-after 3":                         {Backend: "emu", BandwidthGBs: 50, Latency: 8 * us, EmuNICs: 2, DropAfter: 3},
	} {
		got, err := netOf(args)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", args, got, err, want)
		}
	}
	for args, want := range map[string]string{
		"--net-mode cx8":           "--net-mode cx8: there are cx7, efa",
		"--net tcp --net-mode cx7": "--net-mode cx7 is a link of --net emu, not of tcp",
	} {
		var usage *usageError
		if _, err := netOf(args); !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}

func netOf(args string) (engine.Net, error) {
	var flags netFlags
	cmd := &cobra.Command{}
	flags.add(cmd, cmd.Flags())
	if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
		return engine.Net{}, err
	}
	return flags.take(cmd, 0)
}

// What a launch can be told about the network, commands that launch many times can be told too.
func TestNetworkFlagsOfAllCommands(t *testing.T) {
	launched, _, err := newRoot().Find([]string{"launch", "ag_gemm"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bench", "tune"} {
		cmd, _, err := newRoot().Find([]string{name, "ag_gemm"})
		if err != nil {
			t.Fatal(err)
		}
		launched.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Name != "wait-timeout" && flag.Name != "net" && !strings.HasPrefix(flag.Name, "net-") {
				return
			}
			if other := cmd.InheritedFlags().Lookup(flag.Name); other == nil || other.Usage != flag.Usage || other.DefValue != flag.DefValue {
				t.Errorf("%s has no --%s like that of launch: %+v", name, flag.Name, other)
			}
		})
	}
}
