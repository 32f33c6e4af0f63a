package topology

import "strings"

// Vendors that decide what a device is.
const (
	vendorNVIDIA   = 0x10de
	vendorAMD      = 0x1002
	vendorIntel    = 0x8086
	vendorMellanox = 0x15b3
	vendorAmazon   = 0x1d0f
	vendorCray     = 0x17db
	vendorBroadcom = 0x1000
)

// isGPUClass says whether a class is one of a compute GPU. A display controller (0x0300) of NVIDIA
// computes; those of others may be the console's.
func isGPUClass(class string, vendor int) bool {
	switch {
	case strings.HasPrefix(class, "0x0302"), strings.HasPrefix(class, "0x0380"):
		return true
	case strings.HasPrefix(class, "0x03"):
		return vendor == vendorNVIDIA || vendor == 0
	case strings.HasPrefix(class, "0x1200"):
		return vendor == vendorAMD || vendor == vendorNVIDIA
	}
	return false
}

// isEFA says whether a device is an Elastic Fabric Adapter. ENA (0xec20) shares its class, but moves
// no data for others.
func isEFA(vendor, device int) bool { return vendor == vendorAmazon && device>>8 == 0xef }

// isSlingshot says whether a device is a Cray Cassini, which has no entry in /sys/class/infiniband.
func isSlingshot(vendor, device int) bool {
	return vendor == vendorCray && (device == 0x0501 || device == 0x0502)
}

// isBlackwellHGX says whether a GPU sits on a baseboard whose NVSwitches are not PCI devices of the
// host and are managed through ConnectX-7 functions.
func isBlackwellHGX(g *GPU) bool {
	if g.Vendor != vendorNVIDIA {
		return false
	}
	switch g.Device {
	case 0x2901, 0x2900, 0x2909, 0x3182, 0x3180, 0x31a1:
		return true
	}
	return strings.Contains(g.Name, "B200") && !strings.Contains(g.Name, "GB200") || strings.Contains(g.Name, "B300") && !strings.Contains(g.Name, "GB300")
}
