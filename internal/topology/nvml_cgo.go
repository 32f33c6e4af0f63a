//go:build cgo

package topology

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// askNVML asks the driver library about all GPUs. Linking it costs nothing until here: the library is
// opened at run time.
func askNVML() nvmlState {
	lib := nvml.New()
	start := time.Now()
	ret := lib.Init()
	s := nvmlState{InitMS: float64(time.Since(start).Microseconds()) / 1000}
	if ret != nvml.SUCCESS {
		s.Problem = lib.ErrorString(ret)
		return s
	}
	defer func() { _ = lib.Shutdown() }()
	start = time.Now()
	readNVML(lib, &s, func(d nvml.Device) (nvml.GpuFabricInfo_v2, nvml.Return) { return d.GetGpuFabricInfoV().V2() })
	s.AskMS = float64(time.Since(start).Microseconds()) / 1000
	return s
}

type fabricAsker func(nvml.Device) (nvml.GpuFabricInfo_v2, nvml.Return)

func readNVML(lib nvml.Interface, s *nvmlState, fabric fabricAsker) {
	if v, ret := lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		s.Driver = v
	}
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		s.Problem = "counting GPUs: " + lib.ErrorString(ret)
		return
	}
	// All at the same time: most of it is attaching to a GPU, 7 ms for each. The driver answers much of the rest one at a
	// time, so what is slow should be asked seldom.
	found := make([]*nvmlGPU, n)
	var asking sync.WaitGroup
	for i := range n {
		asking.Go(func() {
			d, ret := lib.DeviceGetHandleByIndex(i)
			if ret != nvml.SUCCESS {
				return // a GPU that fell off the bus is still in sysfs: it shows as hidden
			}
			if g, ok := nvmlDevice(lib, d, i, fabric); ok {
				found[i] = &g
			}
		})
	}
	asking.Wait()
	for _, g := range found {
		if g != nil {
			s.GPUs = append(s.GPUs, *g)
		}
	}
}

// nvmlDevice reads one GPU. What it does not support stays unknown.
func nvmlDevice(lib nvml.Interface, d nvml.Device, index int, fabric fabricAsker) (nvmlGPU, bool) {
	g := nvmlGPU{GPU: GPU{Index: index, Dev: index, PCI: -1, CUDA: -1, Module: -1, Vendor: vendorNVIDIA}}
	pci, ret := d.GetPciInfo()
	if ret != nvml.SUCCESS {
		return g, false
	}
	g.BDF = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
	g.GPU.Device = int(pci.PciDeviceId >> 16)
	if v, ret := d.GetName(); ret == nvml.SUCCESS {
		g.Name = v
	}
	if v, ret := d.GetUUID(); ret == nvml.SUCCESS {
		g.UUID = v
	}
	if v, ret := d.GetSerial(); ret == nvml.SUCCESS {
		g.Serial = v
	}
	if major, minor, ret := d.GetCudaComputeCapability(); ret == nvml.SUCCESS {
		g.SM = 10*major + minor
	}
	if v, ret := d.GetModuleId(); ret == nvml.SUCCESS {
		g.Module = v
	}
	if v, ret := d.GetNumaNodeId(); ret == nvml.SUCCESS {
		g.MemNode = &v
	}
	g.Gen, _ = d.GetCurrPcieLinkGeneration()
	g.Width, _ = d.GetCurrPcieLinkWidth()
	g.MaxGen, _ = d.GetMaxPcieLinkGeneration()
	g.MaxWidth, _ = d.GetMaxPcieLinkWidth()
	g.Links, g.MaxLinks = nvmlLinks(d, g.SM)
	g.C2C = nvmlC2C(d)
	g.Fabric = nvmlFabric(lib, d, fabric)
	g.MIG = nvmlMIG(d)
	g.Health = nvmlHealth(d)
	if g.MIG == nil { // else its instances are held, each by its own processes
		g.Holders = nvmlHolders(d)
	}
	return g, true
}

