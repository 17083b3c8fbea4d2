package memsubnet

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
)

// Drop is the reason for which a message was not forwarded.
type Drop string

// Reasons for a drop.
const (
	DropInactive  Drop = "port not active"           // of the sender or a receiver
	DropNoLID     Drop = "no port with this LID"     // DLID of a unicast
	DropWrongGID  Drop = "not the port of this GID"  // DGID of a unicast, or an empty SGID
	DropNotMember Drop = "sender is not a member"    // of the MLID, full or send-only
	DropNotJoined Drop = "receiver is not a member"  // full; once for each port with a QP attached
	DropPKey      Drop = "no P_Key of the port fits" // at a receiving port
	DropBadMAD    Drop = "MAD not acceptable"        // at the subnet manager
	DropLostMAD   Drop = "MAD lost"                  // by SM.Fate
)

// MLIDs of multicast groups (IBA 4.1.3). 0xffff is the permissive LID.
const (
	firstMLID = 0xc000
	lastMLID  = 0xfffe
)

func isMLID(lid uint16) bool { return lid >= firstMLID && lid <= lastMLID }

// Subnet is one InfiniBand subnet. Its methods may be called from any goroutine.
type Subnet struct {
	fabric *memfabric.Fabric
	sm     *manager // nil: there is no subnet administrator

	mu      sync.Mutex // guards the fields below, and all ports; no other lock is taken while it is held
	view    SM         // its LID and SL may change
	ports   []*Port
	members map[member]bool // value: full member
	groups  map[group]int   // numbers of the addresses that stand for groups
	headers []headers       // by number
	numbers map[headers]int
	drops   map[Drop]uint64
}

// member is a port's membership of a group.
type member struct {
	port *Port
	group
}

// group is a multicast group at the MLID that the subnet manager has assigned.
type group struct {
	mgid hca.GID
	mlid uint16
}

// New returns a subnet without ports, on a fabric that the caller owns. No other user of the fabric
// has a netdev with the name of a port, or "subnet manager".
func New(f *memfabric.Fabric, sm SM) *Subnet {
	s := &Subnet{
		fabric: f, view: sm,
		members: map[member]bool{}, groups: map[group]int{}, numbers: map[headers]int{}, drops: map[Drop]uint64{},
	}
	if sm.SA != nil {
		s.sm = startManager(s, sm)
	}
	return s
}

// Close stops the subnet manager, and waits for its goroutines. It does not close devices. The SA must not
// call it.
func (s *Subnet) Close() {
	if s.sm != nil {
		s.sm.close()
	}
}

// Attach adds a port as a subnet manager configures it: ACTIVE, with MTU 2048, the GID of the default
// prefix and the default P_Key. It panics if another port has the GUID.
func (s *Subnet) Attach(name string, guid hca.GUID, lid uint16) *Port {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &Port{
		subnet: s, name: name, wire: wireAddr(guid),
		attr: hca.PortAttr{
			State: hca.PortActive, MaxMTU: hca.MaxMTU, ActiveMTU: defaultMTU,
			LinkLayer: hca.LinkLayerInfiniBand, GUID: guid, LID: lid, SMLID: s.view.LID, SMSL: s.view.SL,
			SubnetTimeout: defaultTimeout, PKeys: []hca.PKey{hca.PKeyDefault},
			GIDs: []hca.GIDEntry{{GID: hca.GIDFromAddr(wireAddr(guid)), Type: hca.GIDTypeIB, MaxPayload: defaultMTU}},
		},
		sent: map[hca.PKey]uint64{}, received: map[hca.PKey]uint64{},
	}
	if slices.ContainsFunc(s.ports, func(q *Port) bool { return q.wire == p.wire }) {
		panic(fmt.Sprintf("memsubnet: GUID %v attached twice", guid))
	}
	s.ports = append(s.ports, p)
	return p
}

// wireAddr returns the address of a port on the fabric.
func wireAddr(guid hca.GUID) netip.Addr {
	return netip.AddrFrom16([16]byte(append([]byte{0xfe, 0x80, 7: 0}, guid[:]...)))
}

// Join makes the port with a LID a member of a group. A send-only member may send, and receives
// nothing; a full member stays full. Join returns false if no port has the LID.
func (s *Subnet) Join(lid uint16, mgid hca.GID, mlid uint16, sendOnly bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.portAt(lid)
	if p == nil {
		return false
	}
	m := member{p, group{mgid, mlid}}
	s.members[m] = s.members[m] || !sendOnly
	return true
}

// Leave ends every membership of the port with a LID in a group.
func (s *Subnet) Leave(lid uint16, mgid hca.GID, mlid uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, member{s.portAt(lid), group{mgid, mlid}})
}

// MoveSM gives the subnet manager another LID and SL, and tells all ports. MADs to the former LID are
// lost.
func (s *Subnet) MoveSM(lid uint16, sl uint8) {
	s.mu.Lock()
	s.view.LID, s.view.SL = lid, sl
	ports := slices.Clone(s.ports)
	s.mu.Unlock()
	for _, p := range ports {
		p.Change(func(a *hca.PortAttr) { a.SMLID, a.SMSL = lid, sl })
	}
}

// Dropped returns how many messages were not forwarded for a reason. A large send that never left its
// port counts as one message.
func (s *Subnet) Dropped(why Drop) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drops[why]
}

// portAt returns the port that answers to a LID, with any path bits, or nil. s.mu is held.
func (s *Subnet) portAt(lid uint16) *Port {
	for _, p := range s.ports {
		if p.attr.LID != 0 && lid&^p.pathMask() == p.attr.LID {
			return p
		}
	}
	return nil
}

// isMember reports whether a port sends to an MLID, or if full, receives from it. Switches know only
// MLIDs, which groups may share. s.mu is held.
func (s *Subnet) isMember(p *Port, mlid uint16, full bool) bool {
	for m, isFull := range s.members {
		if m.port == p && m.mlid == mlid && (isFull || !full) {
			return true
		}
	}
	return false
}

// groupAddr returns the address on the fabric of a group at an MLID. s.mu is held.
func (s *Subnet) groupAddr(g group) netip.Addr {
	n, ok := s.groups[g]
	if !ok {
		n = len(s.groups)
		s.groups[g] = n
	}
	return netip.AddrFrom16([16]byte{0xff, 0x1e, 12: byte(n >> 8), byte(n), byte(g.mlid >> 8), byte(g.mlid)})
}

// mlidOf returns the MLID in the address of a group.
func mlidOf(a netip.Addr) uint16 {
	b := a.As16()
	return uint16(b[14])<<8 | uint16(b[15])
}
