package port

import (
	"errors"
	"fmt"
	"net/netip"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Reasons why a port cannot be used now. They are states to wait in, not
// failures.
var (
	ErrDown   = errors.New("port is not active")
	ErrNoGID  = errors.New("port has no usable GID")
	ErrNoPKey = errors.New("P_Key is not in the port's table")
	ErrNoMTU  = errors.New("underlay MTU too small")
)

// Want is what an interface asks of its port.
type Want struct {
	Port uint8
	PKey hca.PKey
	GID  netip.Addr // invalid: chosen by rule
}

// Plan is how an interface uses its port. Two equal plans need the same QP and
// the same groups.
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
	index, err := findGID(attr.GIDs, w.GID)
	if err != nil {
		return Plan{}, err
	}
	gid := attr.GIDs[index]
	if gid.MaxPayload < MinPayload {
		return Plan{}, fmt.Errorf("%w: GID %s carries %d bytes of payload and %d are needed; raise the underlay's MTU by %d",
			ErrNoMTU, gid.GID, gid.MaxPayload, MinPayload, MinPayload-gid.MaxPayload)
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

func findPKey(table []hca.PKey, want hca.PKey) (int, error) {
	for i, k := range table {
		if k.Match(want) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("0x%04x: %w", uint16(want), ErrNoPKey)
}

// findGID returns the index of the wanted address or of the best GID.
func findGID(table []hca.GIDEntry, want netip.Addr) (int, error) {
	best, rank := -1, 0
	for i, e := range table {
		if e.GID.IsZero() {
			continue
		}
		if want.IsValid() && e.GID == hca.GIDFromAddr(want) {
			return i, nil
		}
		if r := gidRank(e.GID.Addr()); r > rank {
			best, rank = i, r
		}
	}
	if want.IsValid() {
		return 0, fmt.Errorf("%s: %w", want, ErrNoGID)
	}
	if best < 0 {
		return 0, ErrNoGID
	}
	return best, nil
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
