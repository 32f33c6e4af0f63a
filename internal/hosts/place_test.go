package hosts

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func FuzzChoices(f *testing.F) {
	f.Add("a:0,2@b@n[1-2]:1", "a:4,b,n[1-2]:2")
	f.Fuzz(func(_ *testing.T, list, pool string) {
		hosts, err := ParseList("-H", pool)
		if err != nil {
			return
		}
		_, _ = Include(hosts, list)
		_, _ = Exclude(hosts, list)
	})
}

func names(list []Host) []string {
	var out []string
	for _, h := range list {
		out = append(out, fmt.Sprint(h.Name, h.Devices))
	}
	return out
}

func TestIncludeExclude(t *testing.T) {
	pool := []Host{host("", "a", 4), host("me", "b", 4), host("", "n1", 2), host("", "n2", 2), host("", "open", 0)}
	tests := []struct {
		f    func([]Host, string) ([]Host, error)
		list string
		want string // names, or what is in the error
	}{
		{Include, "b", "b[]"},
		{Include, "n[1-2]@a", "a[] n1[] n2[]"},
		{Include, "a:0,2@B", "a[0 2] b[]"},
		{Include, "open:1", "open[1]"},
		{Exclude, "n[1-2]@open", "a[] b[]"},
		{Exclude, "a:0,1@n1", "a[2 3] b[] n2[] open[]"},
		{Exclude, "n1:0,1@a@b@n2", "open[]"},
		{Include, "a:4", "error: a has devices 0 to 3, not 4"},
		{Include, "aa@n1", `error: aa is not among the hosts (did you mean "a"`},
		{Include, "a@a", `error: character 3 of "a@a": a is named twice`},
		{Include, "a:0,0", "error: device 0 is named twice"},
		{Include, "a:x", "error: \"x\" is not a device"},
		{Include, "", "error: the host is missing"},
		{Exclude, "open:0", "error: how many devices open has is not known"},
		{Exclude, "a@b@n1@n2@open", "error: leaves no host"},
	}
	for _, tt := range tests {
		got, err := tt.f(pool, tt.list)
		if want, isErr := strings.CutPrefix(tt.want, "error: "); isErr {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, %v; want an error with %q", tt.list, names(got), err, want)
			}
			continue
		}
		if err != nil || strings.Join(names(got), " ") != tt.want {
			t.Errorf("%q: %v, %v; want %s", tt.list, names(got), err, tt.want)
		}
	}
	if pool[0].Devices != nil || pool[0].Slots != 4 {
		t.Error("the pool itself was changed")
	}
}

func TestPlace(t *testing.T) {
	two := []Host{host("", "a", 4), host("", "b", 2)}
	open := []Host{host("", "a", 0), host("", "b", 0), host("", "c", 0)}
	tests := []struct {
		name string
		pool []Host
		c    Counts
		want string
	}{
		{"all slots", two, Counts{}, "a[0 1 2 3] b[4 5]"},
		{"fewer, block", two, Counts{N: 3}, "a[0 1 2]"},
		{"fewer, cyclic", two, Counts{N: 3, MapBy: Cyclic}, "a[0 2] b[1]"},
		{"all, cyclic", two, Counts{MapBy: Cyclic}, "a[0 2 4 5] b[1 3]"},
		{"per host", two, Counts{PPN: []int{2}}, "a[0 1] b[2 3]"},
		{"per host, one each", two, Counts{PPN: []int{3, 1}}, "a[0 1 2] b[3]"},
		{"per host and in all", two, Counts{PPN: []int{2}, N: 3}, "a[0 1] b[2]"},
		{"nothing said", open, Counts{}, "a[0] b[1] c[2]"},
		{"in all, no slots", open, Counts{N: 5}, "a[0 1] b[2 3] c[4]"},
		{"in all, one host", open[:1], Counts{N: 5}, "a[0 1 2 3 4]"},
		{"P29 too many", two, Counts{N: 7}, "error: -n 7: the 2 hosts have room for 6 ranks"},
		{"P29 too many per host", two, Counts{PPN: []int{4}}, "error: --ppn 4: b has 2 slots"},
		{"P8 negative", two, Counts{N: -2}, "error: -n -2: give 1 to"},
		{"other hosts", two, Counts{PPN: []int{1, 1, 1}}, "error: --ppn names 3 hosts, there are 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Place(tt.pool, tt.c)
			if want, isErr := strings.CutPrefix(tt.want, "error: "); isErr {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("%v, %v; want an error with %q", p, err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, h := range p.Hosts {
				got = append(got, fmt.Sprint(h.Name, p.Ranks[i]))
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%v, want %s", got, tt.want)
			}
		})
	}
}

// Every rank is placed once, hosts keep to their room, and ranks of a host ascend, whatever the numbers.
func TestPlaceIsAPermutation(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		var pool []Host
		room := 0
		for i := range 1 + rng.IntN(9) {
			pool = append(pool, host("", fmt.Sprintf("h%d", i), 1+rng.IntN(8)))
			room += pool[i].Slots
		}
		c := Counts{N: rng.IntN(room + 1), MapBy: []MapBy{Block, Cyclic}[rng.IntN(2)]}
		p, err := Place(pool, c)
		if err != nil {
			t.Fatal(err)
		}
		var all []int
		for i, ranks := range p.Ranks {
			if len(ranks) == 0 || len(ranks) > p.Hosts[i].Slots || !slices.IsSorted(ranks) {
				t.Fatalf("%v on a host with %d slots", ranks, p.Hosts[i].Slots)
			}
			all = append(all, ranks...)
		}
		slices.Sort(all)
		for i, r := range all {
			if i != r {
				t.Fatalf("ranks %v", all)
			}
		}
		if want := c.N; want != 0 && len(all) != want {
			t.Fatalf("%d ranks, want %d", len(all), want)
		}
	}
}

func TestParseRanks(t *testing.T) {
	got, err := ParseRanks("0,2-3", 4)
	if err != nil || len(got) != 3 || !got[0] || !got[2] || !got[3] {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "4", "1-4", "-1", "a", "3-1", "0-99999999"} {
		if got, err := ParseRanks(s, 4); err == nil {
			t.Errorf("%q was accepted as %v", s, got)
		}
	}
	if _, err := ParseRanks("0-99999999999", 4); err == nil || !strings.Contains(err.Error(), "more than 262144 ranks") {
		t.Error(err)
	}
}
