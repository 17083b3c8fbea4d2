package port

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Reasons why a port cannot be used now. They are not failures: the reason may disappear.
var (
	ErrLinkLayer = errors.New("link layer InfiniBand is not supported yet: " +
		"groups have to be joined at the subnet manager; " +
		"only ports with link layer Ethernet (RoCE v2) can be used")
	ErrDown    = errors.New("port is not active")
	ErrNoGID   = errors.New("port has no usable GID")
	ErrGIDType = errors.New("only GIDs of type RoCE v2 can be used")
	ErrNoPKey  = errors.New("P_Key is not in the port's table")
	ErrNoMTU   = errors.New("underlay MTU too small")
)

// Want holds the requirements of an interface.
type Want struct {
	Port uint8
	PKey hca.PKey
	// GID and GIDIndex select the GID by its address or by its index in the table.
	// Without either (invalid, nil) it is chosen by the default rule.
	GID      netip.Addr
	GIDIndex *int
	// InUse is the GID of the current queue pair, or zero if there is none. Among
	// GIDs of equal rank it is preferred.
	InUse hca.GID
}

// Plan is how an interface uses its port.
type Plan struct {
	Port       uint8
	PKeyIndex  uint16
	PKey       hca.PKey
	GIDIndex   int
	GID        hca.GID
	MaxPayload int           // longest UD payload in bytes that peers may send, IPoIB header included
	Path       hca.PathLimit // that limits what is sent; zero: none
	PortMTU    hca.MTU       // the largest MTU that the port supports
	// Groups are the groups to which the queue pair attaches, first the broadcast
	// group. The slice does not change once the plan is made.
	Groups []Group
}

// Broadcast returns the broadcast group, whose Q_Key is the queue pair's.
func (p Plan) Broadcast() Group { return p.Groups[0] }

// MTU returns the largest possible MTU of the interface, in bytes of IP packet: what the port
// and the paths to all peers carry, but at least the MTU of MinPayload.
func (p Plan) MTU() int {
	payload := p.MaxPayload
	if p.Path.To.IsValid() {
		payload = min(payload, max(p.Path.MaxPayload, MinPayload))
	}
	return payload - ipoib.HeaderLen
}

// Fits reports whether all known paths carry the packets of an interface with an MTU.
func (p Plan) Fits(mtu int) bool {
	return !p.Path.To.IsValid() || mtu+ipoib.HeaderLen <= p.Path.Carries
}

// ReceiveMTU returns the largest MTU that peers may have. Their paths may carry more than this
// host's.
func (p Plan) ReceiveMTU() int { return p.MaxPayload - ipoib.HeaderLen }

// SameQP reports whether a queue pair made for p, with its groups, also serves q. Queue pairs
// do not depend on the MTUs.
func (p Plan) SameQP(q Plan) bool { return p.SameExceptGroups(q) && slices.Equal(p.Groups, q.Groups) }

// SameExceptGroups reports whether a queue pair made for p serves q once it is attached to
// the groups of q. The broadcast group must be the same, because its Q_Key is an attribute of
// the queue pair.
func (p Plan) SameExceptGroups(q Plan) bool {
	return p.Port == q.Port &&
		p.PKeyIndex == q.PKeyIndex && p.PKey == q.PKey &&
		p.GIDIndex == q.GIDIndex && p.GID == q.GID &&
		slices.Equal(p.Groups[:min(1, len(p.Groups))], q.Groups[:min(1, len(q.Groups))])
}

// Equal reports whether two plans are equal.
func (p Plan) Equal(q Plan) bool {
	return p.SameQP(q) && p.MaxPayload == q.MaxPayload && p.Path == q.Path && p.PortMTU == q.PortMTU
}

// MakePlan chooses table entries and groups. Its error wraps one of the reasons above.
func MakePlan(attr hca.PortAttr, w Want) (Plan, error) {
	if attr.LinkLayer == hca.LinkLayerInfiniBand {
		return Plan{}, fmt.Errorf("port %d: %w", w.Port, ErrLinkLayer)
	}
	if attr.State != hca.PortActive {
		return Plan{}, fmt.Errorf("port %d is %s: %w", w.Port, attr.State, ErrDown)
	}
	pkey, err := findPKey(attr.PKeys, w.PKey)
	if err != nil {
		return Plan{}, err
	}
	index, err := findGID(attr.GIDs, w)
	if err != nil {
		return Plan{}, err
	}
	gid, need := attr.GIDs[index], MinPayload
	if have := gid.MaxPayload; have < MinPayload && (have == 0 || hca.MTU(have).Valid()) {
		need = 1024 // the next payload after 512 of a GID with the standard's MTUs only
	}
	if need > gid.MaxPayload {
		return Plan{}, fmt.Errorf("%w: GID %s carries %d bytes of payload, but %d are required: "+
			"raise the underlay's MTU by %d",
			ErrNoMTU, gid.GID, gid.MaxPayload, need, need-gid.MaxPayload)
	}
	mgid := ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, w.PKey)
	attach := mgid
	if gid.GID.Addr().Is4() {
		attach = hca.GIDFromAddr(groupIPv4)
	}
	return Plan{
		Port: w.Port, PKeyIndex: uint16(pkey), PKey: w.PKey,
		GIDIndex: index, GID: gid.GID, MaxPayload: gid.MaxPayload, Path: gid.Path,
		PortMTU: attr.MaxMTU,
		Groups:  []Group{{MGID: mgid, Attach: attach, MLID: NoMulticastL, QKey: QKey}},
	}, nil
}

