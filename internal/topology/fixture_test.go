package topology

import (
	"fmt"
	"testing"
)

// host describes a machine to be built as pseudo files.
type host struct {
	files *memFiles
	nvml  nvmlState
}

// put writes one file below a PCI device's directory, and the entry in /sys/bus.
func (h *host) pci(dir, class string, vendor, device, numa int, more map[string]string) {
	bdf := lastBDF(dir)
	h.files.links["/sys/bus/pci/devices/"+bdf] = "../../../devices/" + dir
	base := "/sys/devices/" + dir
	h.files.files[base+"/class"] = class + "\n"
	h.files.files[base+"/vendor"] = fmt.Sprintf("0x%04x\n", vendor)
	h.files.files[base+"/device"] = fmt.Sprintf("0x%04x\n", device)
	h.files.files[base+"/numa_node"] = fmt.Sprintf("%d\n", numa)
	for _, which := range []string{"current", "max"} {
		h.files.files[base+"/"+which+"_link_speed"] = "32.0 GT/s PCIe\n"
		h.files.files[base+"/"+which+"_link_width"] = "16\n"
	}
	for k, v := range more {
		h.files.files[base+"/"+k] = v
	}
}

// rdma makes a network function an RDMA device.
func (h *host) rdma(name, dir, layer, rate, state, guid string) {
	h.files.links["/sys/class/infiniband/"+name] = "../../devices/" + dir + "/infiniband/" + name
	base := "/sys/devices/" + dir + "/infiniband/" + name
	for k, v := range map[string]string{"sys_image_guid": guid, "node_guid": guid, "board_id": "MT_0000000838", "fw_ver": "28.41.1000",
		"ports/1/link_layer": layer, "ports/1/rate": rate, "ports/1/state": state, "ports/1/phys_state": "5: LinkUp",
		"ports/1/gids/0": "fe80:0000:0000:0000:" + guid} {
		h.files.files[base+"/"+k] = v + "\n"
	}
}

// h200 is a machine of 2 sockets, 8 GPUs and 8 NICs: below each of 8 switches one of each; a front-end
// NIC on socket 0. Serial numbers, names and GUIDs are such as a snapshot must not show.
func h200() *host {
	h := &host{files: newMemFiles()}
	f := h.files.files
	f["/proc/sys/kernel/hostname"] = "secret-host-17\n"
	f["/proc/cpuinfo"] = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nflags\t\t: fpu vme\n"
	f["/proc/self/status"] = "Name:\tmkrun\nCpus_allowed_list:\t0-223\n"
	f["/sys/module/nvidia/version"] = "580.82.07\n"
	f["/sys/module/nvidia_peermem/version"] = "580.82.07\n"
	f["/sys/class/dmi/id/product_name"] = "XE9680\n"
	for i, cpus := range []string{"0-55,112-167", "56-111,168-223"} {
		f[fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", i)] = cpus + "\n"
		f[fmt.Sprintf("/sys/devices/system/node/node%d/distance", i)] = []string{"10 21\n", "21 10\n"}[i]
	}
	for i := range 8 {
		root, numa := 0x10*(i+1), i/4
		base := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0", root, root)
		up := base + fmt.Sprintf("/0000:%02x:00.0", root+1)
		h.pci(base, "0x060400", vendorIntel, 0x352a, numa, nil)
		h.pci(up, "0x060400", vendorBroadcom, 0xc030, numa, nil)
		for k := range 2 {
			h.pci(up+fmt.Sprintf("/0000:%02x:%02x.0", root+2, k), "0x060400", vendorBroadcom, 0xc030, numa, nil)
		}
		gpu := up + fmt.Sprintf("/0000:%02x:00.0/0000:%02x:00.0", root+2, root+3)
		nic := up + fmt.Sprintf("/0000:%02x:01.0/0000:%02x:00.0", root+2, root+4)
		h.pci(gpu, "0x030200", vendorNVIDIA, 0x2335, numa, nil)
		h.pci(nic, "0x020700", vendorMellanox, 0x1021, numa, map[string]string{"vpd": "MT2910 serial MT1234X5678"})
		// Names in an order of their own: they must not matter.
		h.rdma(fmt.Sprintf("mlx5_%d", 7-i), nic, "InfiniBand", "400 Gb/sec (4X NDR)", "4: ACTIVE", fmt.Sprintf("a088:c203:0067:e%03x", i*16))
		h.nvml.GPUs = append(h.nvml.GPUs, nvmlGPU{GPU: GPU{Index: i, Dev: i, PCI: -1, CUDA: -1, BDF: lastBDF(gpu), Name: "NVIDIA H200", Device: 0x2335, SM: 90,
			UUID: fmt.Sprintf("GPU-3fa4b2c1-0000-4000-8000-00000000aa%02x", i), Serial: fmt.Sprintf("165432109876%d", i), Module: i + 1,
			Links:  []NVLink{{Peer: PeerSwitch, Count: 18}},
			Fabric: &Fabric{State: "completed", Status: "success", Cluster: "deadbeef00"}, Health: &GPUHealth{ECC: true}},
			Gen: 1, Width: 16, MaxGen: 5, MaxWidth: 16})
	}
	front := "pci0000:a0/0000:a0:01.0/0000:a1:00.0"
	h.pci("pci0000:a0/0000:a0:01.0", "0x060400", vendorIntel, 0x352a, 0, nil)
	h.pci(front, "0x020000", vendorMellanox, 0x101f, 0, map[string]string{"net/eno1/mtu": "1500"})
	h.rdma("mlx5_8", front, "Ethernet", "25 Gb/sec (1X EDR)", "4: ACTIVE", "a088:c203:00aa:0001")
	h.nvml.Driver = "580.82.07"
	return h
}

func (h *host) captured() captured {
	return captured{Schema: snapshotSchema, Env: map[string]string{}, NVML: h.nvml}
}

func (h *host) node() *Node { return assemble(h.files, h.captured()) }

func evalOf(t testing.TB, text string) *Eval {
	t.Helper()
	return NewEval(parseOne(t, "test", text))
}
