package rdma

import (
	"fmt"
	"slices"

	"ipoibd/hca"
)

// Trouble is a reason why a device or a port cannot carry an interface.
type Trouble uint8

// Troubles of a device, then those of a port.
const (
	NoVerbs Trouble = iota
	NotIBTA
	NoGUID
	NoPort
	InfiniBand
	PortDown
	NoSubnetManager
	NoGID
	OnlyRoCEv1
	numTrouble
)

var troubleTexts = [numTrouble]string{
	"it has no verbs interface: load the module ib_uverbs, or it is being removed",
	"it is not an InfiniBand or RoCE device, so it has no unreliable datagrams",
	"its node GUID is 0, by which it cannot be told from others: a virtual function is given one by the host",
	"it has no port",
	"its link layer is InfiniBand, which is not supported yet: joining groups at the subnet manager is missing",
	"it is not active: its link, or the netdev under it, is down",
	"SM LID is 0: no subnet manager has configured it",
	"it has no GID: the netdev under it needs an IP address, and to be up",
	"all its GIDs are of type RoCE v1, and RoCE v2 is needed: the netdev under it needs an IP address, and the driver RoCE v2",
}

func (t Trouble) String() string {
	if t >= numTrouble {
		return fmt.Sprintf("trouble %d", uint8(t))
	}
	return troubleTexts[t]
}

// nodeCA is the node type of what speaks InfiniBand or RoCE (node_type_show,
// drivers/infiniband/core/sysfs.c); others are RNIC, usNIC and the like.
const nodeCA = "CA"

// Troubles returns what is wrong with the device, whatever the port.
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

// Troubles returns what is wrong with the port; with its GIDs only once they were
// read.
func (p Port) Troubles() (out []Trouble) {
	infiniBand := p.LinkLayer == hca.LinkLayerInfiniBand
	if infiniBand {
		out = append(out, InfiniBand)
	}
	if p.State != hca.PortActive {
		out = append(out, PortDown)
	}
	if infiniBand && p.SMLID == 0 {
		out = append(out, NoSubnetManager)
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
	case p.LinkLayer != hca.LinkLayerInfiniBand && !slices.ContainsFunc(p.GIDs, v2):
		return []Trouble{OnlyRoCEv1}
	}
	return nil
}
