package count

import "testing"

func TestOf(t *testing.T) {
	for n, want := range map[int]string{0: "0 ranks", 1: "1 rank", 2: "2 ranks"} {
		if got := Of(n, "rank"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
