//go:build !cgo

package doctor

// openNVML says that this binary cannot ask: go-nvml needs cgo.
func openNVML() gpuState { return gpuState{problem: gpuNotBuilt} }
