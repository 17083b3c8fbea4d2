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
	ErrDown    = errors.New("port is not active")
	ErrNoSM    = errors.New("no subnet manager has configured the port; start one on the subnet, such as opensm")
	ErrNoGroup = errors.New("the port has not joined the broadcast group of the partition")
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
	// Joined are the groups that the port has joined at the subnet administrator. On InfiniBand the
	// first is the broadcast group, without which there is no plan.
	Joined []Group
}

// Plan is how an interface uses its port.
type Plan struct {
	Port       uint8
	PKeyIndex  uint16
	PKey       hca.PKey
	Limited    bool // the port is a limited member of the partition, so the queue pair cannot send to itself (IBA 10.9.3)
	GIDIndex   int
	GID        hca.GID
	LID        hca.LID       // base LID; 0 on Ethernet
	LMC        uint8         // path bits of LIDs, see [hca.PortAttr]
	MaxPayload int           // longest UD payload in bytes that peers may send, IPoIB header included
	Path       hca.PathLimit // that limits what is sent; zero: none
	PortMTU    hca.MTU       // the largest MTU that the port supports
	// Groups are the groups to which the queue pair attaches, first the broadcast
	// group. The slice does not change once the plan is made.
	Groups []Group
}

// InfiniBand reports whether the port has link layer InfiniBand.
func (p Plan) InfiniBand() bool { return p.LID != 0 }

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
func (p Plan) SameQP(q Plan) bool {
	return p.SameExceptGroups(q) && p.LID == q.LID && p.LMC == q.LMC && slices.Equal(p.Groups, q.Groups)
}

// SameExceptGroups reports whether a queue pair made for p serves q once it is attached to
// the groups of q, has the Q_Key of its broadcast group, and sends to the LID of q. The broadcast
// group itself must be the same: it defines the link.
func (p Plan) SameExceptGroups(q Plan) bool {
	link := func(p Plan) (l [2]hca.GID) {
		if len(p.Groups) > 0 {
			l = [...]hca.GID{p.Broadcast().MGID, p.Broadcast().Attach}
		}
		return l
	}
	return p.Port == q.Port &&
		p.PKeyIndex == q.PKeyIndex && p.PKey == q.PKey && p.Limited == q.Limited &&
		p.GIDIndex == q.GIDIndex && p.GID == q.GID &&
		p.InfiniBand() == q.InfiniBand() && link(p) == link(q)
}

// SameExceptPKeyIndex reports whether a queue pair made for p serves q, as in SameExceptGroups, once it has been reset
// and has the P_Key index of q. A subnet manager may move a P_Key to another index, and change the membership.
func (p Plan) SameExceptPKeyIndex(q Plan) bool {
	p.PKeyIndex, p.Limited = q.PKeyIndex, q.Limited
	return p.SameExceptGroups(q)
}

// Equal reports whether two plans are equal.
func (p Plan) Equal(q Plan) bool {
	return p.SameQP(q) && p.MaxPayload == q.MaxPayload && p.Path == q.Path && p.PortMTU == q.PortMTU
}

// MakePlan chooses table entries and groups. Its error wraps one of the reasons above.
func MakePlan(attr hca.PortAttr, w Want) (Plan, error) {
	if err := usable(attr); err != nil {
		return Plan{}, fmt.Errorf("port %d is %s: %w", w.Port, attr.State, err)
	}
	pkey, err := findPKey(attr, w.PKey)
	if err != nil {
		return Plan{}, err
	}
	index, err := findGID(attr, w)
	if err != nil {
		return Plan{}, err
	}
	gid := attr.GIDs[index]
	p := Plan{
		Port: w.Port, PKeyIndex: uint16(pkey), PKey: w.PKey, Limited: attr.PKeys[pkey]&hca.PKeyMembership == 0,
		GIDIndex: index, GID: gid.GID, MaxPayload: gid.MaxPayload, Path: gid.Path,
		PortMTU: attr.MaxMTU,
	}
	if attr.LinkLayer == hca.LinkLayerInfiniBand {
		p.LID, p.LMC = hca.LID(attr.LID), attr.LMC
		return p, p.useJoined(w)
	}
	if err := roomy(gid); err != nil {
		return Plan{}, err
	}
	p.Groups = append([]Group{ethernetBroadcast(gid.GID, w.PKey)}, w.Joined...)
	return p, nil
}

// usable returns why the port cannot be used now.
func usable(attr hca.PortAttr) error {
	infiniBand := attr.LinkLayer == hca.LinkLayerInfiniBand
	switch {
	case infiniBand && attr.State == hca.PortInit, // the subnet manager makes it ACTIVE (IBA 14.3.5)
		infiniBand && attr.State == hca.PortActive && (attr.SMLID == 0 || attr.LID == 0):
		return ErrNoSM
	case attr.State != hca.PortActive:
		return ErrDown
	}
	return nil
}

// roomy returns an error if a RoCE GID carries less than an interface needs.
func roomy(gid hca.GIDEntry) error {
	need := MinPayload
	if have := gid.MaxPayload; have < MinPayload && (have == 0 || hca.MTU(have).Valid()) {
		need = 1024 // the next payload after 512 of a GID with the standard's MTUs only
	}
	if need > gid.MaxPayload {
		return fmt.Errorf("%w: GID %s carries %d bytes of payload, but %d are required: "+
			"raise the underlay's MTU by %d",
			ErrNoMTU, gid.GID, gid.MaxPayload, need, need-gid.MaxPayload)
	}
	return nil
}

