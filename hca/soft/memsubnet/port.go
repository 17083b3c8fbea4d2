package memsubnet

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

// Attributes of a new port.
const (
	defaultMTU     = 2048
	defaultTimeout = 18 // about a second (IBA 14.2.5.6), as OpenSM sets it
)

// overhead is what an IPv6 packet of the fabric has besides the UD payload, in bytes.
const overhead = 40 + 8 + roce.HeaderLen + roce.ICRCLen

// Port is a port of a subnet. It exists independently of the HCA that is open on it.
type Port struct {
	subnet *Subnet
	name   string
	wire   netip.Addr // on the fabric

	changing sync.Mutex // one Change at a time; taken before Subnet.mu

	// Guarded by Subnet.mu.
	attr           hca.PortAttr
	pathBits       uint16
	dev            *Device // open; nil: none
	sent, received map[hca.PKey]uint64
}

// Open opens the port's HCA, as the netdev with the port's name. There may be one at a time. rnd chooses QP
// numbers; nil: seeded by the system.
func (p *Port) Open(rnd *rand.Rand) (*Device, error) {
	p.changing.Lock()
	defer p.changing.Unlock()
	attr := p.Attr()
	netdev := p.subnet.fabric.Attach(p.name, int(attr.ActiveMTU)+overhead, p.wire)
	inner, err := soft.Open(soft.Config{
		Name: p.name, Transport: &wire{netdev, p}, PKeys: attr.PKeys, GUID: attr.GUID, Rand: rnd,
	})
	if err != nil {
		return nil, err
	}
	d := &Device{
		Device: inner, soft: inner, port: p, netdev: netdev,
		qps: map[hca.QPN]*QP{}, mrs: map[uint32]*MR{},
	}
	p.subnet.mu.Lock()
	defer p.subnet.mu.Unlock()
	p.dev = d
	return d, nil
}

// Attr returns the port's attributes, as QueryPort of an open HCA does.
func (p *Port) Attr() hca.PortAttr {
	p.subnet.mu.Lock()
	defer p.subnet.mu.Unlock()
	return clone(p.attr)
}

func clone(a hca.PortAttr) hca.PortAttr {
	a.GIDs, a.PKeys = slices.Clone(a.GIDs), slices.Clone(a.PKeys)
	return a
}

// Change changes the port's attributes, and raises the events that follow; see the package documentation. f must not
// call this package. MaxPayload of each GID becomes the active MTU. A P_Key may be in the table only once;
// while keys change their index, messages may be lost.
func (p *Port) Change(f func(a *hca.PortAttr)) {
	p.changing.Lock()
	defer p.changing.Unlock()
	was := p.Attr()
	next := clone(was)
	f(&next)
	for i := range next.GIDs {
		next.GIDs[i].MaxPayload = int(next.ActiveMTU)
	}
	p.subnet.mu.Lock()
	dev := p.dev
	p.subnet.mu.Unlock()
	if dev != nil {
		dev.setPKeys(next.PKeys)
		dev.setMTU(next.ActiveMTU)
	}
	p.subnet.mu.Lock()
	p.attr = next
	p.subnet.mu.Unlock()
	p.Emit(eventsOf(was, next)...)
}

// eventsOf returns the events of a change.
func eventsOf(was, next hca.PortAttr) (out []hca.EventType) {
	for _, e := range []struct {
		event   hca.EventType
		changed bool
	}{
		{hca.EventGIDChange, !slices.Equal(was.GIDs, next.GIDs)},
		{hca.EventLIDChange, was.LID != next.LID || was.LMC != next.LMC},
		{hca.EventPKeyChange, !slices.Equal(was.PKeys, next.PKeys)},
		{hca.EventSMChange, was.SMLID != next.SMLID || was.SMSL != next.SMSL},
		{hca.EventPortErr, was.State == hca.PortActive && next.State != hca.PortActive},
		{hca.EventPortActive, was.State != hca.PortActive && next.State == hca.PortActive},
	} {
		if e.changed {
			out = append(out, e.event)
		}
	}
	return out
}

// Emit raises events of the port, for example CLIENT_REREGISTER, at an open HCA.
func (p *Port) Emit(types ...hca.EventType) {
	p.subnet.mu.Lock()
	dev := p.dev
	p.subnet.mu.Unlock()
	for _, t := range types {
		if dev != nil {
			dev.events.put(hca.AsyncEvent{Type: t, On: hca.ObjectID{Kind: hca.KindPort, Num: 1}})
		}
	}
}

// SetPathBits sets the low bits of the SLID in what the port sends from now on, as far as its LMC allows
// (IBA 4.1.3). The address handles of the contract have none.
func (p *Port) SetPathBits(bits uint16) {
	p.subnet.mu.Lock()
	defer p.subnet.mu.Unlock()
	p.pathBits = bits
}

// Packets returns how many packets with a P_Key the port has sent and received. Those that it loops back, or that
// lead nowhere, are not among them.
func (p *Port) Packets(key hca.PKey) (sent, received uint64) {
	p.subnet.mu.Lock()
	defer p.subnet.mu.Unlock()
	return p.sent[key], p.received[key]
}

// The following functions are called with Subnet.mu held.

// pathMask returns the path bits of a LID.
func (p *Port) pathMask() uint16 { return 1<<p.attr.LMC - 1 }

func (p *Port) hasGID(i int) bool { return i < len(p.attr.GIDs) && !p.attr.GIDs[i].GID.IsZero() }

func (p *Port) owns(gid hca.GID) bool {
	return slices.ContainsFunc(p.attr.GIDs, func(e hca.GIDEntry) bool { return e.GID == gid })
}

// admit decides whether the switch forwards a packet to the port, and counts it.
func (p *Port) admit(pkt *transport.Packet) bool {
	s, key := p.subnet, pkeyOf(pkt.Data)
	s.mu.Lock()
	defer s.mu.Unlock()
	var why Drop
	switch {
	case p.attr.State != hca.PortActive:
		why = DropInactive
	case pkt.Dst.IsMulticast() && !s.isMember(p, mlidOf(pkt.Dst), true):
		why = DropNotJoined
	case !slices.ContainsFunc(p.attr.PKeys, key.Match):
		why = DropPKey
	default:
		p.received[key]++
		return true
	}
	s.drops[why]++
	return false
}

// wire is the link between an HCA and the subnet.
type wire struct {
	*memfabric.Port
	port *Port
}

// Send implements transport.Transport.
func (w *wire) Send(pkts []transport.Packet) (int, error) {
	n, err := w.Port.Send(pkts)
	s := w.port.subnet
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range pkts[:n] {
		if pkts[i].Dst != nowhere {
			w.port.sent[pkeyOf(pkts[i].Data)] += uint64(pkts[i].Datagrams())
		}
	}
	return n, err
}

// Recv implements transport.Transport. If it admits no packet, it returns as if interrupted.
func (w *wire) Recv(pkts []transport.Packet) (kept int, err error) {
	n, err := w.Port.Recv(pkts)
	for i := range n {
		if w.port.admit(&pkts[i]) {
			pkts[kept] = pkts[i]
			kept++
		}
	}
	return kept, err
}

// pkeyOf returns the P_Key in a BTH (IBA 9.2).
func pkeyOf(bth []byte) hca.PKey { return hca.PKey(binary.BigEndian.Uint16(bth[2:])) }
