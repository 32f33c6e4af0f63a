// Package topology knows what a node is made of: GPUs, NICs, the PCI tree and the NUMA nodes between
// them, NVLinks and switches. It reads live machines and files of other tools into one model, and
// answers from the model how far things are apart, which NIC a GPU uses, and what is broken.
//
// Identity is the PCI address (and the GUID), never an index or a name: those differ between a host,
// its containers and its neighbours.
package topology

import "fmt"

// Source is where a value came from.
type Source string

// Where values come from.
const (
	FromSysfs  Source = "sysfs"
	FromNVML   Source = "nvml"
	FromNCCL   Source = "nccl-xml"
	FromHwloc  Source = "hwloc-xml"
	FromSMI    Source = "nvidia-smi"
	FromTable  Source = "table" // a product table: what this device is known to have
	FromGuess  Source = "guess" // derived, because no source tells
	FromNobody Source = ""
)

// Provenance says for each key of a record where its value came from; "*" stands for the keys that
// are not listed.
type Provenance map[string]Source

// Of is the source of one key.
func (p Provenance) Of(key string) Source {
	if s, ok := p[key]; ok {
		return s
	}
	return p["*"]
}

// with returns p with one key set, making the map if there is none.
func (p Provenance) with(key string, s Source) Provenance {
	if p == nil {
		p = Provenance{}
	}
	p[key] = s
	return p
}

// Origin is where a node's description was read.
type Origin struct {
	Kind Source `json:"kind"` // the main source
	File string `json:"file"` // "" for a live machine
}

// TreeStyle says how much of the PCI tree a source tells.
type TreeStyle string

// What a source tells of the PCI tree.
const (
	TreeFull     TreeStyle = "full"     // root complexes, root ports, both ports of each switch
	TreeSwitches TreeStyle = "switches" // as NCCL: NUMA nodes and one record per switch; no root complexes
	TreeNone     TreeStyle = "none"     // distances only, in Matrix
)

// Node is one host. Everything that answers are derived from is here; nothing here is derived.
type Node struct {
	Host       string     `json:"host"`
	Origin     Origin     `json:"origin"`
	Product    string     `json:"product"` // of DMI, "" if unknown
	Virtual    bool       `json:"virtual"` // a virtual machine: distances may be made up by the hypervisor
	Tree       TreeStyle  `json:"tree"`
	NUMA       []NUMANode `json:"numa"`
	PCI        []Device   `json:"pci"`
	GPUs       []GPU      `json:"gpus"`
	NICs       []NIC      `json:"nics"`
	NVSwitches []NVSwitch `json:"nvswitches"`
	Matrix     *Matrix    `json:"matrix"`   // distances a source told in words; null if it told a tree
	System     System     `json:"system"`   // settings of the host that decide about peer-to-peer and GPUDirect
	Notes      []Note     `json:"notes"`    // what is odd in the input
	Details    Details    `json:"details"`  // what the input could and could not tell
	Measured   *Measured  `json:"measured"` // null if nothing was measured
}

// Details says what a source was able to tell, so that an absent value is not taken for a zero.
type Details struct {
	NVLinks bool `json:"nvlinks"` // links were looked for
	NICs    bool `json:"nics"`    // NICs were looked for
}

// System are settings of a host. Empty strings are unknown.
type System struct {
	Driver   string            `json:"driver"`
	Kernel   string            `json:"kernel"`
	Open     bool              `json:"open_module"` // the driver's open kernel module, which exports GPU memory as dma-buf
	PeerMem  string            `json:"peermem"`     // version of nvidia_peermem, "loaded", "" if not loaded or unknown
	IOMMU    string            `json:"iommu"`       // "off", "passthrough", "translated"
	ACS      []string          `json:"acs"`         // bridges that send peer-to-peer traffic to the root
	Env      map[string]string `json:"env"`         // settings that override discovery (NCCL_TOPO_FILE, ...)
	Visible  string            `json:"visible"`     // CUDA_VISIBLE_DEVICES as set, "" if not
	Allowed  string            `json:"allowed"`     // CPUs this process may use, as a list
	TimingMS float64           `json:"nvml_init_ms"`
	AskMS    float64           `json:"nvml_ask_ms"` // all questions to NVML after that

	Libfabric []Provider `json:"libfabric"` // null if there is none, or it does not say
}

// Note is something odd in an input: not an error, but not to be silently accepted either.
type Note struct {
	Where string `json:"where"` // file:line, a PCI address, or a name
	What  string `json:"what"`
}