// ethernetBroadcast returns the broadcast group of a partition for a RoCE GID.
func ethernetBroadcast(gid hca.GID, pkey hca.PKey) Group {
	mgid := ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, pkey)
	attach := mgid
	if gid.Addr().Is4() {
		attach = hca.GIDFromAddr(groupIPv4)
	}
	return Group{MGID: mgid, Attach: attach, QKey: QKey, Path: hca.UDPath{HopLimit: GroupHops}}
}

// useJoined makes the groups that an InfiniBand port has joined those of the plan. The broadcast group
// limits the payload (RFC 4391 section 5).
func (p *Plan) useJoined(w Want) error {
	broadcast := ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, w.PKey)
	if len(w.Joined) == 0 || w.Joined[0].MGID != broadcast {
		return fmt.Errorf("P_Key 0x%04x: %w", uint16(w.PKey), ErrNoGroup)
	}
	p.Groups = w.Joined
	p.MaxPayload = min(p.MaxPayload, int(p.Broadcast().MTU))
	if p.MaxPayload < MinPayload {
		return fmt.Errorf("%w: the broadcast group carries %d bytes of payload, but %d are required: "+
			"raise the MTU of the partition at the subnet manager", ErrNoMTU, p.MaxPayload, MinPayload)
	}
	return nil
}

// MinPayload is the smallest UD payload with which an interface is useful: an IPv4 packet of
// 576 bytes, which every host must accept (RFC 791), and the IPoIB header.
const MinPayload = 576 + ipoib.HeaderLen

// findPKey returns the index of the wanted P_Key, or else of the other kind of membership in
// the same partition, like ib_find_pkey of drivers/infiniband/core/device.c. Two limited
// members cannot communicate.
func findPKey(attr hca.PortAttr, want hca.PKey) (int, error) {
	i := slices.Index(attr.PKeys, want)
	if i < 0 {
		i = slices.IndexFunc(attr.PKeys, want.Match)
	}
	if i < 0 {
		remedy := "add this one to the table (software HCA: pkeys of the device)"
		if attr.LinkLayer == hca.LinkLayerInfiniBand {
			remedy = "add the port to the partition at the subnet manager"
		}
		return 0, fmt.Errorf("0x%04x: %w; use another pkey, or %s", uint16(want), ErrNoPKey, remedy)
	}
	return i, nil
}

// maxGIDs is how many GIDs an address handle can refer to: sgid_index of struct
// ibv_global_route has 8 bits (infiniband/verbs.h).
const maxGIDs = 256

// findGID returns the index of the wanted GID or of the best one. Ports of InfiniBand have GIDs of one type, the first
// is the default.
func findGID(attr hca.PortAttr, w Want) (int, error) {
	t := gidTable{attr.GIDs[:min(len(attr.GIDs), maxGIDs)], hca.GIDTypeRoCEv2}
	rank := func(e hca.GIDEntry) int { return gidRank(e.GID.Addr()) }
	if attr.LinkLayer == hca.LinkLayerInfiniBand {
		t.typ, rank = hca.GIDTypeIB, func(hca.GIDEntry) int { return 1 }
	}
	switch {
	case w.GIDIndex != nil:
		return t.findIndex(*w.GIDIndex)
	case w.GID.IsValid():
		return t.findAddr(w.GID)
	}
	best, top := -1, 0
	for i, e := range t.entries {
		if !t.usable(e) {
			continue
		}
		if r := rank(e); r > top || r == top && e.GID == w.InUse {
			best, top = i, r
		}
	}
	if best >= 0 {
		return best, nil
	}
	if i := slices.IndexFunc(t.entries, func(e hca.GIDEntry) bool { return !e.GID.IsZero() }); i >= 0 {
		return 0, fmt.Errorf("%w: %w, and the port has none; GID %d is of type %s",
			ErrNoGID, ErrGIDType, i, t.entries[i].Type)
	}
	return 0, fmt.Errorf("%w: the netdev below it needs an IP address", ErrNoGID)
}

// gidTable is a port's table of GIDs. An interface can use those of one type.
type gidTable struct {
	entries []hca.GIDEntry
	typ     hca.GIDType
}

// usable reports whether an interface can use a GID.
func (t gidTable) usable(e hca.GIDEntry) bool { return !e.GID.IsZero() && e.Type == t.typ }

// findAddr returns the index of the usable entry of an address, which has an entry for each
// type.
func (t gidTable) findAddr(a netip.Addr) (int, error) {
	want, other := hca.GIDFromAddr(a), -1
	for i, e := range t.entries {
		if e.GID != want || want.IsZero() {
			continue
		}
		if t.usable(e) {
			return i, nil
		}
		other = i
	}
	if other >= 0 {
		return 0, fmt.Errorf("%s: %w", a, t.typeError(other))
	}
	return 0, fmt.Errorf("%w: none is %s; 'ipoibd devices' lists them", ErrNoGID, a)
}

func (t gidTable) findIndex(i int) (int, error) {
	switch {
	case i < 0 || i >= len(t.entries):
		return 0, fmt.Errorf("%w: there is no index %d, the table has %d entries", ErrNoGID, i, len(t.entries))
	case t.entries[i].GID.IsZero():
		return 0, fmt.Errorf("%w: GID %d is empty", ErrNoGID, i)
	case !t.usable(t.entries[i]):
		return 0, t.typeError(i)
	}
	return i, nil
}

func (t gidTable) typeError(i int) error {
	return fmt.Errorf("%w: GID %d is of type %s", ErrGIDType, i, t.entries[i].Type)
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