// nvmlLinks bundles the links by target. A link that the chip has but the board does not wire answers
// "not supported" or is inactive by design: only the product's number tells, so links that are not
// active count as down, never as missing.
func nvmlLinks(d nvml.Device, sm int) ([]NVLink, int) {
	var b bundle
	most := 0
	states := nvmlLinkStates(d, sm)
	peerToPeer := nvmlPeerToPeer(d)
	for l := range nvml.NVLINK_MAX_LINKS {
		state, ret := states(l)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break
		}
		if ret != nvml.SUCCESS {
			continue
		}
		most++
		if !state {
			b.down++
			continue
		}
		link := NVLink{Count: 1, Peer: PeerUnknown}
		// The kind first: the address of a switch may be hidden.
		if kind, ret := d.GetNvLinkRemoteDeviceType(l); ret == nvml.SUCCESS {
			switch kind {
			case nvml.NVLINK_DEVICE_TYPE_GPU:
				link.Peer = PeerGPU
			case nvml.NVLINK_DEVICE_TYPE_IBMNPU:
				link.Peer = PeerCPU
			case nvml.NVLINK_DEVICE_TYPE_SWITCH:
				link.Peer = PeerSwitch
			}
		}
		if !peerToPeer(link.Peer, l) {
			continue
		}
		if pci, ret := d.GetNvLinkRemotePciInfo(l); ret == nvml.SUCCESS {
			link.Target = bdfOf(pci.Domain, pci.Bus, pci.Device)
		}
		b.add(link)
	}
	return b.done(), most
}

// nvmlPeerToPeer says whether a link carries peer-to-peer traffic. That is a slow question with one answer for all links
// to one kind of device, so it is asked once for each.
func nvmlPeerToPeer(d nvml.Device) func(kind LinkPeer, link int) bool {
	known := map[LinkPeer]bool{}
	return func(kind LinkPeer, link int) bool {
		if _, asked := known[kind]; !asked {
			p2p, ret := d.GetNvLinkCapability(link, nvml.NVLINK_CAP_P2P_SUPPORTED)
			known[kind] = ret != nvml.SUCCESS || p2p != 0
		}
		return known[kind]
	}
}

// nvmlLinkStates asks the way that works: since Hopper field values, of all links in one call to the driver; before it,
// or for a link that has none, the call for that link.
func nvmlLinkStates(d nvml.Device, sm int) func(link int) (bool, nvml.Return) {
	var values []nvml.FieldValue
	if sm >= 90 {
		values = make([]nvml.FieldValue, nvml.NVLINK_MAX_LINKS)
		for l := range values {
			values[l] = nvml.FieldValue{FieldId: nvml.FI_DEV_NVLINK_GET_STATE, ScopeId: uint32(l)}
		}
		if ret := d.GetFieldValues(values); ret != nvml.SUCCESS {
			values = nil
		}
	}
	return func(link int) (bool, nvml.Return) {
		if values != nil && nvml.Return(values[link].NvmlReturn) == nvml.SUCCESS {
			return fieldValue(&values[link]) == uint64(nvml.FEATURE_ENABLED), nvml.SUCCESS
		}
		state, ret := d.GetNvLinkState(link)
		return state == nvml.FEATURE_ENABLED, ret
	}
}

func nvmlField(d nvml.Device, field uint32, scope int) (uint64, nvml.Return) {
	values := []nvml.FieldValue{{FieldId: field, ScopeId: uint32(scope)}}
	if ret := d.GetFieldValues(values); ret != nvml.SUCCESS {
		return 0, ret
	}
	if ret := nvml.Return(values[0].NvmlReturn); ret != nvml.SUCCESS {
		return 0, ret
	}
	return fieldValue(&values[0]), nvml.SUCCESS
}

func fieldValue(v *nvml.FieldValue) uint64 {
	return binary.LittleEndian.Uint64(v.Value[:]) & 0xffffffff
}

func nvmlC2C(d nvml.Device) *C2C {
	count, ret := nvmlField(d, nvml.FI_DEV_C2C_LINK_COUNT, 0)
	if ret != nvml.SUCCESS || count == 0 {
		return nil
	}
	c := &C2C{}
	for l := range int(min(count, 64)) {
		if up, ret := nvmlField(d, nvml.FI_DEV_C2C_LINK_GET_STATUS, l); ret == nvml.SUCCESS && up == 1 {
			c.Links++
			if bw, ret := nvmlField(d, nvml.FI_DEV_C2C_LINK_GET_MAX_BW, l); ret == nvml.SUCCESS {
				c.MBs = float64(bw)
			}
		}
	}
	return c
}

