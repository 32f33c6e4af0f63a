//go:build race

package plan

// brief says that what takes long is done in part: the race detector slows it down tenfold, and it has one goroutine.
const brief = true
