//go:build !cgo

package topology

// askNVML says that this binary cannot ask: go-nvml needs cgo.
func askNVML() nvmlState {
	return nvmlState{Problem: "this mkrun was built without cgo"}
}
