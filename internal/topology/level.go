package topology

import (
	"strconv"
	"strings"
)

// Level is a distance in nvidia-smi's words: X, NV#, PIX, PXB, PHB, NODE, SYS. LevelUnknown stands
// for "the source does not tell".
type Level string

// Levels of nvidia-smi.
const (
	LevelSelf    Level = "X"
	LevelPIX     Level = "PIX"
	LevelPXB     Level = "PXB"
	LevelPHB     Level = "PHB"
	LevelNODE    Level = "NODE"
	LevelSYS     Level = "SYS"
	LevelUnknown Level = "?"

	levelSOC Level = "SOC" // SYS, as drivers before 2017 print it
)

// NVLevel is NV#.
func NVLevel(links int) Level { return Level("NV" + strconv.Itoa(links)) }

// rank orders levels, nearest first.
func (l Level) rank() int {
	switch l {
	case LevelSelf:
		return 0
	case LevelPIX:
		return 2
	case LevelPXB:
		return 3
	case LevelPHB:
		return 4
	case LevelNODE:
		return 5
	case LevelSYS, levelSOC:
		return 6
	case LevelUnknown, "":
		return 7
	}
	return 1 // NV#, C2C
}

// Path is a distance in NCCL's words.
type Path string

// Path types of NCCL. There is no NODE: the same NUMA node but another root complex is PHB.
const (
	PathLOC Path = "LOC"
	PathNVL Path = "NVL"
	PathNVB Path = "NVB"
	PathC2C Path = "C2C"
	PathPIX Path = "PIX"
	PathPXB Path = "PXB"
	PathP2C Path = "P2C"
	PathPXN Path = "PXN"
	PathPHB Path = "PHB"
	PathSYS Path = "SYS"
	PathNET Path = "NET"
	PathDIS Path = "DIS"
)

var pathOrder = []Path{PathLOC, PathNVL, PathNVB, PathC2C, PathPIX, PathPXB, PathP2C, PathPXN, PathPHB, PathSYS, PathNET, PathDIS}

func (p Path) rank() int {
	for i, q := range pathOrder {
		if p == q {
			return i
		}
	}
	return len(pathOrder)
}

// pathOf is NCCL's word for a level that a source told.
func pathOf(l Level) Path {
	switch l {
	case LevelSelf:
		return PathLOC
	case LevelPIX, LevelPXB, LevelPHB, LevelSYS:
		return Path(l)
	case LevelNODE:
		return PathPHB
	case levelSOC:
		return PathSYS
	}
	if strings.HasPrefix(string(l), "NV") {
		return PathNVL
	}
	return PathDIS
}

// Legend explains both vocabularies, one word a line: word, nvidia-smi's meaning, NCCL's meaning.
var Legend = [][3]string{
	{"NV# / NVL", "# NVLinks between the two (over switches: all of the GPU's)", "NVLink, direct or over NVSwitch; NVB: over one other GPU"},
	{"PIX / PIX", "at most one PCI bridge (one switch)", "one PCI switch at most"},
	{"PXB / PXB", "several PCI bridges, no host bridge", "several PCI switches, no host bridge"},
	{"PHB / PHB", "one host bridge (root complex)", "through the CPU within its NUMA node"},
	{"NODE / PHB", "host bridges of one NUMA node", "NCCL has no NODE: this is its PHB"},
	{"SYS / SYS", "between NUMA nodes (SOC in matrices from before 2017)", "between NUMA nodes"},
	{"- / P2C", "nvidia-smi has no word for it", "NIC near a Grace GPU, over C2C"},
	{"- / PXN", "nvidia-smi has no word for it", "NIC reached over NVLink through another GPU"},
}
