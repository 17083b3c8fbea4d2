package port

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Reasons why a port cannot be used now. They are states to wait in, not
// failures.
var (
	ErrLinkLayer = errors.New("link layer InfiniBand is not supported yet: groups have to be joined at the subnet manager; " +
		"only ports with link layer Ethernet (RoCE v2) can be used")
	ErrDown    = errors.New("port is not active")
	ErrNoGID   = errors.New("port has no usable GID")
	ErrGIDType = errors.New("only GIDs of type RoCE v2 can be used")
	ErrNoPKey  = errors.New("P_Key is not in the port's table")
	ErrNoMTU   = errors.New("underlay MTU too small")
)

// Want is what an interface asks of its port.
type Want struct {
	Port uint8
	PKey hca.PKey
	// GID and GIDIndex name the GID to use by its address, or by its place in the
	// table. Without either (invalid, nil) it is chosen by rule.
	GID      netip.Addr
	GIDIndex *int
	// InUse is the GID that a queue pair has now, zero without one. Among GIDs
	// that the rule holds equal it is kept.
	InUse hca.GID
}

// Plan is how an interface uses its port.
type Plan struct {
	Port       uint8
	PKeyIndex  uint16
	PKey       hca.PKey
	GIDIndex   int
	GID        hca.GID
	MaxPayload int     // longest UD payload in bytes, IPoIB header included
	PortMTU    hca.MTU // the largest that the port may come to have
	// Groups are those that the queue pair attaches to. The first one is the broadcast
	// group. The slice is not changed once the plan is made.
	Groups []Group
}

// Broadcast returns the broadcast group, whose Q_Key is that of the queue pair.
func (p Plan) Broadcast() Group { return p.Groups[0] }

// MTU is the largest MTU of an interface under the plan, in bytes of IP packet.
func (p Plan) MTU() int { return p.MaxPayload - ipoib.HeaderLen }

// SameQP reports whether a queue pair made for p, with its groups, serves q as
// well: no queue pair depends on the MTUs.
func (p Plan) SameQP(q Plan) bool {
	return p.Port == q.Port && p.PKeyIndex == q.PKeyIndex && p.PKey == q.PKey &&
		p.GIDIndex == q.GIDIndex && p.GID == q.GID && slices.Equal(p.Groups, q.Groups)
}

// Equal reports whether two plans are the same.
func (p Plan) Equal(q Plan) bool {
	return p.SameQP(q) && p.MaxPayload == q.MaxPayload && p.PortMTU == q.PortMTU
}

// MakePlan chooses table entries and groups; the error wraps one of the
// reasons above.
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
	gid := attr.GIDs[index]
	if need := leastPayload(gid.MaxPayload); need > gid.MaxPayload {
		return Plan{}, fmt.Errorf("%w: GID %s carries %d bytes of payload and %d are needed; raise the underlay's MTU by %d",
			ErrNoMTU, gid.GID, gid.MaxPayload, need, need-gid.MaxPayload)
	}
	return Plan{
		Port: w.Port, PKeyIndex: uint16(pkey), PKey: w.PKey,
		GIDIndex: index, GID: gid.GID, MaxPayload: gid.MaxPayload,
		PortMTU: attr.MaxMTU,
		Groups:  []Group{broadcastGroup(gid.GID, w)},
	}, nil
}

// MinPayload is the least UD payload worth an interface: an IPv4 packet of 576
// bytes, which every host must accept (RFC 791), and the IPoIB header.
const MinPayload = 576 + ipoib.HeaderLen

// leastPayload returns the payload that a GID must carry, if it carries have bytes now. A
// GID that is limited to standard MTUs can only change from 512 to 1024.
func leastPayload(have int) int {
	if have < MinPayload && (have == 0 || hca.MTU(have).Valid()) {
		return 1024
	}
	return MinPayload
}

// findPKey finds the entry of a full member, else that of a limited one of the same
// partition, which other limited members neither hear nor are heard by (as
// ib_find_pkey, drivers/infiniband/core/device.c).
func findPKey(table []hca.PKey, want hca.PKey) (int, error) {
	i := slices.Index(table, want)
	if i < 0 {
		i = slices.IndexFunc(table, want.Match)
	}
	if i < 0 {
		return 0, fmt.Errorf("0x%04x: %w", uint16(want), ErrNoPKey)
	}
	return i, nil
}

// maxGIDs bounds a table by what an address handle can name: sgid_index of struct
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
	if best < 0 {
		return 0, noGID(table)
	}
	return best, nil
}

// usable: what is not empty, and carried as we send it.
func usable(e hca.GIDEntry) bool { return !e.GID.IsZero() && e.Type == hca.GIDTypeRoCEv2 }

// noGID is why nothing of a table can be used.
func noGID(table []hca.GIDEntry) error {
	i := slices.IndexFunc(table, func(e hca.GIDEntry) bool { return !e.GID.IsZero() })
	if i < 0 {
		return fmt.Errorf("%w: the netdev under it needs an IP address", ErrNoGID)
	}
	return fmt.Errorf("%w: %w, and the port has none; GID %d is of type %s", ErrNoGID, ErrGIDType, i, table[i].Type)
}

// findAddr finds the entry of an address: it has one for each type.
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

// gidRank orders GIDs by the default rule; IPv4 is first because multicast
// with hardware works over it alone.
func gidRank(a netip.Addr) int {
	switch {
	case a.Is4():
		return 3
	case !a.IsLinkLocalUnicast():
		return 2
	}
	return 1
}
