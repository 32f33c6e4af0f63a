//go:build !race

package plan

// brief says that what takes long is done in part.
const brief = false