func (n *Node) note(where, format string, args ...any) {
	n.Notes = append(n.Notes, Note{where, cutShort(fmt.Sprintf(format, args...))})
}

// NUMANode is one NUMA node. Nodes without CPUs (GPU memory, CXL) are nodes, but not sockets.
type NUMANode struct {
	ID       int        `json:"id"`
	CPUs     string     `json:"cpus"` // list such as "0-15,32-47"; "" for a node without CPUs
	HasCPU   bool       `json:"has_cpu"`
	Distance []int      `json:"distance"` // to the nodes in order; null if not told
	Vendor   string     `json:"vendor"`   // of the CPU, as cpuid writes it
	Family   int        `json:"family"`
	Model    int        `json:"model"`
	Arch     string     `json:"arch"`
	Prov     Provenance `json:"provenance"`
}

// DeviceKind is what a PCI record stands for.
type DeviceKind string

// Kinds of PCI records.
const (
	KindRoot   DeviceKind = "root"   // a root complex, or (TreeSwitches) a NUMA node's CPU
	KindBridge DeviceKind = "bridge" // a port of a switch, a root port, or (TreeSwitches) a switch
	KindDevice DeviceKind = "device"
)

// Device is one entry of the PCI tree. Speeds are in GT/s per lane and widths in lanes; 0 is unknown.
type Device struct {
	ID        string     `json:"id"`     // PCI address, or "pci0000:44" / "numa0" for a root
	Parent    int        `json:"parent"` // index in the node's list, -1 for roots
	Kind      DeviceKind `json:"kind"`
	Class     string     `json:"class"` // six hex digits with 0x, "" if unknown
	Vendor    int        `json:"vendor"`
	Device    int        `json:"device"`
	SubVendor int        `json:"subsystem_vendor"`
	SubDevice int        `json:"subsystem_device"`
	Speed     float64    `json:"speed"` // now
	Width     int        `json:"width"`
	MaxSpeed  float64    `json:"max_speed"` // of the device and the port above, whichever is less
	MaxWidth  int        `json:"max_width"`
	GBs       float64    `json:"gbs"`           // link bandwidth one way as the source states it; 0: from speed and width
	NUMA      *int       `json:"numa"`          // as the source says; null: it does not
	VFOf      string     `json:"vf_of"`         // address of the physical function, "" if none is visible
	Name      string     `json:"name"`          // of the product
	Links     []string   `json:"pcilinks"`      // other switches joined to this one inside one card or board
	Line      int        `json:"line,omitzero"` // in the input file
	Prov      Provenance `json:"provenance"`
}

// GPU is one GPU, whole: MIG instances are listed below it.
type GPU struct {
	Index    int         `json:"index"`  // NVML's on a live machine, else the order in the file
	BDF      string      `json:"bdf"`    // "" if the source does not tell
	PCI      int         `json:"pci"`    // index in Node.PCI, -1 if there is no tree
	Dev      int         `json:"dev"`    // the number that NCCL breaks ties by; -1 if unknown
	CUDA     int         `json:"cuda"`   // CUDA's index under CUDA_VISIBLE_DEVICES; -1 if not visible or unknown
	Hidden   bool        `json:"hidden"` // present in the machine, but not usable from here (container, CUDA_VISIBLE_DEVICES)
	UUID     string      `json:"uuid"`
	Serial   string      `json:"serial"`
	Name     string      `json:"name"`
	Vendor   int         `json:"vendor"`
	Device   int         `json:"device"`
	SM       int         `json:"sm"`        // compute capability as NCCL writes it: 90; 0 if unknown
	Module   int         `json:"module"`    // slot on the baseboard; -1 if unknown
	NUMA     *int        `json:"numa"`      // of the CPUs near it; -1: the machine says none; null: not told
	NUMASet  string      `json:"numa_set"`  // as a list, where several nodes are equally near ("0-1")
	MemNode  *int        `json:"mem_node"`  // the NUMA node its own memory is, if it is one
	CPUs     string      `json:"cpus"`      // near it, "" if not told
	Links    []NVLink    `json:"links"`     // NVLink or xGMI
	MaxLinks int         `json:"max_links"` // links the chip reports, 0 if not told
	C2C      *C2C        `json:"c2c"`
	Fabric   *Fabric     `json:"fabric"`
	MIG      []MIG       `json:"mig"`
	GDR      *bool       `json:"gdr"`
	Health   *GPUHealth  `json:"state"`
	Xids     map[int]int `json:"xids"` // errors in the kernel's log by their number; null if it could not be read
	Prov     Provenance  `json:"provenance"`
	Holders  []Holder    `json:"-"` // of the moment, not of the machine: no record has them
}

