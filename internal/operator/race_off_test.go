//go:build !race

package operator

// sampled is the number of random trials in one run of the tests.
const sampled = 40
