//go:build testbed

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// machine lays out the pseudo files of a host: two GPUs, each below a switch with a NIC.
type machine struct {
	rate  []string // of the NICs
	layer string
	mtu   string
	net   string // subnet prefix of the NICs' addresses
}

func usual() machine {
	return machine{rate: []string{"400 Gb/sec (4X NDR)", "400 Gb/sec (4X NDR)"}, layer: "InfiniBand", mtu: "4092", net: "fe80:0000:0000:0000"}
}

func (m machine) write(t *testing.T, host string) {
	t.Helper()
	root := filepath.Join(bed.dir, host, "disk")
	file := func(path, text string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(path, target string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, d := range []string{"sys", "proc"} {
			if err := os.RemoveAll(filepath.Join(root, d)); err != nil {
				t.Error(err)
			}
		}
	})
	pci := func(dir, class, vendor, device string) {
		link("sys/bus/pci/devices/"+filepath.Base(dir), "../../../devices/"+dir)
		base := "sys/devices/" + dir + "/"
		file(base+"class", class)
		file(base+"vendor", vendor)
		file(base+"device", device)
		file(base+"numa_node", "0")
		for _, which := range []string{"current", "max"} {
			file(base+which+"_link_speed", "32.0 GT/s PCIe")
			file(base+which+"_link_width", "16")
		}
	}
	file("proc/sys/kernel/hostname", "another name")
	file("sys/devices/system/node/node0/cpulist", "0-7")
	for i, rate := range m.rate {
		bus := 0x10 * (i + 1)
		port := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0", bus, bus)
		up := fmt.Sprintf("%s/0000:%02x:00.0", port, bus+1)
		pci(port, "0x060400", "0x8086", "0x352a")
		pci(up, "0x060400", "0x1000", "0xc030")
		nic := ""
		for k, d := range []struct{ class, vendor, device string }{{"0x030200", "0x10de", "0x2335"}, {"0x020700", "0x15b3", "0x1021"}} {
			down := fmt.Sprintf("%s/0000:%02x:%02x.0", up, bus+2, k)
			pci(down, "0x060400", "0x1000", "0xc030")
			nic = fmt.Sprintf("%s/0000:%02x:00.0", down, bus+3+k)
			pci(nic, d.class, d.vendor, d.device)
		}
		name := fmt.Sprintf("mlx5_%d", i)
		rdma := nic + "/infiniband/" + name
		link("sys/class/infiniband/"+name, "../../devices/"+rdma)
		file("sys/devices/"+nic+"/net/ib"+fmt.Sprint(i)+"/mtu", m.mtu)
		file("sys/class/net/ib"+fmt.Sprint(i)+"/mtu", m.mtu)
		base := "sys/devices/" + rdma + "/"
		file(base+"node_guid", fmt.Sprintf("a088:c203:0067:%04x", bus))
		file(base+"ports/1/state", "4: ACTIVE")
		file(base+"ports/1/link_layer", m.layer)
		file(base+"ports/1/rate", rate)
		file(base+"ports/1/gids/0", fmt.Sprintf("%s:a088:c203:0067:%04x", m.net, bus))
	}
}

// topo runs mkrun topo on h1 with the hosts' own pseudo files.
func topo(t *testing.T, args ...string) *job {
	t.Helper()
	disk := filepath.Join(bed.dir, "disk")
	j := beginMkrun(t, append([]string{"topo", "--ssh-cmd", "ssh -F " + bed.dir + "/ssh_config",
		"--sysfs-root", filepath.Join(disk, "sys"), "--proc-root", filepath.Join(disk, "proc")}, args...)...)
	<-j.done
	return j
}

func TestTopoOverFourHosts(t *testing.T) {
	for _, h := range hosts {
		usual().write(t, h)
	}
	j := topo(t, "-H", all, "--check")
	j.want(t, 0)
	for _, want := range []string{"4 nodes alike: h1, h2, h3, h4", "rail 0  mlx5_0  alike on all nodes", "rail 1  mlx5_1  alike on all nodes", "healthy"} {
		if !strings.Contains(j.stdout.String(), want) {
			t.Errorf("stdout lacks %q", want)
		}
	}
	if text := j.stderr.String(); text != "" {
		t.Errorf("stderr: %s", text)
	}
	nobody(t, time.Now(), settle)
}

// The odd one is named, and what is wrong with its rails.
func TestTopoNamesTheOddHost(t *testing.T) {
	for _, h := range hosts {
		m := usual()
		if h == "h3" {
			m.rate, m.mtu, m.net = []string{"200 Gb/sec (4X HDR)", "200 Gb/sec (4X HDR)"}, "2044", "fe80:0000:0000:0001"
		}
		m.write(t, h)
	}
	j := topo(t, "-H", all, "--check", "--json")
	j.want(t, 3)
	var doc struct {
		Healthy bool
		Nodes   []struct{ Host string }
		Rails   []struct {
			Members  []struct{ Host string }
			Problems []string
		}
		Findings []struct{ Code, Host, Subject, Text string }
	}
	if err := json.Unmarshal([]byte(j.stdout.String()), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Healthy || len(doc.Nodes) != 4 || doc.Nodes[2].Host != "h3" || len(doc.Rails) != 2 || len(doc.Rails[1].Members) != 4 {
		t.Fatalf("%+v", doc)
	}
	problems := strings.Join(doc.Rails[1].Problems, "\n")
	for _, want := range []string{"rate differs from 400 Gb/s on h3 (200 Gb/s)", "MTU differs from 4092 on h3 (2044)", "subnet differs from fe80:0000:0000:0000 on h3 (fe80:0000:0000:0001)"} {
		if !strings.Contains(problems, want) {
			t.Errorf("rail 1: %s; want %q", problems, want)
		}
	}
	var codes []string
	for _, f := range doc.Findings {
		codes = append(codes, f.Code)
	}
	if text := strings.Join(codes, " "); !strings.Contains(text, "odd-node") || !strings.Contains(text, "rail") {
		t.Errorf("findings: %+v", doc.Findings)
	}
	nobody(t, time.Now(), settle)
}

// A host whose NICs are of another link layer, one that has fewer, and one that does not answer.
func TestTopoHostsThatCannotWorkTogether(t *testing.T) {
	for _, h := range hosts {
		m := usual()
		switch h {
		case "h2":
			m.layer = "Ethernet"
		case "h4":
			m.rate = m.rate[:1]
		}
		m.write(t, h)
	}
	j := topo(t, "-H", all, "--check")
	j.want(t, 3)
	for _, want := range []string{"link layer differs from InfiniBand on h2 (Ethernet)", "missing on h4"} {
		if !strings.Contains(j.stdout.String(), want) {
			t.Errorf("stdout lacks %q", want)
		}
	}
	fault(t, "stop-sshd", "h3")
	j = topo(t, "-H", all)
	j.want(t, 1, "h3 (node 2): ", "Connection refused")
	if text := j.stdout.String(); text != "" {
		t.Errorf("stdout of a command that failed: %s", text)
	}
	nobody(t, time.Now(), settle)
}
