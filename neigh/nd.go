package neigh

import (
	"errors"
	"net/netip"

	"ipoibd/ud/ipoib"
)

// hostND translates Neighbour Discovery from the host (RFC 4861, RFC 4391
// section 9.3).
func (t *Table) hostND(f frame, late bool) {
	nd, err := ipoib.ParseND(f.body(), ipoib.FormEther)
	if err != nil {
		t.step.drop(DropBadND)
		return
	}
	m := mapper{t: t, redirect: nd.Type == ipoib.NDRedirect}
	msg, err := ipoib.TranslateND(newMessage(f.typ), f.body(), ipoib.FormEther, ipoib.FormIPoIB, t.host.link.mtu, m)
	if err != nil {
		t.step.drop(ndReason(err))
		return
	}
	t.hostClaims(claimedBy(nd))
	if nd.Type == ipoib.NDRouterAdvert || nd.Flags&ipoib.NAFlagRouter != 0 {
		t.host.ips.router = true
	}
	t.forward(f, outgoing{msg: msg, control: true, late: late})
}

// fabricND translates Neighbour Discovery from the fabric. A link-layer address
// in the message must be the sender's; only a Redirect may contain another
// node's address.
func (t *Table) fabricND(e endpoint, packet []byte, multicast bool) {
	nd, err := ipoib.ParseND(packet, ipoib.FormIPoIB)
	if err != nil {
		t.step.drop(DropBadND)
		return
	}
	link, named := nd.Link.IPoIB()
	redirect := nd.Type == ipoib.NDRedirect
	if named && !redirect && endpointOf(link) != e {
		t.step.drop(DropForged)
		return
	}
	claimed := claimedBy(nd)
	p := t.peers.heardFrom(e, claimed)
	target := e
	if redirect && named {
		target = endpointOf(link)
	}
	if frame, err := t.etherND(p, packet, t.ndDest(nd.Dst, multicast), target); err != nil {
		t.step.drop(ndReason(err))
	} else {
		t.host.deliver(frame)
	}
	t.resolved(claimed, p)
}

// ndDest returns the destination MAC of an ND message for the host. It depends
// on the IP address, because the GRH is not reliable if the fabric replicates
// groups.
func (t *Table) ndDest(ip netip.Addr, multicast bool) ipoib.MAC {
	switch {
	case ip.IsMulticast():
		return ipoib.GroupMAC(ip)
	case multicast:
		return ipoib.Broadcast
	}
	return t.host.mac.dest()
}

// etherND translates an ND message from p to a frame for the host. The message may
// contain the addresses of p and target.
func (t *Table) etherND(p *peer, packet []byte, dst ipoib.MAC, target endpoint) ([]byte, error) {
	m := mapper{t: t, sender: p, target: target}
	header := newFrame(dst, p.mac, ipoib.EtherTypeIPv6)
	return ipoib.TranslateND(header, packet, ipoib.FormIPoIB, ipoib.FormEther, t.host.link.mtu, m)
}

// claimedBy returns the IP address that an ND message binds to its link-layer
// address option: the source, or an advertisement's target. It is invalid if
// there is no option, and for a Redirect, whose option belongs to a third
// party.
func claimedBy(nd ipoib.ND) netip.Addr {
	switch {
	case nd.Link.Type == ipoib.OptionSourceLink:
		return nd.Src
	case nd.Link.Type == ipoib.OptionTargetLink && nd.Type == ipoib.NDNeighborAdvert:
		return nd.Target
	}
	return netip.Addr{}
}

// ndReason returns the reason for which a message could not be translated.
func ndReason(err error) Reason {
	switch {
	case errors.Is(err, ipoib.ErrUnmapped):
		return DropUnmapped
	case errors.Is(err, ipoib.ErrTooLong):
		return DropTooLong
	}
	return DropBadND
}

// mapper maps the addresses in one ND message: its sender's and, in a Redirect,
// the target's. It implements [ipoib.Mapper].
type mapper struct {
	t        *Table
	sender   *peer    // of a message from the fabric
	target   endpoint // of a message from the fabric: another endpoint that it may contain
	redirect bool     // of a message from the host: it may contain other nodes' addresses
}

// ToAddr maps an address in a message from the host.
func (m mapper) ToAddr(mac ipoib.MAC) (ipoib.Addr, bool) {
	if !m.redirect && !m.t.host.mac.is(mac) {
		return ipoib.Addr{}, false
	}
	return m.t.peers.addrOf(mac)
}

// ToMAC maps an address in a message from the fabric. An unknown target of a Redirect
// becomes a peer, because otherwise the host could not follow the Redirect. ToMAC
// refuses our own address and any address other than the sender's and the target's, so
// a message adds at most one such peer.
func (m mapper) ToMAC(a ipoib.Addr) (ipoib.MAC, bool) {
	e := endpointOf(a)
	switch {
	case e == m.sender.endpoint:
		return m.sender.mac, true
	case e != m.target || !e.valid() || m.t.host.link.isOwn(e, m.t.step.now):
		return ipoib.MAC{}, false
	}
	if p := m.t.peers.live.byEndpoint[e]; p != nil {
		return p.mac, true
	}
	return m.t.peers.add(e, netip.Addr{}).mac, true
}
