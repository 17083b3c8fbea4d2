package neigh

import (
	"net/netip"

	"ipoibd/ud/ipoib"
)

// correct tells the host that ip is at p, in p's name, in answer to a packet
// from asker. It does so once per correctInterval.
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

// correction is an ARP reply; or a neighbour solicitation, which changes the
// host's cache as an advertisement does (RFC 4861 section 7.2.3), but says
// nothing about whether p is a router.
func (t *Table) correction(p *peer, ip, asker netip.Addr) ([]byte, error) {
	if ip.Is4() {
		arp := ipoib.EtherARP{Op: ipoib.ARPReply, SHA: p.mac, SPA: ip, THA: t.mac.dest(), TPA: asker}
		return padded(arp.Append(newFrame(t.mac.dest(), p.mac, ipoib.EtherTypeARP))), nil
	}
	packet := ipoib.AppendNS(nil, ip, asker, p.addr())
	return t.etherND(p, packet, ipoib.GroupMAC(ipoib.SolicitedNode(asker)), p.endpoint)
}
