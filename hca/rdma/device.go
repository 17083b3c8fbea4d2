package rdma

import "ipoibd/hca"

// Device is an RDMA device of the kernel.
type Device struct {
	Name         string
	Index        uint32 // distinguishes it from a later device with the same name
	NodeType     string
	NodeGUID     hca.GUID
	SysImageGUID hca.GUID
	PCIAddr      string // PCI function of the device, or of the netdev below it
	Parent       string // netdev below a Soft-RoCE device; empty: hardware
	Verbs        string // uverbsN; empty: the device has none, or no longer has one
	Ports        []Port
}

// Port is a port of a device. On InfiniBand its GUID is the interface ID of its GID 0
// (IBA 4.1.1). On Ethernet a port has no GUID, so it is the node's.
type Port struct {
	Num       uint8 // from 1
	State     hca.PortState
	LinkLayer hca.LinkLayer
	GUID      hca.GUID
	SMLID     uint16 // 0 on Ethernet
	GIDs      []GID  // in the order of their indices, without empty entries; nil: not read
}

// GID is an entry of a port's table.
type GID struct {
	Index  int         `json:"index"`
	GID    hca.GID     `json:"gid"`
	Type   hca.GIDType `json:"type"`
	Netdev string      `json:"netdev,omitempty"`
	Here   bool        `json:"here"` // it is an address in this network namespace, as RoCE requires
}

// Usable reports whether an interface can use the GID.
func (g GID) Usable() bool { return g.Type == hca.GIDTypeRoCEv2 && g.Here }

// Port returns the port with a number.
func (d Device) Port(num uint8) (Port, bool) {
	for _, p := range d.Ports {
		if p.Num == num {
			return p, true
		}
	}
	return Port{}, false
}
