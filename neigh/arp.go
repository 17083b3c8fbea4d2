package neigh

import (
	"net/netip"

	"ipoibd/ud/ipoib"
)

// translator translates ARP, RARP and ND between the two forms of link-layer addresses. It learns
// peers and the host's addresses from them, and drops what it cannot translate.
type translator struct {
	step  *step
	host  *host
	peers *peers

	dhcp    DHCPForm
	clients dhcpClients
}

// hostARP translates an ARP or RARP body from the host (RFC 826, RFC 903, RFC
// 4391 section 9.2). The sender becomes our own address. The target is the peer
// that the frame is addressed to, or else the peer of the body's target MAC; it is
// zero if both are unknown. What a late frame claims, which was kept before, counted when it came: its address may have
// moved since.
func (x *translator) hostARP(f frame, late bool) (msg []byte, ok bool) {
	in, err := ipoib.ParseEtherARP(f.body())
	if err != nil || in.SHA != f.src {
		x.step.drop(DropBadARP)
		return nil, false
	}
	if f.typ == ipoib.EtherTypeARP && !late {
		x.hostClaims(in.SHA, in.SPA)
	}
	out := ipoib.ARP{Op: in.Op, SHA: x.host.link.addr(), SPA: in.SPA, TPA: in.TPA}
	out.THA, _ = x.peers.addrOf(in.THA)
	if addr, ok := x.peers.addrOf(f.dst); ok {
		out.THA = addr
	}
	return out.Append(newMessage(f.typ)), true
}

// hostClaims notes an address that a station has claimed by ARP or ND, or was given by DHCP.
func (x *translator) hostClaims(m ipoib.MAC, ip netip.Addr) {
	if isUnicast(ip) {
		x.peers.live.unbind(ip)
		if !x.host.stations.claim(m, ip) {
			x.step.stats.AddressesFull++
		}
	}
}

// fabricARP translates an ARP or RARP body from the fabric, and delivers it. The sender in
// the body must be the sender of the message. fabricARP returns the sender and the address
// that it claims, if any; nil: it dropped the message.
func (x *translator) fabricARP(e endpoint, typ ipoib.EtherType, body []byte, multicast bool) (netip.Addr, *peer) {
	in, err := ipoib.ParseARP(body)
	if err != nil {
		x.step.drop(DropBadARP)
		return netip.Addr{}, nil
	}
	if endpointOf(in.SHA) != e {
		x.step.drop(DropForged)
		return netip.Addr{}, nil
	}
	claimed := in.SPA
	if typ == ipoib.EtherTypeRARP { // RFC 903: the sender may not know its address
		claimed = netip.Addr{}
	}
	p := x.peers.heardFrom(e, claimed)
	// The GRH does not suffice to choose the destination MAC: if the fabric replicates
	// groups, a broadcast arrives at our own address. A request counts as unicast only if
	// it asks for one of the host's addresses; a superfluous broadcast is harmless.
	// Anyone's answer to a probe may interest the station that probes, whose address is not known yet.
	// So may an answer for an address for which there was no room.
	dst, known := x.host.stations.of(in.TPA)
	probed := in.Op == ipoib.ARPReply && in.TPA.IsUnspecified()
	asks := in.Op != ipoib.ARPReply && (in.SPA == in.TPA || !x.host.stations.has(in.TPA))
	if multicast || probed || !known || asks {
		dst = ipoib.Broadcast
	}
	out := ipoib.EtherARP{Op: in.Op, SHA: p.mac, SPA: in.SPA, THA: x.peers.macOf(endpointOf(in.THA), in.TPA), TPA: in.TPA}
	x.host.deliver(out.Append(newFrame(dst, p.mac, typ)))
	return claimed, p
}