// MinPayload is the smallest UD payload with which an interface is useful: an IPv4 packet of
// 576 bytes, which every host must accept (RFC 791), and the IPoIB header.
const MinPayload = 576 + ipoib.HeaderLen

// findPKey returns the index of the wanted P_Key, or else of the other kind of membership in
// the same partition, like ib_find_pkey of drivers/infiniband/core/device.c. Two limited
// members cannot communicate.
func findPKey(table []hca.PKey, want hca.PKey) (int, error) {
	i := slices.Index(table, want)
	if i < 0 {
		i = slices.IndexFunc(table, want.Match)
	}
	if i < 0 {
		return 0, fmt.Errorf("0x%04x: %w; use another pkey, or add this one to the table "+
			"(software HCA: pkeys of the device)", uint16(want), ErrNoPKey)
	}
	return i, nil
}

// maxGIDs is how many GIDs an address handle can refer to: sgid_index of struct
// ibv_global_route has 8 bits (infiniband/verbs.h).
const maxGIDs = 256

// findGID returns the index of the wanted GID or of the best one.
func findGID(table []hca.GIDEntry, w Want) (int, error) {
	table = table[:min(len(table), maxGIDs)]
	switch {
	case w.GIDIndex != nil:
		return findIndex(table, *w.GIDIndex)
	case w.GID.IsValid():
		return findAddr(table, w.GID)
	}
	best, rank := -1, 0
	for i, e := range table {
		if !usable(e) {
			continue
		}
		if r := gidRank(e.GID.Addr()); r > rank || r == rank && e.GID == w.InUse {
			best, rank = i, r
		}
	}
	if best >= 0 {
		return best, nil
	}
	if i := slices.IndexFunc(table, func(e hca.GIDEntry) bool { return !e.GID.IsZero() }); i >= 0 {
		return 0, fmt.Errorf("%w: %w, and the port has none; GID %d is of type %s",
			ErrNoGID, ErrGIDType, i, table[i].Type)
	}
	return 0, fmt.Errorf("%w: the netdev below it needs an IP address", ErrNoGID)
}

// usable reports whether an interface can use a GID.
func usable(e hca.GIDEntry) bool { return !e.GID.IsZero() && e.Type == hca.GIDTypeRoCEv2 }

// findAddr returns the index of the usable entry of an address, which has an entry for each
// type.
func findAddr(table []hca.GIDEntry, a netip.Addr) (int, error) {
	want, other := hca.GIDFromAddr(a), -1
	for i, e := range table {
		if e.GID != want || want.IsZero() {
			continue
		}
		if usable(e) {
			return i, nil
		}
		other = i
	}
	if other >= 0 {
		return 0, fmt.Errorf("%s: %w", a, typeError(other, table[other]))
	}
	return 0, fmt.Errorf("%w: none is %s; 'ipoibd devices' lists them", ErrNoGID, a)
}

func findIndex(table []hca.GIDEntry, i int) (int, error) {
	switch {
	case i < 0 || i >= len(table):
		return 0, fmt.Errorf("%w: there is no index %d, the table has %d entries", ErrNoGID, i, len(table))
	case table[i].GID.IsZero():
		return 0, fmt.Errorf("%w: GID %d is empty", ErrNoGID, i)
	case !usable(table[i]):
		return 0, typeError(i, table[i])
	}
	return i, nil
}

func typeError(i int, e hca.GIDEntry) error {
	return fmt.Errorf("%w: GID %d is of type %s", ErrGIDType, i, e.Type)
}

// gidRank orders GIDs by the default rule. IPv4 is first, because with hardware multicast
// works only over IPv4.
func gidRank(a netip.Addr) int {
	switch {
	case a.Is4():
		return 3
	case !a.IsLinkLocalUnicast():
		return 2
	}
	return 1
}
