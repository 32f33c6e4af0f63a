package request

import (
	"fmt"
	"path/filepath"

	"github.com/mkrun/mkrun/internal/dataplane"
)

// ChooseEngine says which engine a value of --engine means on this host, and why.
func ChooseEngine(name string) (engine, why string, err error) {
	switch name {
	case "cpu":
		return "cpu", "asked for", nil
	case "auto":
		why := "the CUDA data plane does not execute plans in this version"
		if missing := cudaMissing(); missing != nil {
			why = missing.Error()
		}
		return "cpu", why, nil
	case "cuda":
		if err := cudaMissing(); err != nil {
			return "", "", fmt.Errorf("--engine cuda: %w; 'mkrun doctor' says more; --engine cpu runs the same plans", err)
		}
		return "", "", fmt.Errorf("--engine cuda: the data plane is here, but this version of mkrun executes plans on CPUs only; use --engine cpu")
	}
	return "", "", fmt.Errorf("unknown engine %q; known: auto, cpu, cuda", name)
}

// cudaMissing says what the CUDA engine would need and does not find.
func cudaMissing() error {
	devices, err := filepath.Glob("/dev/nvidia[0-9]*")
	if err != nil {
		return fmt.Errorf("looking for GPUs: %w", err)
	}
	if len(devices) == 0 {
		return fmt.Errorf("no GPU: looked for /dev/nvidia0 and the like")
	}
	if _, err := dataplane.Find(); err != nil {
		return fmt.Errorf("no CUDA data plane: %w", err)
	}
	return nil
}
