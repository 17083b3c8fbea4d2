package neigh

import (
	"net/netip"

	"ipoibd/ud/ipoib"
)

// hostARP translates an ARP or RARP body from the host (RFC 826, RFC 903, RFC
// 4391 section 9.2). The sender becomes our own address. The target is the peer
// that the frame is addressed to, or else the peer of the body's target MAC; it is
// zero if both are unknown.
func (t *Table) hostARP(f frame, late bool) {
	in, err := ipoib.ParseEtherARP(f.body())
	if err != nil || !t.host.mac.is(in.SHA) {
		t.step.drop(DropBadARP)
		return
	}
	if f.typ == ipoib.EtherTypeARP {
		t.hostClaims(in.SPA)
	}
	out := ipoib.ARP{Op: in.Op, SHA: t.host.link.addr(), SPA: in.SPA, TPA: in.TPA}
	out.THA, _ = t.peers.addrOf(in.THA)
	if addr, ok := t.peers.addrOf(f.dst); ok {
		out.THA = addr
	}
	t.forward(f, outgoing{msg: out.Append(newMessage(f.typ)), control: true, late: late})
}

// fabricARP translates an ARP or RARP body from the fabric. The sender in the
// body must be the sender of the message.
func (t *Table) fabricARP(e endpoint, typ ipoib.EtherType, body []byte, multicast bool) {
	in, err := ipoib.ParseARP(body)
	if err != nil {
		t.step.drop(DropBadARP)
		return
	}
	if endpointOf(in.SHA) != e {
		t.step.drop(DropForged)
		return
	}
	claimed := in.SPA
	if typ == ipoib.EtherTypeRARP { // RFC 903: the sender may not know its address
		claimed = netip.Addr{}
	}
	p := t.peers.heardFrom(e, claimed)
	// The GRH does not suffice to choose the destination MAC: if the fabric replicates
	// groups, a broadcast arrives at our own address. A request counts as unicast only if
	// it asks for one of the host's addresses; a superfluous broadcast is harmless.
	dst, request := t.host.mac.dest(), in.Op != ipoib.ARPReply
	if multicast || request && (in.SPA == in.TPA || !t.host.ips.has(in.TPA)) {
		dst = ipoib.Broadcast
	}
	out := ipoib.EtherARP{Op: in.Op, SHA: p.mac, SPA: in.SPA, THA: t.peers.macOf(endpointOf(in.THA)), TPA: in.TPA}
	t.host.deliver(out.Append(newFrame(dst, p.mac, typ)))
	t.resolved(claimed, p)
}
