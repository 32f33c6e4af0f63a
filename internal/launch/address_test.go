package launch

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func testChooser(route string) chooser {
	own := []ownAddress{
		{"lo", netip.MustParseAddr("127.0.0.1")}, {"docker0", netip.MustParseAddr("172.17.0.1")},
		{"eth0", netip.MustParseAddr("fd00::2")}, {"eth0", netip.MustParseAddr("10.0.0.2")},
		{"bond0", netip.MustParseAddr("10.1.0.2")}, {"bond0.2093", netip.MustParseAddr("10.2.0.2")},
		{"dummy0", netip.MustParseAddr("127.0.0.9")}, {"dummy0", netip.MustParseAddr("10.9.0.2")},
	}
	return chooser{own: own, route: func(netip.AddrPort) (netip.Addr, error) {
		if route == "" {
			return netip.Addr{}, errors.New("network is unreachable")
		}
		return netip.MustParseAddr(route), nil
	}}
}

func TestP5P7P58P59P79ChooseAddress(t *testing.T) {
	tests := []struct {
		name, route         string
		devices, candidates []string
		want                string // or a part of the error behind "!"
	}{
		{"what the host's name says", "", nil, []string{"10.0.0.2"}, "10.0.0.2"},
		{"P5 loopback is nobody's address", "10.0.0.2", nil, []string{"127.0.1.1", "127.0.0.1"}, "10.0.0.2"},
		{"P7 docker0 is everybody's address", "10.0.0.2", nil, []string{"172.17.0.1"}, "10.0.0.2"},
		{"behind a jump host the name means something else", "10.1.0.2", nil, []string{"192.0.2.7"}, "10.1.0.2"},
		{"the name is only ssh's", "fd00::2", nil, nil, "fd00::2"},
		{"P59 exact name", "", []string{"bond0"}, []string{"10.0.0.2"}, "10.1.0.2"},
		{"P59 a longer name is another", "", []string{"bond"}, nil, "!no such interface here"},
		{"other hosts do not reach lo", "", []string{"lo"}, []string{"10.0.0.2"}, "!--iface lo: no such interface here that is up and has an address that other hosts reach; there are docker0, eth0,"},
		{"its address that has a route", "", []string{"lo", "dummy0"}, nil, "10.9.0.2"},
		{"IPv4 of an interface first", "", []string{"eth0"}, nil, "10.0.0.2"},
		{"P58 why each was dropped", "", nil, []string{"192.0.2.7", "172.17.0.1"},
			"!192.0.2.7 is not an address of this host; 172.17.0.1 (docker0) is one that other hosts have too; no route to the head's 10.0.0.1:5"},
		{"P79 loopback by route", "127.0.0.1", nil, nil, "!which other hosts have too"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := testChooser(tt.route).choose(tt.devices, tt.candidates, []string{"10.0.0.1:5"})
			if want, isErr := strings.CutPrefix(tt.want, "!"); isErr {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, %v; want an error with %q", got, err, want)
				}
				return
			}
			if err != nil || got.String() != tt.want {
				t.Errorf("%v, %v; want %s", got, err, tt.want)
			}
		})
	}
}

func TestP62HeadIsReachedByNumber(t *testing.T) {
	got, err := testChooser("10.1.0.2").reachable(nil, []Host{{Candidates: []string{"10.1.0.9"}}}, 77)
	if want := "10.1.0.2:77 [fd00::2]:77 10.0.0.2:77 10.2.0.2:77 10.9.0.2:77"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("%v, %v; want %s", got, err, want)
	}
	got, err = testChooser("").reachable([]string{"bond0"}, nil, 77)
	if want := "10.1.0.2:77"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("%v, %v; want %s", got, err, want)
	}
}

func TestDevicesAndNumbersReachTheRank(t *testing.T) {
	m := testMachine(t, 2, 1)
	m.job.Hosts[1].Devices = []int{0, 2}
	m.job.Numbers = []int{0, 2, 1}
	env := map[string]string{}
	for _, v := range m.job.RankVariables(2, Attempt{MasterPort: 1}) {
		env[v.Name] = v.Value
	}
	if env["CUDA_VISIBLE_DEVICES"] != "0,2" || env["RANK"] != "1" || env["MKRUN_RANK"] != "1" || env["LOCAL_RANK"] != "0" {
		t.Errorf("rank variables %v", env)
	}
	for _, v := range m.job.RankVariables(0, Attempt{MasterPort: 1}) {
		if v.Name == "CUDA_VISIBLE_DEVICES" {
			t.Errorf("node 0 was given %s=%s", v.Name, v.Value)
		}
	}
}

func TestLoopbackThatIsDown(t *testing.T) {
	lo, up := net.Interface{Name: "lo", Flags: net.FlagLoopback}, net.Interface{Name: "lo", Flags: net.FlagLoopback | net.FlagUp}
	eth := net.Interface{Name: "eth0", Flags: net.FlagUp}
	for name, test := range map[string]struct {
		address string
		devices []net.Interface
		want    string
	}{
		"down":             {"127.0.0.1", []net.Interface{eth, lo}, "the loopback interface lo is down"},
		"up":               {"127.0.0.1", []net.Interface{up, eth}, ""},
		"not listed":       {"127.0.0.1", []net.Interface{eth}, ""},
		"not used":         {"192.0.2.1", []net.Interface{lo, eth}, ""},
		"no address is it": {"", []net.Interface{lo, eth}, ""},
	} {
		err := loopbackUp(test.address, test.devices)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