// fabricStates are the states of a GPU's fabric registration in NVML's numbering.
var fabricStates = []string{"not-supported", "not-started", "in-progress", "completed"}

// fabricTroubles are the 2-bit groups of the fabric health mask; in each, 1 is "true". 0 is not
// supported and 2 is fine.
var fabricTroubles = []struct {
	shift, mask uint32
	what        string
}{
	{0, 3, "degraded bandwidth"}, {2, 3, "route recovery in progress"}, {4, 3, "route unhealthy"}, {6, 3, "access timeout recovery"},
}

// fabricMisconfigured are the values of the "incorrect configuration" group, from bit 8; 1 is none.
var fabricMisconfigured = map[uint32]string{2: "incorrect system GUID", 3: "incorrect chassis serial number", 4: "no partition", 5: "insufficient NVLinks", 6: "incompatible GPU firmware", 7: "invalid location", 8: "GPU state invalid"}

func nvmlFabric(lib nvml.Interface, d nvml.Device, ask fabricAsker) *Fabric {
	info, ret := ask(d)
	if ret != nvml.SUCCESS {
		old, ret := d.GetGpuFabricInfo()
		if ret != nvml.SUCCESS {
			return nil
		}
		info = nvml.GpuFabricInfo_v2{ClusterUuid: old.ClusterUuid, Status: old.Status, CliqueId: old.CliqueId, State: old.State}
	}
	f := &Fabric{State: fmt.Sprintf("state %d", info.State), Status: "success", Clique: int(info.CliqueId)}
	if int(info.State) < len(fabricStates) {
		f.State = fabricStates[info.State]
	}
	if info.Status != 0 && f.State == "completed" {
		f.Status = strings.ToLower(lib.ErrorString(nvml.Return(info.Status)))
	}
	if info.ClusterUuid != [16]uint8{} {
		f.Cluster = fmt.Sprintf("%x", info.ClusterUuid)
	}
	for _, t := range fabricTroubles {
		if info.HealthMask>>t.shift&t.mask == 1 {
			f.Health = append(f.Health, t.what)
		}
	}
	if what := fabricMisconfigured[info.HealthMask>>8&0xf]; what != "" {
		f.Health = append(f.Health, what)
	}
	return f
}

func nvmlMIG(d nvml.Device) []MIG {
	if on, _, ret := d.GetMigMode(); ret != nvml.SUCCESS || on != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	n, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var list []MIG
	for i := range n {
		m, ret := d.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		var mig MIG
		if v, ret := m.GetUUID(); ret == nvml.SUCCESS {
			mig.UUID = v
		}
		if v, ret := m.GetName(); ret == nvml.SUCCESS {
			mig.Name = v
		}
		mig.Holders = nvmlHolders(m)
		list = append(list, mig)
	}
	return list
}

// nvmlHolders lists the processes that compute on a GPU or an instance of one.
func nvmlHolders(d nvml.Device) []Holder {
	processes, ret := d.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil
	}
	const unknown = ^uint64(0)
	var list []Holder
	for _, p := range processes {
		h := Holder{PID: int(p.Pid), Memory: p.UsedGpuMemory}
		if h.Memory == unknown {
			h.Memory = 0
		}
		list = append(list, h)
	}
	return list
}

// throttleReasons that say that something is wrong; idle, application clocks and the like do not.
var throttleReasons = []struct {
	bit  uint64
	what string
}{{0x08, "hardware slowdown"}, {0x40, "hardware thermal slowdown"}, {0x80, "hardware power brake"}}

func nvmlHealth(d nvml.Device) *GPUHealth {
	h := &GPUHealth{}
	if on, _, ret := d.GetEccMode(); ret == nvml.SUCCESS {
		h.ECC = on == nvml.FEATURE_ENABLED
	}
	if v, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		h.Uncorrected = v
	}
	if _, _, pending, failed, ret := d.GetRemappedRows(); ret == nvml.SUCCESS {
		h.RemapWaits, h.RemapFailed = pending, failed
	}
	if v, ret := d.GetCurrentClocksThrottleReasons(); ret == nvml.SUCCESS {
		for _, r := range throttleReasons {
			if v&r.bit != 0 {
				h.Throttle = append(h.Throttle, r.what)
			}
		}
	}
	return h
}
