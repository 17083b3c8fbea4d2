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
	ErrDown   = errors.New("port is not active")
	ErrNoGID  = errors.New("port has no usable GID: its netdev needs an IP address")
	ErrNoPKey = errors.New("P_Key is not in the port's table")
	ErrNoMTU  = errors.New("underlay MTU too small")
)

// Want is what an interface asks of its port.
type Want struct {
	Port uint8
	PKey hca.PKey
	GID  netip.Addr // invalid: chosen by rule
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
	Broadcast  Group
}

// MTU is the largest MTU of an interface under the plan, in bytes of IP packet.
func (p Plan) MTU() int { return p.MaxPayload - ipoib.HeaderLen }

// SameQP reports whether a queue pair made for p, with its groups, serves q as
// well: no queue pair depends on the MTUs.
func (p Plan) SameQP(q Plan) bool {
	p.MaxPayload, p.PortMTU = q.MaxPayload, q.PortMTU
	return p == q
}

// MakePlan chooses table entries and groups; the error wraps one of the
// reasons above.
func MakePlan(attr hca.PortAttr, w Want) (Plan, error) {
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
		PortMTU:   attr.MaxMTU,
		Broadcast: broadcastGroup(gid.GID, w),
	}, nil
}

// MinPayload is the least UD payload worth an interface: an IPv4 packet of 576
// bytes, which every host must accept (RFC 791), and the IPoIB header.
const MinPayload = 576 + ipoib.HeaderLen

// leastPayload is what a GID must carry that carries have bytes now. One that
// keeps to the standard's MTUs gets from 512 to 1024 and nowhere in between.
func leastPayload(have int) int {
	if have < MinPayload && (have == 0 || hca.MTU(have).Valid()) {
		return 1024
	}
	return MinPayload
}

func findPKey(table []hca.PKey, want hca.PKey) (int, error) {
	for i, k := range table {
		if k.Match(want) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("0x%04x: %w", uint16(want), ErrNoPKey)
}

// findGID returns the index of the wanted address or of the best GID.
func findGID(table []hca.GIDEntry, w Want) (int, error) {
	if w.GID.IsValid() {
		return findWanted(table, w.GID)
	}
	best, rank := -1, 0
	for i, e := range table {
		if e.GID.IsZero() {
			continue
		}
		if r := gidRank(e.GID.Addr()); r > rank || r == rank && e.GID == w.InUse {
			best, rank = i, r
		}
	}
	if best < 0 {
		return 0, ErrNoGID
	}
	return best, nil
}

func findWanted(table []hca.GIDEntry, a netip.Addr) (int, error) {
	want := hca.GIDFromAddr(a)
	i := slices.IndexFunc(table, func(e hca.GIDEntry) bool { return e.GID == want })
	if i < 0 || want.IsZero() {
		return 0, fmt.Errorf("%s: %w", a, ErrNoGID)
	}
	return i, nil
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
