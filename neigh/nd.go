package neigh

import (
	"errors"
	"net/netip"

	"ipoibd/ud/ipoib"
)

// hostND is hostARP for Neighbour Discovery (RFC 4861, RFC 4391 section 9.3).
func (x *translator) hostND(f frame, late bool) (msg []byte, ok bool) {
	nd, err := ipoib.ParseND(f.body(), ipoib.FormEther)
	if err != nil {
		x.step.drop(DropBadND)
		return nil, false
	}
	m := mapper{translator: x, station: f.src, redirect: nd.Type == ipoib.NDRedirect}
	msg, err = ipoib.TranslateND(newMessage(f.typ), f.body(), ipoib.FormEther, ipoib.FormIPoIB, x.host.link.mtu, m)
	if err != nil {
		x.step.drop(ndReason(err))
		return nil, false
	}
	if !late {
		x.hostClaims(f.src, claimedBy(nd))
		x.host.stations.sentND(f.src, nd)
	}
	return msg, true
}

// fabricND is fabricARP for Neighbour Discovery. A link-layer address in the message must
// be the sender's; only a Redirect may contain another node's address.
func (x *translator) fabricND(e endpoint, packet []byte, multicast bool) (netip.Addr, *peer) {
	nd, err := ipoib.ParseND(packet, ipoib.FormIPoIB)
	if err != nil {
		x.step.drop(DropBadND)
		return netip.Addr{}, nil
	}
	link, named := nd.Link.IPoIB()
	redirect := nd.Type == ipoib.NDRedirect
	if named && !redirect && endpointOf(link) != e {
		x.step.drop(DropForged)
		return netip.Addr{}, nil
	}
	claimed := claimedBy(nd)
	p := x.peers.heardFrom(e, claimed)
	target := e
	if redirect && named {
		target = endpointOf(link)
	}
	// The destination depends on the IP address, because the GRH is not reliable if the fabric
	// replicates groups.
	dst, known := x.host.stations.to(nd.Dst, multicast)
	if !known {
		dst = ipoib.Broadcast
	}
	if frame, err := x.etherND(p, packet, dst, target); err != nil {
		x.step.drop(ndReason(err))
	} else {
		x.host.deliver(frame)
	}
	return claimed, p
}

// etherND translates an ND message from p to a frame for the host. The message may
// contain the addresses of p and target.
func (x *translator) etherND(p *peer, packet []byte, dst ipoib.MAC, target endpoint) ([]byte, error) {
	m := mapper{translator: x, sender: p, target: target}
	header := newFrame(dst, p.mac, ipoib.EtherTypeIPv6)
	return ipoib.TranslateND(header, packet, ipoib.FormIPoIB, ipoib.FormEther, x.host.link.mtu, m)
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
	translator *translator
	sender     *peer     // of a message from the fabric
	target     endpoint  // of a message from the fabric: another endpoint that it may contain
	station    ipoib.MAC // of a message from the host
	redirect   bool      // likewise: it may contain other nodes' addresses
}

// ToAddr maps an address in a message from the host.
func (m mapper) ToAddr(mac ipoib.MAC) (ipoib.Addr, bool) {
	if !m.redirect && mac != m.station {
		return ipoib.Addr{}, false
	}
	return m.translator.peers.addrOf(mac)
}

// ToMAC maps an address in a message from the fabric. An unknown target of a Redirect
// becomes a peer, because otherwise the host could not follow the Redirect. ToMAC
// refuses our own address and any address other than the sender's and the target's, so
// a message adds at most one such peer.
func (m mapper) ToMAC(a ipoib.Addr) (ipoib.MAC, bool) {
	x, e := m.translator, endpointOf(a)
	switch {
	case e == m.sender.endpoint:
		return m.sender.mac, true
	case e != m.target || !e.valid() || x.host.link.isOwn(e, x.step.now):
		return ipoib.MAC{}, false
	}
	return x.peers.at(e).mac, true
}
