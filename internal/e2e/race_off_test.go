//go:build testbed && !race

package e2e

// raceEnabled: the mkrun under test is built with the race detector as well.
const raceEnabled = false
