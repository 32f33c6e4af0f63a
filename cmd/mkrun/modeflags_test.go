package main

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/launch"
)

// Tables of flags name flags that there are: a name that is spelt otherwise would never be refused.
func TestModeFlagsAreThere(t *testing.T) {
	var l launchFlags
	launches := &cobra.Command{}
	l.add(launches)
	tables := map[*cobra.Command][]modeFlags{
		launches:   slices.Concat(l.modes("program"), l.hosts.modes(launch.ReachAuto)),
		newBench(): (&benchFlags{}).modes(),
		newTopo():  (&topoFlags{}).modes(false),
	}
	for cmd, table := range tables {
		for _, m := range table {
			for _, name := range m.names {
				if cmd.Flags().Lookup(name) == nil && cmd.PersistentFlags().Lookup(name) == nil {
					t.Errorf("mkrun %s has no --%s", cmd.Name(), name)
				}
			}
		}
	}
}
