package neigh

import (
	"net/netip"
	"slices"

	"ipoibd/ud/ipoib"
)

// toStation delivers an IP packet from the fabric. If a station may have its destination that is not known yet, it
// keeps the packet, and asks on ib0 who has that address, in the name of the sender.
func (t *Table) toStation(e endpoint, typ ipoib.EtherType, packet []byte, multicast bool) {
	ip, ok := ipoib.DestIP(typ, packet)
	if !ok {
		t.step.drop(DropRunt)
		return
	}
	p := t.peers.at(e)
	to, known := t.host.stations.to(ip, multicast)
	frame := append(newFrame(to, p.mac, typ), packet...)
	if known {
		t.host.deliver(frame)
		return
	}
	src, _ := ipoib.SourceIP(typ, packet)
	t.seeker.await(ip, askerOf(p, ip, src), frame)
}

// askerOf returns the address in whose name p asks for ip: src, unless that is of another link, if p has another.
func askerOf(p *peer, ip, src netip.Addr) netip.Addr {
	if slices.Contains(p.ips, src) {
		return src
	}
	for _, own := range slices.Backward(p.ips) {
		if sameKind(own, ip) {
			return own
		}
	}
	return src
}

// seek asks on ib0 who has the address of a resolution, in the name of its source, which the sender of the
// packet has.
func (t *Table) seek(r *resolution) {
	p := t.peers.live.byMAC[r.from]
	if p == nil { // it was removed
		return
	}
	t.step.stats.Seeks++
	if r.ip.Is4() {
		arp := ipoib.EtherARP{Op: ipoib.ARPRequest, SHA: p.mac, SPA: r.src, TPA: r.ip}
		t.step.emit(SendHost{padded(arp.Append(newFrame(ipoib.Broadcast, p.mac, ipoib.EtherTypeARP)))})
		return
	}
	packet := ipoib.AppendNS(nil, r.src, r.ip, p.addr())
	frame, err := t.translator.etherND(p, packet, ipoib.GroupMAC(ipoib.SolicitedNode(r.ip)), p.endpoint)
	if err == nil {
		t.step.emit(SendHost{frame})
	}
}

// unanswered sends what was kept for an address that no station has answered for to the fallback.
func (t *Table) unanswered(r *resolution) {
	t.host.stations.lacks(r.ip, t.step.now)
	t.deliverKept(r)
}

func (t *Table) deliverKept(r *resolution) {
	for _, raw := range t.step.drain(&r.kept) {
		f, _ := parseFrame(raw)
		t.host.deliver(f.readdressed(t.host.stations.dest(r.ip)).raw)
	}
}

// stationsChanged reports the changes of this Step, has them published, and delivers what was kept for addresses that
// stations have now.
func (t *Table) stationsChanged() {
	if t.host.stations.regrouped && t.host.link.lid != 0 {
		t.step.emit(GroupsChanged{})
	}
	t.host.stations.regrouped = false
	if !t.host.stations.changed {
		return
	}
	t.host.stations.changed = false
	t.view.change()
	var found []netip.Addr
	for ip := range t.seeker.byIP {
		if t.host.stations.has(ip) {
			found = append(found, ip)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	for _, ip := range found {
		t.deliverKept(t.seeker.end(ip))
	}
}
