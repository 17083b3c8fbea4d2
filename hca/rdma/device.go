package rdma

import "ipoibd/hca"

// Device is an RDMA device of the kernel.
type Device struct {
	Name         string
	Index        uint32 // tells it from a later one of the same name
	NodeType     string
	NodeGUID     hca.GUID
	SysImageGUID hca.GUID
	PCIAddr      string // of the function that it, or the netdev under it, is
	Parent       string // netdev under a Soft-RoCE device; empty: hardware
	Verbs        string // uverbsN; empty: there is none, or not any more
	Ports        []Port
}

// Port is a port of a device. Its GUID is, on InfiniBand, the interface ID of its
// GID 0 (IBA 4.1.1); on Ethernet, where a port has none, the node's.
type Port struct {
	Num       uint8 // from 1
	State     hca.PortState
	LinkLayer hca.LinkLayer
	GUID      hca.GUID
	LID       uint16 // 0 on Ethernet
	SMLID     uint16 // likewise
	GIDs      []GID  // by index, without the empty ones; nil: not read
}

// GID is an entry of a port's table.
type GID struct {
	Index  int         `json:"index"`
	GID    hca.GID     `json:"gid"`
	Type   hca.GIDType `json:"type"`
	Netdev string      `json:"netdev,omitempty"`
}

// Port returns the port of a number.
func (d Device) Port(num uint8) (Port, bool) {
	for _, p := range d.Ports {
		if p.Num == num {
			return p, true
		}
	}
	return Port{}, false
}
