package neigh

import (
	"net/netip"

	"ipoibd/ud/ipoib"
)

// correct tells the host that ip is at p, in p's name: by an ARP reply, or by an
// unsolicited neighbour advertisement. It does so once per correctInterval.
func (t *Table) correct(p *peer, ip, asker netip.Addr) {
	if !p.corrected.IsZero() && t.now.Sub(p.corrected) < correctInterval {
		return
	}
	p.corrected = t.now
	t.stats.Corrections++
	if ip.Is4() {
		t.emit(SendHost{t.correctionARP(p, ip, asker)})
		return
	}
	if frame, err := t.correctionND(p, ip); err == nil {
		t.emit(SendHost{frame})
	}
}

func (t *Table) correctionARP(p *peer, ip, asker netip.Addr) []byte {
	arp := ipoib.EtherARP{
		Op:  ipoib.ARPReply,
		SHA: p.mac, SPA: ip,
		THA: t.mac.dest(), TPA: t.hosts.source(ip, asker),
	}
	return padded(arp.Append(newFrame(t.mac.dest(), p.mac, ipoib.EtherTypeARP)))
}

func (t *Table) correctionND(p *peer, ip netip.Addr) ([]byte, error) {
	packet := ipoib.AppendUnsolicitedNA(nil, ip, p.addr())
	return t.etherND(p, packet, ipoib.GroupMAC(netip.IPv6LinkLocalAllNodes()), false)
}
