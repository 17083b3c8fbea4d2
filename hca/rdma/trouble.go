package rdma

import (
	"fmt"
	"slices"

	"ipoibd/hca"
)

// Trouble is a reason why a device or a port cannot carry an interface.
type Trouble uint8

// The troubles of a device, then of a port.
const (
	NoVerbs Trouble = iota
	NotIBTA
	NoGUID
	NoPort
	PortDown
	NoSubnetManager
	NoGID
	OnlyRoCEv1
	NotHere
	numTrouble
)

var troubleTexts = [numTrouble]string{
	"it has no verbs interface: load the module ib_uverbs, unless the device is being removed",
	"it is not an InfiniBand or RoCE device, so it does not support unreliable datagrams",
	"its node GUID is 0, so it cannot be identified: the host must assign a GUID to a virtual function",
	"it has no port",
	"it is not active: its link or the netdev below it is down",
	"no subnet manager has configured it: start one on the subnet, such as opensm",
	"it has no GID: set the netdev below it up and give it an IP address",
	"all its GIDs are of type RoCE v1, but RoCE v2 is required: " +
		"give the netdev below it an IP address, and use a driver with RoCE v2",
	"none of its GIDs is an address in this network namespace: " +
		"give the netdev below it an IP address, and a container the host's network",
}

func (t Trouble) String() string {
	if t >= numTrouble {
		return fmt.Sprintf("trouble %d", uint8(t))
	}
	return troubleTexts[t]
}

// nodeCA is the node type of InfiniBand and RoCE devices (node_type_show,
// drivers/infiniband/core/sysfs.c). Others are RNIC, usNIC and the like.
const nodeCA = "CA"

// Troubles returns the troubles of the device that do not depend on a port.
func (d Device) Troubles() (out []Trouble) {
	for t, is := range map[Trouble]bool{
		NoVerbs: d.Verbs == "",
		NotIBTA: d.NodeType != nodeCA,
		NoGUID:  d.NodeGUID == hca.GUID{},
		NoPort:  len(d.Ports) == 0,
	} {
		if is {
			out = append(out, t)
		}
	}
	slices.Sort(out)
	return out
}

// Troubles returns the troubles of the port. It includes the troubles of its GIDs only if the GIDs
// were read.
func (p Port) Troubles() (out []Trouble) {
	infiniBand := p.LinkLayer == hca.LinkLayerInfiniBand
	switch {
	case infiniBand && p.State == hca.PortInit, // the link is up; the subnet manager makes it ACTIVE
		infiniBand && p.State == hca.PortActive && p.SMLID == 0:
		out = append(out, NoSubnetManager)
	case p.State != hca.PortActive:
		out = append(out, PortDown)
	}
	return append(out, p.gidTroubles()...)
}

func (p Port) gidTroubles() []Trouble {
	v2 := func(g GID) bool { return g.Type == hca.GIDTypeRoCEv2 }
	switch {
	case p.GIDs == nil:
		return nil
	case len(p.GIDs) == 0:
		return []Trouble{NoGID}
	case p.LinkLayer == hca.LinkLayerInfiniBand:
		return nil
	case !slices.ContainsFunc(p.GIDs, v2):
		return []Trouble{OnlyRoCEv1}
	case !slices.ContainsFunc(p.GIDs, GID.Usable):
		return []Trouble{NotHere}
	}
	return nil
}
