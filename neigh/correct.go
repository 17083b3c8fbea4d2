package neigh

import (
	"net/netip"

	"ipoibd/ud/ipoib"
)

// correct informs the host, in p's name, that ip is at p. asker is the source
// of the host's packet. It does so at most once per correctInterval.
func (t *Table) correct(p *peer, ip, asker netip.Addr) {
	if !p.corrected.IsZero() && t.now.Sub(p.corrected) < correctInterval {
		return
	}
	asker = t.hosts.source(ip, asker)
	frame, err := t.correction(p, ip, asker)
	if err != nil || asker.IsUnspecified() {
		return
	}
	p.corrected = t.now
	t.stats.Corrections++
	t.emit(SendHost{frame})
}

// correction returns an ARP reply, or a neighbour solicitation, which updates
// the host's cache like an advertisement (RFC 4861 section 7.2.3) but does not
// state whether p is a router.
func (t *Table) correction(p *peer, ip, asker netip.Addr) ([]byte, error) {
	if ip.Is4() {
		arp := ipoib.EtherARP{Op: ipoib.ARPReply, SHA: p.mac, SPA: ip, THA: t.mac.dest(), TPA: asker}
		return padded(arp.Append(newFrame(t.mac.dest(), p.mac, ipoib.EtherTypeARP))), nil
	}
	packet := ipoib.AppendNS(nil, ip, asker, p.addr())
	return t.etherND(p, packet, ipoib.GroupMAC(ipoib.SolicitedNode(asker)), p.endpoint)
}
