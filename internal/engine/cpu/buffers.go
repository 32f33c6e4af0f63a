package cpu

import (
	"fmt"

	"github.com/mkrun/mkrun/internal/plan"
)

// buffer is the rank's part of an input or output buffer.
func (in *instance) buffer(name string, kind plan.BufferKind) ([]uint16, error) {
	for i, b := range in.cfg.Plan.Buffers {
		if b.Name == name && b.Kind == kind {
			return in.buffers[i], nil
		}
	}
	return nil, fmt.Errorf("operator %s has no %v buffer %q", in.cfg.Plan.Operator, kind, name)
}

// SetInput implements engine.Instance.
func (in *instance) SetInput(name string, bits []uint16) error {
	b, err := in.buffer(name, plan.BufInput)
	if err != nil {
		return err
	}
	if len(bits) != len(b) {
		return fmt.Errorf("input %s of rank %d has %d elements, got %d", name, in.cfg.Rank, len(b), len(bits))
	}
	copy(b, bits)
	return nil
}

// Poison implements engine.Instance.
func (in *instance) Poison(name string) error {
	b, err := in.buffer(name, plan.BufOutput)
	if err != nil {
		return err
	}
	nan := in.cfg.DType.NaN()
	for i := range b {
		b[i] = nan
	}
	return nil
}

// Output implements engine.Instance.
func (in *instance) Output(name string) ([]uint16, error) {
	b, err := in.buffer(name, plan.BufOutput)
	if err != nil {
		return nil, err
	}
	return append([]uint16(nil), b...), nil
}
