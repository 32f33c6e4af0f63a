// Package count writes numbers of things as people do.
package count

import "fmt"

// Of is "1 rank" or "2 ranks".
func Of(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
