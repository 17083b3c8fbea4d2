package qprecovery

import (
	"slices"

	"ipoibd/hca"
)

// Identity identifies a device (R22).
type Identity struct {
	NodeGUID     hca.GUID `json:"node_guid"`
	PortGUID     hca.GUID `json:"port_guid"` // of the port in use
	SysImageGUID hca.GUID `json:"sys_image_guid"`
	PCIAddr      string   `json:"pci_addr"` // "" for a software device, or one without a PCI address
	Parent       string   `json:"parent"`   // netdev of a software device; "" of hardware
	Index        uint32   `json:"index"`    // the kernel's device index, which differs between instances; 0 if unknown
	Name         string   `json:"name"`     // may change; not part of the identity
	// Dead: the device is present on its bus and has a driver, but the kernel has no RDMA device of it,
	// as after a recovery by the driver that has failed. It cannot be opened. Not part of the identity.
	Dead bool `json:"dead"`
}

// Same reports whether two identities belong to the same device. A reset does not
// change the GUIDs. A software device derives them from the MAC of its netdev, which a
// bridge and its port can share, so Same compares the netdev as well.
func (i Identity) Same(o Identity) bool {
	return i.NodeGUID == o.NodeGUID && i.PortGUID == o.PortGUID &&
		i.SysImageGUID == o.SysImageGUID && i.PCIAddr == o.PCIAddr && i.Parent == o.Parent
}

// otherInstance reports whether both indexes are known and differ.
func otherInstance(a, b uint32) bool { return a != 0 && b != 0 && a != b }

// maxForeign bounds the foreign devices that are remembered; the oldest is
// dropped and would be reported again.
const maxForeign = 16

// foreigners remembers foreign devices, so that each is reported once.
type foreigners []Identity

// add reports whether a device is new.
func (f *foreigners) add(i Identity) bool {
	if slices.Contains(*f, i) {
		return false
	}
	if len(*f) == maxForeign {
		*f = slices.Delete(*f, 0, 1)
	}
	*f = append(*f, i)
	return true
}
