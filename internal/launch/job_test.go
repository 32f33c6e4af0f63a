package launch

import "testing"

// Ranks of a job that deals them out in turns are named as the user counts them.
func TestRanksInTheUsersNumbers(t *testing.T) {
	dealt := &Job{Numbers: []int{0, 2, 1, 3}}
	for text, want := range map[string]string{
		`rank 1 waited 2s for flag "shard 2 chunk 0"; rank 2 intra task 1 should have raised it`: `rank 2 waited 2s for flag "shard 2 chunk 0"; rank 1 intra task 1 should have raised it`,
		"rank 3 waited for connections of ranks [1 2]: timeout":                                  "rank 3 waited for connections of ranks [2 1]: timeout",
		"local rank 1 is not bound, rank 1 is":                                                   "local rank 1 is not bound, rank 2 is",
		"there is no rank 17":                                                                    "there is no rank 17",
		"Frank 1, rank x":                                                                        "Frank 1, rank x",
	} {
		if got := dealt.inUserNumbers(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
		if got := new(Job).inUserNumbers(text); got != text {
			t.Errorf("%q becomes %q in a job whose ranks are counted as they are", text, got)
		}
	}
}
