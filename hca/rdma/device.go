package rdma

import "ipoibd/hca"

// Device is an RDMA device of the kernel.
type Device struct {
	Name         string   `json:"name"`
	Index        uint32   `json:"index"` // tells it from a later one of the same name
	NodeType     string   `json:"node_type"`
	NodeGUID     hca.GUID `json:"node_guid"`
	SysImageGUID hca.GUID `json:"sys_image_guid"`
	Firmware     string   `json:"firmware,omitempty"`
	PCIAddr      string   `json:"pci_addr,omitempty"` // of the function that it, or the netdev under it, is
	Parent       string   `json:"parent,omitempty"`   // netdev under a Soft-RoCE device; empty: hardware
	Verbs        string   `json:"verbs,omitempty"`    // uverbsN; empty: there is none, or not any more
	Ports        []Port   `json:"ports"`
}

// Port is a port of a device. Its GUID is, on InfiniBand, the interface ID of its
// GID 0 (IBA 4.1.1); on Ethernet, where a port has none, the node's.
type Port struct {
	Num       uint8         `json:"num"` // from 1
	State     hca.PortState `json:"state"`
	LinkLayer hca.LinkLayer `json:"link_layer"`
	GUID      hca.GUID      `json:"guid"`
	LID       uint16        `json:"lid"`    // 0 on Ethernet
	SMLID     uint16        `json:"sm_lid"` // likewise
	GIDs      []GID         `json:"gids"`   // by index, without the empty ones; nil: not read
}

// GID is an entry of a port's table.
type GID struct {
	Index  int         `json:"index"`
	GID    hca.GID     `json:"gid"`
	Type   hca.GIDType `json:"type"`
	Netdev string      `json:"netdev,omitempty"`
	Here   bool        `json:"here"` // an address of this network namespace, as a GID of RoCE must be for its use
}

// Usable reports whether an interface can have the GID.
func (g GID) Usable() bool { return g.Type == hca.GIDTypeRoCEv2 && g.Here }

// Port returns the port of a number.
func (d Device) Port(num uint8) (Port, bool) {
	for _, p := range d.Ports {
		if p.Num == num {
			return p, true
		}
	}
	return Port{}, false
}

// Netdev is a netdev that carries a port, empty where none is known.
func (p Port) Netdev() string {
	for _, g := range p.GIDs {
		if g.Netdev != "" {
			return g.Netdev
		}
	}
	return ""
}