// Holder is a process that computes on a GPU.
type Holder struct {
	PID    int    // as the driver tells it: in a container it may be a number of the host's
	Memory uint64 // bytes of the GPU's; 0 if not told
}

// LinkPeer is what an NVLink ends at.
type LinkPeer string

// What an NVLink ends at.
const (
	PeerGPU     LinkPeer = "gpu"
	PeerSwitch  LinkPeer = "switch"
	PeerCPU     LinkPeer = "cpu"
	PeerUnknown LinkPeer = "unknown"
	PeerSelf    LinkPeer = "self" // an error of hand-made files
)

// NVLink is a bundle of links from one GPU to one target.
type NVLink struct {
	Target string   `json:"target"` // PCI address, "" if unknown
	Peer   LinkPeer `json:"peer"`
	Count  int      `json:"count"` // active links
	Down   int      `json:"down"`  // wired, but not active
	GBs    float64  `json:"gbs"`   // one link, one way; 0: by the chip
	XGMI   bool     `json:"xgmi,omitzero"`
	Line   int      `json:"line,omitzero"`
}

// C2C is the chip-to-chip link between a Grace CPU and its GPU.
type C2C struct {
	Links int     `json:"links"`
	MBs   float64 `json:"mbs"` // each
}

// Fabric is a GPU's membership in an NVLink domain run by a fabric manager.
type Fabric struct {
	State   string   `json:"state"`  // not-supported, not-started, in-progress, completed
	Status  string   `json:"status"` // "success", else what failed
	Cluster string   `json:"cluster"`
	Clique  int      `json:"clique"`
	Health  []string `json:"health"` // what the health mask says is wrong
}

// MIG is one instance of a partitioned GPU: no peers, no NVLink, affinity of the parent.
type MIG struct {
	UUID    string   `json:"uuid"`
	Name    string   `json:"name"`
	Holders []Holder `json:"-"` // as those of a GPU
}

// GPUHealth is what NVML says about a GPU's condition.
type GPUHealth struct {
	ECC         bool     `json:"ecc"`
	Uncorrected uint64   `json:"uncorrected"`
	RemapFailed bool     `json:"remap_failed"`
	RemapWaits  bool     `json:"remap_pending"`
	Throttle    []string `json:"throttle"`
}

// NIC is one RDMA device or network function.
type NIC struct {
	Name     string     `json:"name"` // as the source calls it
	RDMA     string     `json:"rdma"` // RDMA device name, "" if it is none
	Net      []string   `json:"net"`  // interfaces
	BDF      string     `json:"bdf"`  // PCI address; the name where the source gives none
	PCI      int        `json:"pci"`  // index in Node.PCI, -1 if there is no tree
	Vendor   int        `json:"vendor"`
	Device   int        `json:"device"`
	GUID     string     `json:"guid"`
	Board    string     `json:"board"`
	Firmware string     `json:"firmware"`
	Ports    []Port     `json:"ports"`
	VFOf     string     `json:"vf_of"`
	SwMng    bool       `json:"sw_mng"` // its VPD says that it manages NVSwitches
	Openable *bool      `json:"openable"`
	NUMA     *int       `json:"numa"`
	Prov     Provenance `json:"provenance"`
}

// Port of a NIC. Rate is in Mb/s, 0 if unknown.
type Port struct {
	Num   int      `json:"num"`
	State string   `json:"state"` // ACTIVE, DOWN, INIT, ...; "" if unknown
	Phys  string   `json:"phys"`
	Layer string   `json:"layer"` // InfiniBand or Ethernet; "" if unknown
	Rate  int      `json:"rate"`
	Width string   `json:"width"` // as sysfs writes it: "4X NDR"
	GIDs  []GID    `json:"gids"`
	MTU   int      `json:"mtu"`
	Addrs []string `json:"addresses"` // of its interface, with the length of the network: 10.1.2.3/24
}

// GID is one address of a port.
type GID struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Type  string `json:"type"`
	Net   string `json:"net"`
}

// NVSwitch is a switch chip; Visible says that it is a PCI device of this host.
type NVSwitch struct {
	ID      string `json:"id"` // PCI address, or "nvswitch" for one that is only known to exist
	Visible bool   `json:"visible"`
}

// Matrix holds distances in nvidia-smi's words. Level[i][j] is between Names[i] and Names[j]; "" is
// not told.
type Matrix struct {
	Names []string   `json:"names"`
	Level [][]string `json:"level"`
}

func intp(n int) *int { return &n }
