// Package measure measures the links of this machine's GPUs through the CUDA data plane, for mkrun topo --measure.
package measure

import "github.com/mkrun/mkrun/internal/topology"

// Open opens the data plane library to measure with: the file given, or, for "", the one that dataplane.Find finds.
// Nothing is measured, and no driver needed, until the Meter is used.
func Open(path string) (topology.Meter, error) { return open(path) }
