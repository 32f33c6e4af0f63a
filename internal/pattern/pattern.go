// Package pattern has regular expressions that are compiled when they are first used: every process of a job is mkrun,
// and most use none of them.
package pattern

import (
	"regexp"
	"sync"
)

// Of returns a regular expression, which must be one.
func Of(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}
